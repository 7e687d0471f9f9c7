#include "model/parameters.h"

#include <cmath>

#include "core/error.h"
#include "kernels/random_normal.h"
#include "kernels/random_numbers.h"

namespace octavo {

namespace {

constexpr double kInitStd = 0.02;  // as the Llama configs of Hugging Face (initializer_range)

uint64_t hash_name(uint64_t seed, std::string_view name) {
  uint64_t hash = mix_bits(seed);
  for (const char c : name) hash = mix_bits(hash ^ static_cast<unsigned char>(c));
  return hash;
}

}  // namespace

int64_t ParameterSpec::numel() const {
  int64_t count = 1;
  for (const int64_t d : shape) count *= d;
  return count;
}

int64_t ParameterSpec::whole_index(int64_t i) const {
  if (shape.size() < 2) return i;
  return (row_begin + i / shape[1]) * whole_shape[1] + column_begin + i % shape[1];
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
  total_elements_ += spec.numel();
  first_of_name_.emplace(spec.name, specs_.size());
  specs_.push_back(std::move(spec));
}

ParameterLayout::Part ParameterLayout::rows_part(int64_t rows, int64_t columns) const {
  const int64_t share = rows / tensor_.size;
  return {tensor_.rank * share, share, 0, columns, true};
}

ParameterLayout::Part ParameterLayout::columns_part(int64_t rows, int64_t columns) const {
  const int64_t share = columns / tensor_.size;
  return {0, rows, tensor_.rank * share, share, true};
}

void ParameterLayout::add_matrix(std::string name, std::vector<int64_t> whole_shape, const Part& part, double init_std,
                                 int64_t linear) {
  add({.name = std::move(name),
       .shape = {part.rows, part.columns},
       .init_std = init_std,
       .linear = linear,
       .whole_shape = std::move(whole_shape),
       .row_begin = part.row_begin,
       .column_begin = part.column_begin,
       .counts = part.counts});
}

void ParameterLayout::align_next() {
  total_elements_ = (total_elements_ + kParameterAlignment - 1) / kParameterAlignment * kParameterAlignment;
}

void ParameterLayout::add_norms(const ModelConfig& c) {
  begin_unit("norms");
  units_.back().is_norms = true;
  const auto add_norm = [&](std::string name) {
    add({.name = std::move(name),
         .shape = {c.hidden_size},
         .whole_shape = {c.hidden_size},
         .counts = tensor_.rank == 0});
  };
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    for (const char* name : {"input_layernorm", "post_attention_layernorm"}) {
      add_norm(fmt::format("model.layers.{}.{}.weight", layer, name));
      align_next();
    }
  }
  add_norm("model.norm.weight");
  end_unit();
}

void ParameterLayout::add_block(const ModelConfig& c, int64_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const int64_t qkv = layer * kLinearsPerBlock;
  const int64_t o = qkv + 1;
  const int64_t gate_up = qkv + 2;
  const int64_t down = qkv + 3;
  // The two products that write into the residual stream start smaller, so that its variance at the last layer does not
  // grow with the depth (Radford et al., GPT-2, section 2.3).
  const double residual_std = kInitStd / std::sqrt(2.0 * static_cast<double>(c.num_layers));
  begin_unit(fmt::format("block {}", layer), layer);
  const int64_t hidden = c.hidden_size;
  const auto rows = [&](const char* name, int64_t count, int64_t linear) {
    add_matrix(prefix + name, {count, hidden}, rows_part(count, hidden), kInitStd, linear);
  };
  const auto columns = [&](const char* name, int64_t count, int64_t linear) {
    add_matrix(prefix + name, {hidden, count}, columns_part(hidden, count), residual_std, linear);
  };
  rows("self_attn.q_proj.weight", c.attention_width(), qkv);
  add_kv_heads(prefix + "self_attn.k_proj.weight", c, qkv);
  add_kv_heads(prefix + "self_attn.v_proj.weight", c, qkv);
  align_next();
  columns("self_attn.o_proj.weight", c.attention_width(), o);
  align_next();
  rows("mlp.gate_proj.weight", c.intermediate_size, gate_up);
  rows("mlp.up_proj.weight", c.intermediate_size, gate_up);
  align_next();
  columns("mlp.down_proj.weight", c.intermediate_size, down);
  end_unit();
}

// Neighbours in the whole parameter that are treated alike are one part.
void ParameterLayout::add_kv_heads(const std::string& name, const ModelConfig& c, int64_t linear) {
  const std::vector<KvHead> heads = local_kv_heads(c, tensor_);
  for (size_t first = 0; first < heads.size();) {
    size_t end = first + 1;
    while (end < heads.size() && heads[end].head == heads[end - 1].head + 1 && heads[end].counts == heads[first].counts)
      ++end;
    const int64_t rows = static_cast<int64_t>(end - first) * c.head_dim;
    add_matrix(name, {c.num_kv_heads * c.head_dim, c.hidden_size},
               {heads[first].head * c.head_dim, rows, 0, c.hidden_size, heads[first].counts}, kInitStd, linear);
    first = end;
  }
}

ParameterLayout::ParameterLayout(const ModelConfig& config, TensorRank tensor) : tensor_(tensor) {
  const auto add_table = [&](const char* name) {
    lm_head_ = specs_.size();
    add_matrix(name, {config.vocab_size, config.hidden_size}, rows_part(config.vocab_size, config.hidden_size),
               kInitStd);
  };
  add_norms(config);
  begin_unit("embedding");
  add_table("model.embed_tokens.weight");
  end_unit();
  for (int64_t layer = 0; layer < config.num_layers; ++layer) add_block(config, layer);
  if (config.tie_word_embeddings) return;
  begin_unit("lm_head");
  add_table("lm_head.weight");
  end_unit();
}

const ParameterSpec& ParameterLayout::find(std::string_view name) const {
  const auto found = first_of_name_.find(std::string(name));
  CHECK(found != first_of_name_.end(), "the model has no parameter {}", name);
  return specs_[found->second];
}

Tensor parameter_view(const Tensor& flat, const ParameterSpec& spec, int64_t begin) {
  const Tensor slice = flat.rows(spec.offset - begin, spec.offset - begin + spec.numel());
  return spec.shape.size() == 2 ? slice.view({spec.shape[0], spec.shape[1]}) : slice;
}

void initialize_parameter(const ParameterSpec& spec, uint64_t seed, int64_t begin, const Tensor& out, Stream& stream) {
  RandomNormal values{.out = out,
                      .key = hash_name(seed, spec.name),
                      .mean = spec.init_std == 0 ? 1.0f : 0.0f,
                      .deviation = static_cast<float>(spec.init_std),
                      .begin = begin};
  if (spec.shape.size() == 2) {
    values.first_index = spec.whole_index(0);
    values.columns = spec.shape[1];
    values.row_stride = spec.whole_shape[1];
  }
  random_normal(values, stream);
}

}  // namespace octavo
