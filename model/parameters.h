// The parameters of a Llama model: names, shapes, order, initial values, and the flat buffers that hold them.
//
// Parameters carry their Hugging Face names. They are laid out unit by unit (the embedding, each block, the head) in
// one flat order; within a block the norms come first and q, k, v as well as gate, up are neighbours, so that the
// packed products see one [q + 2 kv, hidden] and one [2 ffn, hidden] matrix. Every parameter but those inside such a
// matrix starts at a multiple of kParameterAlignment elements; padding is zero and stays zero.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/arena.h"
#include "model/config.h"

namespace octavo {

inline constexpr int64_t kParameterAlignment = 64;

struct ParameterSpec {
  std::string name;            // "model.layers.3.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // [out, in] or [hidden]
  int64_t offset = 0;          // first element in the flat order
  double init_std = 0;         // normal(0, init_std); 0: all ones (norm weights)
  int64_t numel() const;
  bool decayed() const { return shape.size() >= 2; }  // by weight decay
};

// The layout of all parameters of a model.
class ParameterLayout {
 public:
  explicit ParameterLayout(const ModelConfig& config);

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  const ParameterSpec& find(std::string_view name) const;     // throws when there is none
  int64_t total_elements() const { return total_elements_; }  // padding included

 private:
  void add(std::string name, std::vector<int64_t> shape, double init_std);
  void align_next();
  void add_block(const ModelConfig& config, int64_t layer);

  std::vector<ParameterSpec> specs_;
  int64_t total_elements_ = 0;
};

// Flat buffers in layout order. float32 `master` and `grad`; `weight` in the compute dtype is what the products read:
// it aliases `master` when the compute dtype is float32.
enum class LlamaMode : uint8_t { kTraining, kInference };  // inference has no gradients

struct ParameterBuffers {
  ParameterBuffers(const ParameterLayout& layout, DType compute, LlamaMode mode, Arena& arena);

  Tensor master;
  Tensor grad;  // in training
  Tensor weight;
};

// The elements of one parameter within a flat buffer, as a 1- or 2-dimensional tensor.
Tensor parameter_view(const Tensor& flat, const ParameterSpec& spec);

// Writes elements [begin, end) of a parameter's initial value to `out`. Each element is a function of (seed, name,
// index) alone (a counter-based generator), so any number of ranks and any sharding start from the same model.
void initialize_parameter(const ParameterSpec& spec, uint64_t seed, int64_t begin, int64_t end, float* out);

}  // namespace octavo
