#include "model/block/block.h"

#include <algorithm>

#include "core/profiler.h"
#include "kernels/layers/rms_norm.h"
#include "model/architecture/block_spec.h"

namespace octavo {

BlockScratch::BlockScratch(const ModelConfig& config, const BatchShape& shape, DType compute, bool gradients,
                           Arena& arena)
    : swiglu(arena.allocate("swiglu", compute, {shape.tokens(), config.intermediate_size}, Lifetime::kBlock)) {
  if (gradients)
    d_norm = arena.allocate("gradient of norm", compute, {shape.local_tokens(), config.hidden_size}, Lifetime::kBlock);
  attention.emplace(config, shape, compute, gradients, arena);
}

Block::Block(const SublayerParts& parts, const BlockScratch& scratch)
    : attention_(parts, *scratch.attention), mlp_(parts, scratch.swiglu), d_norm_(scratch.d_norm) {}

void Block::forward(const BlockContext& c, const BlockActivations& a, const Tensor& residual,
                    const Tensor& delta) const {
  {
    const ProfilerRange range(c.stream, "attention");
    attention_.forward(c, a.attention, residual, delta, BlockPass::kForward);
  }
  const ProfilerRange range(c.stream, "mlp");
  mlp_.forward(c, a.mlp, a.h0(), delta, BlockPass::kForward);
}

// The attention sublayer writes its output to d_norm_, which holds no gradient yet.
void Block::forward_again(const BlockContext& c, const BlockActivations& a) const {
  const ProfilerRange range(c.stream, "recompute");
  attention_.forward(c, a.attention, {}, d_norm_, BlockPass::kRecompute);
  mlp_.forward(c, a.mlp, a.h0(), d_norm_, BlockPass::kRecompute);
}

void Block::backward(const BlockContext& c, const BlockActivations& a, const Tensor& d_h, const Tensor& d_h_amax,
                     WeightGradient weight_gradient) const {
  {
    const ProfilerRange range(c.stream, "mlp");
    const Tensor d_h1_amax = attention_.output_gradient_amax(a.attention);
    mlp_.backward(c, a.mlp, {.d_h = d_h, .d_norm = d_norm_, .d_h_amax = d_h1_amax, .weight_gradient = weight_gradient});
  }
  const ProfilerRange range(c.stream, "attention");
  attention_.backward(c, a.attention,
                      {.d_h = d_h, .d_norm = d_norm_, .d_h_amax = d_h_amax, .weight_gradient = weight_gradient});
}

void Block::backward_weights(const BlockActivations& a, bool accumulate, Stream& stream) const {
  const ProfilerRange range(stream, "weight gradients");
  mlp_.backward_weights(a.mlp, accumulate, stream);
  attention_.backward_weights(a.attention, accumulate, stream);
}

int64_t block_workspace_bytes(const ModelConfig& config, const BatchShape& shape, const PrecisionConfig& precision,
                              Stream& stream) {
  int64_t bytes = std::max(attention_workspace_bytes(config, shape, precision.compute, stream),
                           rms_norm_backward_workspace_bytes(config.hidden_size, stream));
  for (const LinearSpec& linear : block_linears(config, shape)) {
    for (const LinearPrecision recipe : {precision.linear, LinearPrecision::kBFloat16}) {
      bytes = std::max(bytes, LinearLayer::workspace_bytes(recipe, linear.shape, precision.compute, stream));
    }
  }
  return bytes;
}

}  // namespace octavo
