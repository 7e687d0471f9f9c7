// The MLP half of a block:
//
//   delta = down(swiglu(gate_up(norm(h))))
#pragma once

#include "model/block/block_half.h"

namespace octavo {

// What forward saves for backward.
struct MlpActivations {
  MlpActivations(const ModelConfig& config, const BatchShape& shape, const ActivationMemory& memory);

  NormActivations norm;  // norm.h is h1, norm.linear is of gate_up
  Tensor gate_up;        // [tokens, 2 * intermediate]; backward overwrites it with its gradient
  LinearActivations down;
};

// What lives within one forward, or backward; all blocks share it.
struct MlpScratch {
  MlpScratch(const ModelConfig& config, const BatchShape& shape, DType compute, Arena& arena);

  Tensor swiglu;  // [tokens, intermediate] input of down; in backward its gradient, and then it again
};

class Mlp {
 public:
  Mlp(const HalfParts& parts, const MlpScratch& scratch);

  // `delta` [share, hidden]: in, what to add to the residual; out, the down product. Again, it ends with gate_up: of
  // what comes behind, backward needs no more than its own kernel makes.
  void forward(const BlockContext& context, const MlpActivations& a, const Tensor& residual, const Tensor& delta,
               BlockPass pass) const;
  void backward(const BlockContext& context, const MlpActivations& a, const HalfBackward& args) const;
  // Computes the weight gradients of which backward has saved the operands (WeightGradient::kSave).
  void backward_weights(const MlpActivations& a, bool accumulate, Stream& stream) const;

  // Where the amax of the gradient of the half's output goes; see LinearLayer.
  Tensor output_gradient_amax(const MlpActivations& a) const { return down_.gradient_target(a.down).amax; }

 private:
  void down_backward(const BlockContext& context, const MlpActivations& a, const HalfBackward& args) const;

  HalfNorm norm_;
  LinearLayer gate_up_, down_;
  MlpScratch scratch_;
};

}  // namespace octavo
