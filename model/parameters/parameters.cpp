#include "model/parameters/parameters.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "core/error.h"
#include "kernels/math/random_normal.h"
#include "kernels/math/random_numbers.h"

namespace octavo {

namespace {

// Standard deviation of initial weights, the default of Hugging Face's Llama configs (initializer_range).
constexpr double kInitStd = 0.02;

uint64_t hash_name(uint64_t seed, std::string_view name) {
  uint64_t hash = mix_bits(seed);
  for (const char c : name) hash = mix_bits(hash ^ static_cast<unsigned char>(c));
  return hash;
}

}  // namespace

MatrixRange ParameterSpec::range(int64_t begin) const {
  if (shape.size() < 2) return {.begin = begin};
  return {.first_index = row_begin * whole_shape[1] + column_begin,
          .begin = begin,
          .columns = shape[1],
          .row_stride = whole_shape[1]};
}

ColumnRange ParameterSpec::columns() const {
  if (shape.size() < 2 || shape[1] == whole_shape[1]) return {};
  return {column_begin, column_begin + shape[1]};
}

void ParameterLayout::begin_unit(std::string name, int64_t layer) {
  units_.push_back({.name = std::move(name), .begin = total_elements_, .end = total_elements_, .layer = layer});
}

void ParameterLayout::end_unit() {
  align_next();
  units_.back().end = total_elements_;
}

void ParameterLayout::add(ParameterSpec spec) {
  spec.offset = total_elements_;
  spec.unit = units_.size() - 1;
  total_elements_ += spec.numel() + spec.padding_rows * spec.shape.back();
  first_of_name_.emplace(spec.name, specs_.size());
  specs_.push_back(std::move(spec));
}

ParameterSpec ParameterLayout::share_of(Divided divided, std::string name, int64_t rows, int64_t columns) const {
  ParameterSpec spec{
      .name = std::move(name), .shape = {rows, columns}, .init_std = kInitStd, .whole_shape = {rows, columns}};
  int64_t& share = spec.shape[divided == Divided::kOutputs ? 0 : 1];
  share /= tensor_.size;
  (divided == Divided::kOutputs ? spec.row_begin : spec.column_begin) = tensor_.rank * share;
  return spec;
}

void ParameterLayout::align_next() {
  total_elements_ = (total_elements_ + kParameterAlignment - 1) / kParameterAlignment * kParameterAlignment;
}

void ParameterLayout::add_norms(const ModelConfig& c) {
  begin_unit("norms");
  units_.back().is_norms = true;
  const auto add_norm = [&](std::string name, int64_t width) {
    add({.name = std::move(name), .shape = {width}, .whole_shape = {width}, .counts = tensor_.rank == 0});
  };
  const std::vector<SublayerSpec> sublayers = block_sublayers(c);
  for (const int64_t layer : layers_) {
    for (const SublayerSpec& sublayer : sublayers) {
      for (const NormSpec& norm : sublayer.norms) {
        add_norm(layer_parameter(layer, norm.name), norm.width);
        align_next();
      }
    }
  }
  if (has_head()) add_norm("model.norm.weight", c.hidden_size);
  end_unit();
}

void ParameterLayout::add_block(const std::vector<LinearSpec>& linears, const ModelConfig& c, int64_t layer) {
  int64_t index = layer * std::ssize(linears);
  begin_unit(fmt::format("block {}", layer), layer);
  for (const LinearSpec& linear : linears) add_linear(linear, c, layer, index++);
  end_unit();
}

void ParameterLayout::add_linear(const LinearSpec& linear, const ModelConfig& c, int64_t layer, int64_t index) {
  // The linears that write into the residual stream, one per sublayer, start with smaller weights, so that the variance
  // of the residual stream does not grow with the depth (Radford et al., GPT-2, section 2.3).
  const double residual_std = kInitStd / std::sqrt(2.0 * static_cast<double>(c.num_layers));
  const int64_t columns = linear.shape.in;
  for (const MatrixSpec& matrix : linear.matrices) {
    const std::string name = layer_parameter(layer, matrix.name);
    if (matrix.of_kv_heads) {
      add_kv_heads(name, c, index);
      continue;
    }
    ParameterSpec spec = share_of(linear.shape.divided, name, matrix.rows, columns);
    if (linear.shape.divided == Divided::kInputs) spec.init_std = residual_std;
    spec.linear = index;
    add(std::move(spec));
  }
  align_next();
}

// Adjacent heads of the whole parameter with equal `counts` form one part.
void ParameterLayout::add_kv_heads(const std::string& name, const ModelConfig& c, int64_t linear) {
  const std::vector<KvHead> heads = local_kv_heads(c, tensor_);
  for (size_t first = 0; first < heads.size();) {
    size_t end = first + 1;
    while (end < heads.size() && heads[end].head == heads[end - 1].head + 1 && heads[end].counts == heads[first].counts)
      ++end;
    const int64_t rows = static_cast<int64_t>(end - first) * c.head_dim;
    add({.name = name,
         .shape = {rows, c.hidden_size},
         .init_std = kInitStd,
         .linear = linear,
         .whole_shape = {c.num_kv_heads * c.head_dim, c.hidden_size},
         .row_begin = heads[first].head * c.head_dim,
         .counts = heads[first].counts});
    first = end;
  }
}

void ParameterLayout::add_table(const char* unit, const char* name, bool counts) {
  const int64_t vocab = config_.vocab_size, hidden = config_.hidden_size;
  const int64_t rows = local_config(config_, tensor_).vocab_size;
  const int64_t begin = std::min(tensor_.rank * rows, vocab), end = std::min(begin + rows, vocab);
  begin_unit(unit);
  lm_head_ = specs_.size();
  add({.name = name,
       .shape = {end - begin, hidden},
       .init_std = kInitStd,
       .whole_shape = {vocab, hidden},
       .row_begin = begin,
       .padding_rows = begin + rows - end,
       .counts = counts});
  end_unit();
}

ParameterLayout::ParameterLayout(const ModelConfig& config, TensorRank tensor, StageLayers stage)
    : config_(config), tensor_(tensor), stage_(std::move(stage)) {
  if (stage_.empty()) stage_.push_back({0, config.num_layers});
  for (int64_t before = 0; const auto& [begin, end] : stage_) {
    CHECK(before <= begin && begin < end && end <= config.num_layers,
          "the stage has blocks {} to {}, expected a range of the {} blocks of the model after block {}", begin, end,
          config.num_layers, before);
    for (int64_t layer = begin; layer < end; ++layer) layers_.push_back(layer);
    before = end;
  }
  const bool tied = config.tie_word_embeddings;
  add_norms(config);
  // If the table is tied, the last stage has a replica of it, which does not count (ParameterSpec::counts).
  if (has_embedding() || (has_head() && tied)) add_table("embedding", "model.embed_tokens.weight", has_embedding());
  first_block_unit_ = units_.size();
  const std::vector<LinearSpec> linears = block_linears(config);
  for (const int64_t layer : layers_) add_block(linears, config, layer);
  if (has_head() && !tied) add_table("lm_head", "lm_head.weight", true);
}

size_t ParameterLayout::block_unit(int64_t layer) const {
  const auto found = std::lower_bound(layers_.begin(), layers_.end(), layer);
  return first_block_unit_ + static_cast<size_t>(found - layers_.begin());
}

const ParameterSpec& ParameterLayout::find(std::string_view name) const {
  const auto found = first_of_name_.find(std::string(name));
  CHECK(found != first_of_name_.end(), "the model has no parameter {}", name);
  return specs_[found->second];
}

Tensor parameter_view(const Tensor& flat, const ParameterSpec& spec, int64_t begin) {
  const int64_t rows = spec.shape[0] + spec.padding_rows;
  const int64_t columns = spec.shape.size() == 2 ? spec.shape[1] : 1;
  const Tensor slice = flat.rows(spec.offset - begin, spec.offset - begin + rows * columns);
  return spec.shape.size() == 2 ? slice.view({rows, columns}) : slice;
}

std::string layer_parameter(int64_t layer, std::string_view name) {
  std::string text = "model.layers." + std::to_string(layer) + ".";
  return text += name;
}

Tensor linear_matrix(const ParameterView& view, const ParameterLayout& layout, const LinearSpec& linear,
                     int64_t layer) {
  const Tensor first = view(layout.find(layer_parameter(layer, linear.matrices.front().name)));
  return {first.raw(), first.dtype(), {linear.shape.out, linear.shape.in}};
}

void initialize_parameter(const ParameterSpec& spec, uint64_t seed, int64_t begin, const Tensor& out, Stream& stream) {
  const RandomNormal values{.out = out,
                            .key = hash_name(seed, spec.name),
                            .mean = spec.init_std == 0 ? 1.0f : 0.0f,
                            .deviation = static_cast<float>(spec.init_std),
                            .range = spec.range(begin)};
  random_normal(values, stream);
}

}  // namespace octavo
