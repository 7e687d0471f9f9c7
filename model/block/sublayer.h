// Shared parts of the two sublayers of a transformer block (model/block/attention.h, model/block/mlp.h). A sublayer
// begins with a norm of the residual stream, and ends with a linear whose output is added to the residual stream:
//
//   h = residual + delta
//   delta = last linear(... op(first linear(norm(h))))
//
// The next norm computes the sum residual + delta, because its kernel can fuse the addition.
#pragma once

#include <functional>
#include <optional>

#include "kernels/attention/sdpa.h"
#include "kernels/layers/rms_norm.h"
#include "model/architecture/activation_checkpointing.h"
#include "model/architecture/block_spec.h"
#include "model/architecture/config.h"
#include "model/linear/linear_layer.h"

namespace octavo {

// The values that all blocks share in a forward or backward.
struct BlockContext {
  const ModelConfig& config;
  SdpaShape attention;
  Tensor rope_table;    // [seq_len, head_dim] float32, for the positions of this rank's tokens.
  Documents documents;  // Empty unless the shape has a document mask.
  TensorGroup& tensor;
  Stream& stream;
  ContextGroup& sequences;             // Ranks that share each sequence.
  ResultObserver* observer = nullptr;  // Observer of the results. Usually null.
};

// The parts of a sublayer of one layer, which the model owns.
struct SublayerParts {
  const ModelConfig& config;  // local_config of the rank.
  // Return the weight of a norm, and its gradient, by the name in NormSpec. The gradient is undefined in inference.
  std::function<Tensor(const char*name)> weight, gradient;
  // Returns a linear of the block by its name (LinearNames::forward).
  std::function<LinearLayer(const char* name)> linear;
};

// Memory for the activations of a block. Saved activations have their own memory. The others lie in memory that all
// blocks share.
struct ActivationMemory {
  DType compute;
  std::optional<Recompute> recompute;  // None in inference, where nothing is saved.
  bool reads_norms;                    // Whether weight gradients read the outputs of norms, and not LinearInput.
  // Returns the tensors of a linear of the block.
  std::function<LinearActivations(const char* name, const KeptOperands& kept)> of_linear;
  SharedActivations& shared;
  Arena& arena;

  Tensor get(Activation kind, const char* name, DType dtype, std::initializer_list<int64_t> shape) const;
  // Returns memory for the output of the norm `name`, which is the input of `linear`.
  Tensor norm(const char* name, const char* linear, std::initializer_list<int64_t> shape) const;
  // Return the tensor if it has its own memory, and an undefined tensor otherwise.
  Tensor if_kept(Activation kind, const Tensor& tensor) const { return keeps(kind) ? tensor : Tensor(); }
  Tensor norm_if_kept(const Tensor& norm) const { return keeps_norms() ? norm : Tensor(); }

 private:
  bool keeps(Activation kind) const { return recompute && made_in(kind, *recompute) == BlockPass::kForward; }
  bool keeps_norms() const { return reads_norms && keeps(Activation::kNormInput); }
};

// Activations of the norm of a sublayer.
struct NormActivations {
  Tensor h;                  // [local_tokens, hidden] input of the sublayer
  Tensor rstd;               // [local_tokens] float32
  Tensor out;                // [local_tokens, hidden] output of the norm, input of a linear
  LinearActivations linear;  // tensors of the linear that reads `out`
};

struct SublayerBackward {
  // [local_tokens, hidden] input: gradient of the sublayer's output. Output: gradient of the sublayer's input.
  Tensor d_h;
  Tensor d_norm;    // [local_tokens, hidden] scratch
  Tensor d_h_amax;  // [1] = max(itself, amax of the output d_h). Undefined: not measured.
  // Says whether backward writes, adds or saves the weight gradients of linears. The weight gradients of norms are
  // always +=.
  WeightGradient weight_gradient = WeightGradient::kWrite;
};

// The norm at the beginning of a sublayer. Only one linear reads its output.
class SublayerNorm {
 public:
  SublayerNorm(const SublayerParts& parts, const char* name)
      : name_(name), weight_(parts.weight(name)), d_weight_(parts.gradient(name)) {}

  // Computes a.h = x + residual, or a.h = x if `residual` is undefined, and a.out = norm(a.h). If `linear` wants
  // a cast from this kernel (LinearLayer::input_work), the kernel writes it in place of a.out.
  void forward(const BlockContext& context, const NormActivations& a, const Tensor& x, const Tensor& residual,
               const LinearLayer& linear, BlockPass pass) const;
  // Computes norm(a.h) again and makes LinearInput, if `linear` recomputes its input in backward.
  void recompute_input(const BlockContext& context, const NormActivations& a, const LinearLayer& linear) const;
  // Adds the gradient that reaches a.h through the norm to args.d_h. args.d_norm is the gradient of a.out. The gradient
  // of the weight is +=.
  void backward(const BlockContext& context, const NormActivations& a, const SublayerBackward& args) const;

 private:
  void compute(const BlockContext& context, const NormActivations& a, RmsNormForward args, const LinearLayer& linear,
               BlockPass pass) const;

  const char* name_;  // Name in NormSpec.
  Tensor weight_;     // [hidden]
  Tensor d_weight_;   // [hidden] float32
};

}  // namespace octavo
