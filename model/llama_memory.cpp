// Construction of a Llama: its weights, activations, gradients, tables and scratch, all from the arena.
#include <algorithm>
#include <optional>
#include <string_view>

#include "core/error.h"
#include "kernels/fp8/fp8_stats.h"
#include "kernels/math/reduce.h"
#include "model/architecture/block_spec.h"
#include "model/llama.h"

namespace octavo {

namespace {

ParameterView weights_of(const ShardedParameters& parameters) {
  return [&parameters](const ParameterSpec& spec) { return parameters.full_weight(spec); };
}

ParameterView gradients_of(const ShardedParameters& parameters) {
  return [&parameters](const ParameterSpec& spec) { return parameters.full_gradient(spec); };
}

}  // namespace

Llama::Llama(const LlamaOptions& options, ShardedParameters& parameters, Arena& arena, Stream& stream)
    : options_(options),
      parameters_(&parameters),
      fsdp_(&parameters.fsdp()),
      stream_(&stream),
      tensor_(options.mesh != nullptr ? &options.mesh->tensor() : nullptr, options.shape.tokens(), stream),
      sequences_(options.mesh != nullptr ? ContextGroupOptions{&options.mesh->context(), &options.mesh->micro_batch()}
                                         : ContextGroupOptions{},
                 stream),
      local_(local_config(options.config, {tensor_.rank(), tensor_.size()})) {
  const ModelConfig& config = options.config;
  options_.shape.tensor_ranks = tensor_.size();
  CHECK(options.shape.context == sequences_.context_rank(),
        "a shape of rank {} of {} that share sequences, in a group of {}", options.shape.context.rank,
        options.shape.context.size, sequences_.context_rank().size);
  const BatchShape& shape = options_.shape;
  const DType compute = options.precision.compute;
  linears_ = block_linears(local_, shape);
  sdpa_check_supported(config.head_dim, compute, stream.device(), shape.document_mask);
  if (layout().has_embedding()) embedding_ = parameters.full_weight(layout().find("model.embed_tokens.weight"));
  if (layout().has_head()) {
    head_weights_ = HeadParameters(weights_of(parameters), layout(), config);
    losses_ = arena.allocate("losses", DType::kFloat32, {shape.tokens()}, Lifetime::kStep);
  }
  if (training() && layout().has_head() && options.z_loss > 0)
    z_losses_ = arena.allocate("z-losses", DType::kFloat32, {shape.tokens()}, Lifetime::kStep);
  make_scratch(arena);
  make_chunks();
  for (LlamaActivations& a : in_flight_) {
    a.delta = arena.allocate("residual delta", compute, {shape.local_tokens(), config.hidden_size}, Lifetime::kStep);
  }
  const bool ring = chunks_.size() > 1;
  pipeline_ = std::make_unique<PipelineGroup>(
      PipelineGroup::Options{
          .mesh = options.mesh,
          .boundaries = {.has_previous = ring || !layout().has_embedding(), .has_next = ring || !layout().has_head()},
          .training = training(),
          .dtype = compute,
          .rows = shape.local_tokens(),
          .columns = config.hidden_size},
      arena, stream);
  CHECK(training() || is_whole() || !pipeline_->alone(), "inference on a stage of a model without its other stages");
  rope_table_ = arena.allocate("rope table", DType::kFloat32, {shape.seq_len, config.head_dim});
  if (training()) make_gradients(arena);
  make_fp8_tables(arena);
  const std::vector<LayerSpec> specs = layer_specs(config, options.precision, options.checkpointing);
  for (const int64_t layer : layout().layers()) specs_.push_back(specs[static_cast<size_t>(layer)]);
  for (const Chunk& chunk : chunks_) {
    for (const size_t layer : chunk.layers) make_block(chunk, layer, arena);
  }

  const int64_t workspace_bytes =
      std::max({block_workspace_bytes(local_, shape, options.precision, stream),
                head_workspace_bytes(local_, shape, options.precision, stream), reduce_workspace_bytes(stream),
                fp8_stats_workspace_bytes(stream), options.workspace_bytes});
  workspace_ = arena.allocate("workspace", DType::kUInt8, {workspace_bytes}, Lifetime::kBlock);
  if (arena.planning()) return;
  stream.set_workspace(workspace_);
  upload_rope_table();
}

void Llama::make_chunks() {
  const std::vector<int64_t>& in_flight = options_.in_flight;
  CHECK(in_flight.empty() || in_flight.size() == layout().stage().size(),
        "micro-batches in flight of {} chunks, expected {}", in_flight.size(), layout().stage().size());
  size_t layer = 0;
  for (const auto& [begin, end] : layout().stage()) {
    Chunk& chunk = chunks_.emplace_back();
    chunk.has_embedding = begin == 0;
    chunk.has_head = end == options_.config.num_layers;
    chunk.first_slot = in_flight_.size();
    if (!in_flight.empty()) chunk.in_flight = in_flight[chunks_.size() - 1];
    CHECK(chunk.in_flight > 0, "{} micro-batches in flight", chunk.in_flight);
    in_flight_.resize(chunk.first_slot + static_cast<size_t>(chunk.in_flight));
    for (size_t slot = chunk.first_slot; slot < in_flight_.size(); ++slot) in_flight_[slot].first_layer = layer;
    for (int64_t i = begin; i < end; ++i) chunk.layers.push_back(layer++);
  }
}

void Llama::make_gradients(Arena& arena) {
  if (layout().has_embedding() && !fsdp_->takes_tokens(ParameterLayout::kEmbedding)) {
    d_embedding_ = parameters_->full_gradient(layout().find("model.embed_tokens.weight"));
  }
  if (layout().has_head()) {
    head_gradients_ = HeadParameters(gradients_of(*parameters_), layout(), options_.config);
  }
  if (has_kv_copies(options_.config, tensor_.size())) {
    const Arena::Tag tag(arena, Contents::kGradients);
    kv_copies_ = std::make_unique<KvCopies>(options_.config, TensorRank{tensor_.rank(), tensor_.size()}, arena);
  }
}

void Llama::make_fp8_tables(Arena& arena) {
  const PrecisionConfig& precision = options_.precision;
  const int64_t linears = std::ssize(linears_) * options_.config.num_layers;
  if (needs_amax(precision.linear)) {
    amaxes_ = std::make_unique<AmaxTable>(precision, linears, arena, std::ssize(in_flight_));
  }
  if (is_fp8(precision.linear) && options_.fp8_stats) fp8_stats_ = std::make_unique<Fp8StatsTable>(linears, arena);
}

void Llama::make_scratch(Arena& arena) {
  const BatchShape& shape = options_.shape;
  const DType compute = options_.precision.compute;
  arena.overlay({[&](Arena& of_blocks) {
                   linear_scratch_ = std::make_unique<LinearScratch>(linears_, options_.precision, tensor_, of_blocks);
                   block_scratch_ = std::make_unique<BlockScratch>(local_, shape, compute, training(), of_blocks);
                 },
                 [&](Arena& of_head) {
                   if (!layout().has_head()) return;
                   head_activations_ = std::make_unique<HeadActivations>(local_, shape, options_.precision, training(),
                                                                         losses_, of_head);
                 }});
}

void Llama::make_block(const Chunk& chunk, size_t layer, Arena& arena) {
  const int64_t number = number_of(layer);
  const Arena::Tag tag(arena, Contents::kActivations, number);
  weights_.push_back(make_weights(layer, arena));
  std::vector<LinearLayer> linears;
  for (size_t i = 0; i < linears_.size(); ++i) linears.push_back(make_linear(layer, i));
  for (int64_t i = 0; i < chunk.in_flight; ++i) {
    const size_t slot = chunk.first_slot + static_cast<size_t>(i);
    in_flight_[slot].blocks.push_back(make_activations(layer, static_cast<int64_t>(slot), linears, arena));
  }
  const auto parameter = [&](const char* name) -> const ParameterSpec& {
    return layout().find(layer_parameter(number, name));
  };
  const SublayerParts parts{
      .config = local_,
      .weight = [&](const char* name) { return parameters_->full_weight(parameter(name)); },
      .gradient = [&](const char* name) { return training() ? parameters_->full_gradient(parameter(name)) : Tensor(); },
      .linear = [&](const char* name) { return linears[linear_of(name)]; }};
  blocks_.emplace_back(parts, *block_scratch_);
}

// Returns the index of a linear in the list of a block's linears.
size_t Llama::linear_of(const char* name) const {
  const auto linear =
      std::ranges::find(linears_, std::string_view(name), [](const LinearSpec& l) { return l.names.forward; });
  CHECK(linear != linears_.end(), "a block takes a linear '{}' that its sublayers do not list", name);
  return static_cast<size_t>(linear - linears_.begin());
}

BlockWeights Llama::make_weights(size_t layer, Arena& arena) {
  return {{.parameters = *parameters_,
           .linears = linears_,
           .recipe = specs_[layer].recipe,
           .layer = number_of(layer),
           .first_linear = table_index(layer, 0),
           .mode = options_.mode,
           .amaxes = amaxes_.get(),
           .stats = fp8_stats_.get(),
           .tensor = &tensor_,
           .shared = weight_memory_},
          arena};
}

LinearLayer Llama::make_linear(size_t layer, size_t i) {
  const LinearSpec& linear = linears_[i];
  const LayerSpec& spec = specs_[layer];
  Tensor gradient;
  BlockPass input_pass = BlockPass::kForward;
  if (training()) {
    gradient = linear_matrix(gradients_of(*parameters_), layout(), linear, number_of(layer));
    input_pass = made_in(linear_input(linear.input, spec.recipe), spec.recompute);
  }
  return LinearLayer({.recipe = spec.recipe,
                      .precision = options_.precision,
                      .spec = linear,
                      .weight = weights_[layer].linear(i),
                      .gradient = gradient,
                      .amaxes = amaxes_.get(),
                      .stats = fp8_stats_.get(),
                      .index = table_index(layer, i),
                      .layer = number_of(layer),
                      .scratch = linear_scratch_.get(),
                      .tensor = &tensor_,
                      .context = &sequences_,
                      .input_pass = input_pass,
                      .recomputes = training() && runs_again(layer),
                      .saves_operands = options_.splits_backward});
}

BlockActivations Llama::make_activations(size_t layer, int64_t slot, const std::vector<LinearLayer>& linears,
                                         Arena& arena) {
  const LayerSpec& spec = specs_[layer];
  const auto of_linear = [&](const char* name, const KeptOperands& kept) {
    return linears[linear_of(name)].make_activations(slot, kept, &shared_activations_, arena);
  };
  return {local_,
          options_.shape,
          {.compute = options_.precision.compute,
           .recompute = training() ? std::optional(spec.recompute) : std::nullopt,
           .reads_norms = training() && !is_fp8(spec.recipe) && tensor_.alone(),
           .of_linear = of_linear,
           .shared = shared_activations_,
           .arena = arena}};
}

void Llama::upload_rope_table() {
  const Buffer host = Buffer::host(Device::kCpu, rope_table_.bytes());
  const Tensor host_table(host.data(), DType::kFloat32, {rope_table_.dim(0), rope_table_.dim(1)});
  const BatchShape& shape = options_.shape;
  rope_table(host_table, options_.config.rope_theta, options_.config.rope_scaling, [&](int64_t row) {
    return shape.context.size == 1 ? row : shape.context.position(row, shape.whole_seq_len());
  });
  stream_->copy(rope_table_, host_table);
  stream_->synchronize();  // The host table is destroyed at the end of this scope.
}

}  // namespace octavo
