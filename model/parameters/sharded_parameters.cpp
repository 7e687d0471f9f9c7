#include "model/parameters/sharded_parameters.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "core/error.h"
#include "kernels/fp8/fp8.h"
#include "kernels/fp8/fp8_shard.h"
#include "kernels/math/cast.h"
#include "kernels/math/sum_terms.h"
#include "model/architecture/layer_spec.h"

namespace octavo {

namespace {

// Maximum number of elements of a tied table's gradient that pipeline stages exchange at a time.
constexpr int64_t kTiedPart = int64_t{1} << 24;

enum Pool : size_t { kNormsPool, kTablesPool, kBlocksPool };

size_t pool_of(const ParameterUnit& unit) {
  if (unit.is_norms) return kNormsPool;
  return unit.layer >= 0 ? kBlocksPool : kTablesPool;
}

int64_t shard_elements(const ParameterUnit& unit, int64_t ranks) {
  const int64_t step = ranks * kParameterAlignment;
  return (unit.end - unit.begin + step - 1) / step * kParameterAlignment;
}

// Returns the pools for `all` units. Kept units have a slot each. Otherwise two slots for blocks and one for tables
// suffice to gather the next unit while one is in use.
std::vector<FsdpPool> pools_of(const ShardingOptions& sharding, int64_t all) {
  const auto slots = [&](bool keep, int64_t few) { return keep ? all : few; };
  const bool keep_weights = !sharding.reshard_after_forward;
  const bool keep_gradients = sharding.accumulate_unsharded;
  const Lifetime weights = keep_weights ? Lifetime::kRun : Lifetime::kBlock;
  const Lifetime gradients = keep_gradients ? Lifetime::kStep : Lifetime::kBlock;
  const FsdpPool norms{.name = "norms", .weight_slots = all, .gradient_slots = 1, .gradient_lifetime = gradients};
  const FsdpPool tables{.name = "tables",
                        .weight_slots = slots(keep_weights, 1),
                        .gradient_slots = slots(keep_gradients, 1),
                        .weight_lifetime = weights,
                        .gradient_lifetime = gradients,
                        .weights_over = kBlocksPool};
  const FsdpPool blocks{.name = "blocks",
                        .of_blocks = true,
                        .weight_slots = slots(keep_weights, 2),
                        .gradient_slots = slots(keep_gradients, 2),
                        .weight_lifetime = weights,
                        .gradient_lifetime = gradients};
  return {norms, tables, blocks};
}

// Returns the number of rows of a table per shard. Shards have whole rows, and their number of elements is a multiple
// of kParameterAlignment, like that of other units.
int64_t shard_rows(int64_t rows, int64_t columns, int64_t ranks) {
  const int64_t multiple = kParameterAlignment / std::gcd(kParameterAlignment, columns);
  return ((rows + ranks - 1) / ranks + multiple - 1) / multiple * multiple;
}

// Returns the ranges between and after the parameters of a unit, up to its size `elements`.
std::vector<ElementRange> padding_of(const ParameterLayout& layout, size_t unit, int64_t elements) {
  std::vector<ElementRange> padding;
  int64_t begin = 0;
  const auto end_at = [&](int64_t end) {
    if (begin < end) padding.push_back({begin, end});
  };
  const std::vector<ParameterSpec>& specs = layout.specs();
  auto spec = std::ranges::lower_bound(specs, unit, {}, &ParameterSpec::unit);
  for (; spec != specs.end() && spec->unit == unit; ++spec) {
    const int64_t offset = spec->offset - layout.units()[unit].begin;
    end_at(offset);
    begin = offset + spec->numel();
  }
  end_at(elements);
  return padding;
}

// Returns the dtype in which a unit's weights are gathered. A per-tensor recipe needs only one number to cast a shard,
// so blocks are gathered in FP8, or in float32, which gives the same bytes when cast after the gather. The scales of
// other recipes belong to rows or blocks of a matrix, which shards divide.
DType traveling_dtype(const ParameterUnit& unit, std::span<const LayerSpec> layers, const PrecisionConfig& precision) {
  if (unit.layer < 0 || !needs_amax(layers[static_cast<size_t>(unit.layer)].recipe)) return precision.compute;
  return precision.fp8_all_gather ? DType::kFloat8E4M3 : DType::kFloat32;
}

}  // namespace

std::optional<TableSpec> exchanged_table(const EmbeddingSharding& e) {
  if (e.tied || e.ranks == 1 || e.tokens == 0) return std::nullopt;
  const TableSpec table{.rows = e.vocab_size,
                        .columns = e.hidden_size,
                        .slice_rows = shard_rows(e.vocab_size, e.hidden_size, e.ranks),
                        .tokens = e.tokens,
                        .dtype = e.compute,
                        .ranks = static_cast<int>(e.ranks)};
  return table.is_better(e.all_to_all_load) ? std::optional(table) : std::nullopt;
}

ShardedParameters::ShardedParameters(const ParameterLayout& layout, const PrecisionConfig& precision,
                                     const ShardingOptions& sharding, LlamaMode mode, const Mesh* mesh, Arena& arena,
                                     Stream& stream)
    : layout_(&layout), mesh_(mesh), compute_(precision.compute) {
  const DataParallelGroups groups =
      mesh == nullptr ? DataParallelGroups{}
                      : DataParallelGroups{&mesh->shard(), &mesh->replicate(), mesh->all_to_all_load()};
  const std::optional<TableSpec> table =
      mode == LlamaMode::kTraining ? find_table(sharding, groups) : std::optional<TableSpec>();
  shard_begin_ = {0};
  for (size_t u = 0; u < layout.units().size(); ++u) {
    const bool is_table = table && u == ParameterLayout::kEmbedding;
    const int64_t elements =
        is_table ? table->slice_rows * table->columns : shard_elements(layout.units()[u], groups.size());
    shard_begin_.push_back(shard_begin_.back() + elements);
  }
  find_slices(groups.rank());
  {
    const Arena::Tag tag(arena, Contents::kWeights);
    master_ = arena.allocate("master weights", DType::kFloat32, {shard_begin_.back()});
  }
  // Weights do not depend on recomputation.
  const std::vector<LayerSpec> layers =
      layer_specs(layout.config(), precision, {.mode = ActivationCheckpointing::Mode::kNone});
  FsdpOptions options{.units = {},
                      .pools = pools_of(sharding, static_cast<int64_t>(layout.units().size())),
                      .groups = groups,
                      .gradients = mode == LlamaMode::kTraining};
  for (size_t u = 0; u < layout.units().size(); ++u) {
    const ParameterUnit& unit = layout.units()[u];
    const DType dtype = traveling_dtype(unit, layers, precision);
    options.units.push_back(
        {.name = unit.name,
         .shard_elements = shard_begin_[u + 1] - shard_begin_[u],
         .weight_dtype = dtype,
         .weight_shard = dtype == DType::kFloat32 ? master_.rows(shard_begin_[u], shard_begin_[u + 1]) : Tensor(),
         .gradient_dtype = unit.layer >= 0 ? precision.exchanged_gradients() : DType::kFloat32,
         // Copies of a kv head have equal terms, and stay equal if these have equal sums.
         .in_rank_order = unit.layer >= 0 && has_kv_copies(layout.config(), layout.tensor().size),
         .padding = padding_of(layout, u, (shard_begin_[u + 1] - shard_begin_[u]) * groups.size()),
         .tokens = table && u == ParameterLayout::kEmbedding ? std::optional(token_unit(*table)) : std::nullopt,
         .pool = pool_of(unit)});
  }
  fsdp_ = std::make_unique<Fsdp>(std::move(options), arena, stream);
  const bool has_half = layout.config().tie_word_embeddings && layout.has_embedding() != layout.has_head();
  if (!has_half || mode != LlamaMode::kTraining || mesh == nullptr || mesh->shape().pipeline == 1) return;
  const int64_t part = std::min(kTiedPart, fsdp_->gradient_shard(ParameterLayout::kEmbedding).numel());
  tied_part_ = arena.allocate("gradient of the tied table", DType::kFloat32, {part}, Lifetime::kBlock);
}

std::optional<TableSpec> ShardedParameters::find_table(const ShardingOptions& sharding,
                                                       const DataParallelGroups& groups) const {
  if (!layout_->has_embedding()) return std::nullopt;
  const ParameterSpec& embedding = layout_->find("model.embed_tokens.weight");
  return exchanged_table({.vocab_size = embedding.shape[0] + embedding.padding_rows,
                          .hidden_size = embedding.shape[1],
                          .tied = layout_->config().tie_word_embeddings,
                          .compute = compute_,
                          .tokens = sharding.tokens,
                          .ranks = groups.size(),
                          .all_to_all_load = groups.all_to_all_load});
}

void ShardedParameters::find_slices(int rank) {
  for (const ParameterSpec& spec : layout_->specs()) {
    const int64_t unit_begin = layout_->units()[spec.unit].begin;
    const int64_t elements = shard_begin_[spec.unit + 1] - shard_begin_[spec.unit];
    const int64_t first = unit_begin + rank * elements;  // First element of this rank's shard in the flat order.
    const int64_t begin = std::max(spec.offset, first);
    const int64_t end = std::min(spec.offset + spec.numel(), first + elements);
    if (begin >= end) continue;
    slices_.push_back({&spec, begin - spec.offset, end - spec.offset, shard_begin_[spec.unit] + begin - first});
  }
}

Tensor ShardedParameters::weight(const ParameterSlice& slice) const {
  const Tensor& shard = fsdp_->weight_shard(slice.spec->unit);
  if (shard.dtype() == DType::kFloat32) return {};
  const int64_t begin = slice.offset - shard_begin_[slice.spec->unit];
  return shard.rows(begin, begin + slice.end - slice.begin);
}

Tensor ShardedParameters::full(const Tensor& unit, const ParameterSpec& spec) const {
  return parameter_view(unit, spec, layout_->units()[spec.unit].begin);
}

std::vector<Tensor> ShardedParameters::counted_gradients() const {
  std::vector<Tensor> counted;
  int64_t begin = 0;
  const auto count_up_to = [&](int64_t end) {
    if (begin < end) counted.push_back(gradients().rows(begin, end));
  };
  for (const ParameterSlice& slice : slices_) {
    if (slice.spec->counts) continue;
    count_up_to(slice.offset);
    begin = slice.offset + slice.end - slice.begin;
  }
  count_up_to(gradients().numel());
  return counted;
}

void ShardedParameters::finish_gradients(Stream& stream) {
  fsdp_->finish_reductions();
  if (tied_part_.defined()) sum_tied_table(stream);
  if (mesh_ == nullptr || mesh_->tensor().size() == 1) return;
  const Tensor& norms = fsdp_->gradient_shard(ParameterLayout::kNorms);
  mesh_->tensor().all_reduce_sum(norms, stream, "gradients of norms");
  // Replicas may have added in different orders, so all take the result of one of them.
  mesh_->replicate().all_reduce_max(norms, stream, "gradients of norms");
}

// Both ends add the same two numbers, so they get the same bits.
void ShardedParameters::sum_tied_table(Stream& stream) {
  Communicator& stages = mesh_->pipeline();
  const int other_end = layout_->has_embedding() ? stages.size() - 1 : 0;
  const Tensor& gradient = fsdp_->gradient_shard(ParameterLayout::kEmbedding);
  for (int64_t begin = 0; begin < gradient.numel(); begin += tied_part_.numel()) {
    const Tensor mine = gradient.rows(begin, std::min(begin + tied_part_.numel(), gradient.numel()));
    const Tensor other = tied_part_.rows(0, mine.numel());
    stages.exchange(other, mine, other_end, stream, "gradients of the tied table");
    sum_terms({.out = mine, .terms = other, .accumulate = true}, stream);
  }
}

void ShardedParameters::cast_fp8_weights(const WeightCasts& casts, Stream& stream) {
  if (AmaxTable* amaxes = casts.amaxes) {
    if (casts.ranks != nullptr) casts.ranks->all_reduce_max(amaxes->weights(), stream, "amaxes of the weights");
    amaxes->compute_weight_scales(stream);
    for (const ParameterSlice& slice : slices_) {
      if (travels_in_fp8(slice.spec->unit)) cast_to_fp8(slice, casts, stream);
    }
  }
  fsdp_->weights_changed();
}

void ShardedParameters::cast_to_fp8(const ParameterSlice& slice, const WeightCasts& casts, Stream& stream) const {
  const int64_t linear = slice.spec->linear;
  const Tensor scaling = casts.amaxes->weight_scaling(linear);
  fp8_cast_piece({.out = weight(slice), .x = master(slice), .amax = scaling}, stream);
  if (casts.stats == nullptr) return;
  const int64_t elements = slice.end - slice.begin;
  const Fp8Operand bytes{.data = weight(slice).view({1, elements}),
                         .scale_inv = casts.amaxes->weight_scale_inv(linear),
                         .scaling = Scaling::kTensor};
  casts.stats->add({.linear = linear,
                    .kind = AmaxTable::kWeight,
                    .rows = bytes,
                    .x = master(slice).view({1, elements}),
                    .amax = scaling},
                   stream);
}

void ShardedParameters::cast_weights(const WeightCasts& casts, Stream& stream) {
  AmaxTable* amaxes = casts.amaxes;
  if (amaxes != nullptr) amaxes->begin_weights(stream);
  for (const ParameterSlice& slice : slices_) {
    const Tensor rounded = weight(slice);
    if (rounded.defined() && !travels_in_fp8(slice.spec->unit)) cast({.out = rounded, .x = master(slice)}, stream);
    if (amaxes != nullptr && slice.spec->linear >= 0) {
      amax({.out = amaxes->current(slice.spec->linear, AmaxTable::kWeight), .x = master(slice)}, stream);
    }
  }
  cast_fp8_weights(casts, stream);
}

}  // namespace octavo
