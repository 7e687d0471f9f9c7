// The MLP sublayer of a block:
//
//   delta = down(swiglu(gate_up(norm(h))))
#pragma once

#include "model/block/sublayer.h"

namespace octavo {

// Activations that backward reads.
struct MlpActivations {
  MlpActivations(const ModelConfig& config, const BatchShape& shape, const ActivationMemory& memory);

  NormActivations norm;  // norm.h is h1. norm.linear belongs to gate_up.
  Tensor gate_up;        // [tokens, 2 * intermediate]. Backward overwrites it with its gradient.
  LinearActivations down;
};

class Mlp {
 public:
  // `swiglu` [tokens, intermediate] is memory that all blocks share.
  Mlp(const SublayerParts& parts, const Tensor& swiglu);

  // `delta` [local_tokens, hidden] is added to the residual, and is then overwritten with the output of down.
  // Recomputation ends with gate_up, from which backward makes the input of down.
  void forward(const BlockContext& context, const MlpActivations& a, const Tensor& residual, const Tensor& delta,
               BlockPass pass) const;
  void backward(const BlockContext& context, const MlpActivations& a, const SublayerBackward& args) const;
  // Computes the weight gradients of the linears from operands that backward saved (WeightGradient::kSave).
  void backward_weights(const MlpActivations& a, bool accumulate, Stream& stream) const;

  // Returns the slot for the amax of the gradient of the sublayer's output (LinearLayer::gradient_work).
  Tensor output_gradient_amax(const MlpActivations& a) const { return down_.gradient_work(a.down).amax; }

 private:
  void down_backward(const BlockContext& context, const MlpActivations& a, const SublayerBackward& args) const;

  SublayerNorm norm_;
  LinearLayer gate_up_, down_;
  Tensor swiglu_;  // Input of down. In backward it first holds its gradient, then the input again.
};

}  // namespace octavo
