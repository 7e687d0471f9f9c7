// Activation checkpointing (Chen et al., arXiv 1604.06174; selective: Korthikanti et al., arXiv 2205.05198): blocks
// save only some activations of their forward, and recompute the others in backward. Losses and gradients are
// bit-identical in all modes.
//
//   mode       blocks save                                    blocks recompute
//   none       all activations                                nothing
//   selective  results of matmuls and attention, h1, rstd     norms, qk-norm with rope, swiglu, casts to FP8
//   full       their input h0                                 the forward up to gate_up
//   block      `ratio` of the blocks, spread evenly, save the activations of mode full, the others those of mode none
//
// All modes recompute two inputs of linears that backward gets almost for free: the output of swiglu, which the kernel
// of its backward also computes, and the cast of attention's output. As an exception, mode none under fp8_rowwise saves
// the cast of swiglu's output. kActivationPasses lists which pass makes each activation.
//
// Activations that are not saved lie in memory that all blocks share (SharedActivations).
//
// kProducers says which kernel measures and casts an operand of a linear.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>

#include "core/arena.h"
#include "model/architecture/precision.h"

namespace octavo {

// The op that makes the input of a linear, or the gradient of its output.
enum class Producer : uint8_t { kNorm, kAttention, kSwiglu, kRopeBackward, kSwigluBackward, kNormBackward };

// How a kernel can cast a result whose amax is not known before the kernel runs.
enum class OwnScale : uint8_t {
  kNone,   // The kernel cannot cast with its own scale. It writes the result, and another kernel casts it.
  kTwice,  // It computes the result twice: to measure it, and to cast it with this amax.
  kBound,  // It casts a gradient to e5m2 with an upper bound of the amax.
};

struct ProducerTraits {
  Producer producer;
  bool measures;  // Whether the kernel also computes the amax of its result.
  bool casts;     // Whether the kernel can write FP8 operands in place of its result, if their scales are known.
  OwnScale own_scale;
};

// clang-format off
inline constexpr ProducerTraits kProducers[] = {
    // producer                 measures casts  own scale
    {Producer::kNorm,           true,    true,  OwnScale::kTwice},  // rms_norm_forward: inputs of qkv and gate_up
    {Producer::kAttention,      false,   false, OwnScale::kNone},   // sdpa_forward: input of o
    {Producer::kSwiglu,         true,    true,  OwnScale::kNone},   // swiglu_forward: input of down
    {Producer::kRopeBackward,   true,    true,  OwnScale::kTwice},  // rope, qk_norm_rope_backward: output gradient of qkv
    {Producer::kSwigluBackward, true,    true,  OwnScale::kBound},  // swiglu_backward: output gradient of gate_up
    {Producer::kNormBackward,   true,    false, OwnScale::kNone},   // rms_norm_backward: output gradients of o and down,
                                                                    // which the residual stream needs as values
};
// clang-format on
constexpr const ProducerTraits& traits(Producer producer) { return kProducers[static_cast<size_t>(producer)]; }

// Part of a block's forward that its backward computes again.
enum class Recompute : uint8_t { kNothing, kCheap, kBlock };

// The pass of a block that makes an activation for backward. Activations of the forward lie in memory of the block and
// its micro-batch, the others in memory that all blocks share.
enum class BlockPass : uint8_t {
  kForward,
  kRecompute,  // the forward that backward queues again, before all else
  kBackward,   // backward, just before the op that reads the activation
};

// The activations of a block that its backward reads. The input of a linear is in the form that its weight gradient
// reads: the transposed cast in FP8, and otherwise the tensor itself, gathered if each rank has a share of its tokens.
enum class Activation : uint8_t {
  kBlockInput,         // h0
  kOutput,             // results of matmuls and attention, h1, rstd of the norms
  kRotated,            // queries and keys after qk-norm and rope. Unused without qk-norm: rope works in place.
  kNormInput,          // inputs of qkv and gate_up, from a norm
  kAttentionInput,     // input of o, from attention
  kSwigluInput,        // input of down, from swiglu
  kSwigluRowwiseInput  // input of down, from swiglu, in a recipe that cannot cast it in one pass
};

struct ActivationTraits {
  Activation activation;
  std::array<BlockPass, 3> made_in;  // by Recompute
};

// clang-format off
inline constexpr ActivationTraits kActivationPasses[] = {
    // activation                       Recompute: kNothing        kCheap                 kBlock
    {Activation::kBlockInput,         {BlockPass::kForward,  BlockPass::kForward,  BlockPass::kForward}},
    {Activation::kOutput,             {BlockPass::kForward,  BlockPass::kForward,  BlockPass::kRecompute}},
    {Activation::kRotated,            {BlockPass::kForward,  BlockPass::kBackward, BlockPass::kRecompute}},  // qk_norm_rope_forward
    {Activation::kNormInput,          {BlockPass::kForward,  BlockPass::kBackward, BlockPass::kRecompute}},  // rms_norm_forward
    {Activation::kAttentionInput,     {BlockPass::kBackward, BlockPass::kBackward, BlockPass::kBackward}},   // quantize
    {Activation::kSwigluInput,        {BlockPass::kBackward, BlockPass::kBackward, BlockPass::kBackward}},   // swiglu_backward
    {Activation::kSwigluRowwiseInput, {BlockPass::kForward,  BlockPass::kBackward, BlockPass::kBackward}},   // swiglu_forward, quantize
};
// clang-format on

constexpr BlockPass made_in(Activation activation, Recompute recompute) {
  return kActivationPasses[static_cast<size_t>(activation)].made_in[static_cast<size_t>(recompute)];
}

// Returns the activation that the weight gradient of a linear reads. `producer` is the producer of the linear's input.
constexpr Activation linear_input(Producer producer, LinearPrecision recipe) {
  if (producer == Producer::kNorm) return Activation::kNormInput;
  if (producer == Producer::kAttention) return Activation::kAttentionInput;
  return casts_in_one_pass(recipe) ? Activation::kSwigluInput : Activation::kSwigluRowwiseInput;
}

// The activation_checkpointing section of the config.
struct ActivationCheckpointing {
  enum class Mode : uint8_t { kAuto, kNone, kSelective, kBlock, kFull };
  Mode mode = Mode::kAuto;  // kAuto chooses a mode by the memory of the device (app/resolve/memory_choice.h).
  double ratio = 1.0;       // Share of the blocks that mode block recomputes. Other modes ignore it.
};

// Activations that all blocks share, because each block needs them only for a short time. The first call of get() with
// a name allocates the tensor, which later calls return.
// Requires: all calls with a name have the same dtype and shape.
class SharedActivations {
 public:
  Tensor get(const std::string& name, DType dtype, std::initializer_list<int64_t> shape, Arena& arena) {
    Tensor& tensor = tensors_[name];
    if (!tensor.defined()) tensor = arena.allocate("shared activations " + name, dtype, shape, Lifetime::kBlock);
    expect_tensor(tensor, name.c_str(), dtype, shape);
    return tensor;
  }

 private:
  std::map<std::string, Tensor> tensors_;
};

}  // namespace octavo
