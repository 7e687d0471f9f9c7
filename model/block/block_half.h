// What the two halves of a transformer block (model/block/attention.h, model/block/mlp.h) have in common. A half begins
// with a norm of the residual stream and ends with a linear whose result belongs to the residual stream:
//
//   h = residual + delta
//   delta = last linear(... op(first linear(norm(h))))
//
// The last addition is left to the next norm, which fuses it.
#pragma once

#include <functional>
#include <optional>

#include "kernels/attention/cached_sdpa.h"
#include "model/architecture/activation_checkpointing.h"
#include "model/architecture/batch_shape.h"
#include "model/architecture/config.h"
#include "model/linear/linear_layer.h"

namespace octavo {

// What every block of a pass shares.
struct BlockContext {
  const ModelConfig& config;
  SdpaShape attention;
  Tensor rope_table;    // [seq_len, head_dim] float32, of the positions of this rank's tokens
  Documents documents;  // where the shape has a document mask
  TensorGroup& tensor;
  Stream& stream;
  const ContextGroup& sequences;  // the ranks that share them
  int64_t position = 0;           // of each sequence's first token: as many as its cache holds; 0 without one
};

// What a half of one layer takes from its model.
struct HalfParts {
  const ModelConfig& config;  // the rank's local_config
  // A norm's weight, or its gradient, by the name in HalfSpec; the latter is undefined in inference.
  std::function<Tensor(const char*name)> weight, gradient;
  // A linear of the block, by its name (LinearNames::forward).
  std::function<LinearLayer(const char* name)> linear;
  SdpaCache cache = {};  // of the layer's keys and values, where text is generated
};

// Where a block's activations lie: what it keeps in memory of its own, the rest in memory that all blocks share.
struct ActivationMemory {
  DType compute;
  std::optional<Recompute> recompute;  // none in inference, which keeps nothing
  bool reads_norms;                    // backward reads the norms themselves, and not what the linears made of them
  std::function<LinearActivations(const char* name)> of_linear;  // what a linear of the block has, by its name
  SharedActivations& shared;
  Arena& arena;

  Tensor get(Activation kind, const char* name, DType dtype, std::initializer_list<int64_t> shape) const;
  // The result of a norm, input of `linear`. `name` is its own where norms do not lie in one place.
  Tensor norm(const char* name, const char* linear, std::initializer_list<int64_t> shape) const;

 private:
  bool keeps(Activation kind) const { return recompute && made_in(kind, *recompute) == BlockPass::kForward; }
};

// What the forward of a half's norm saves for backward.
struct NormActivations {
  Tensor h;                  // [share, hidden] the residual stream entering the half
  Tensor rstd;               // [share] float32
  Tensor out;                // [share, hidden] the input of a linear
  LinearActivations linear;  // what that linear has
};

// The gradient of the residual stream on its way through a half.
struct HalfBackward {
  Tensor d_h;       // [share, hidden]: in, the gradient of the half's output; out, of its input
  Tensor d_norm;    // [share, hidden] scratch
  Tensor d_h_amax;  // optional [1]: where the amax of the latter d_h goes, for the half before
  WeightGradient weight_gradient = WeightGradient::kWrite;  // of the linears; gradients of norms are always +=
};

// The norm that a half begins with; its result is the input of one linear alone.
class HalfNorm {
 public:
  HalfNorm(const HalfParts& parts, const char* name) : weight_(parts.weight(name)), d_weight_(parts.gradient(name)) {}

  // a.h = x + residual (x, without), a.out = its norm, or in place of it the cast for `linear`.
  void forward(const BlockContext& context, const NormActivations& a, const Tensor& x, const Tensor& residual,
               const LinearLayer& linear, BlockPass pass) const;
  // Where the backward of `linear` wants it: the norm of a.h, and what is made of it.
  void recompute_input(const BlockContext& context, const NormActivations& a, const LinearLayer& linear) const;
  // Adds to args.d_h what reaches it through the norm, of args.d_norm; the weight's gradient is +=.
  void backward(const BlockContext& context, const NormActivations& a, const HalfBackward& args) const;

 private:
  Tensor weight_;    // [hidden]
  Tensor d_weight_;  // [hidden] float32
};

}  // namespace octavo
