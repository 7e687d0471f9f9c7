// The operands of a block's linears: the op that makes each of them, and what this op does for the linear.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// The op that makes the input of a linear, or the gradient of its output.
enum class Producer : uint8_t { kNorm, kAttention, kSwiglu, kRopeBackward, kSwigluBackward, kNormBackward };

struct ProducerTraits {
  Producer producer;
  bool measures;        // The kernel also computes the amax of its result.
  bool casts;           // The kernel can write FP8 operands in place of its result, if it has their scales.
  bool computes_twice;  // The kernel can compute its result twice: to measure it, and to cast it with this amax.
};

// clang-format off
inline constexpr ProducerTraits kProducers[] = {
    // producer                 measures casts  twice
    {Producer::kNorm,           true,    true,  true},   // rms_norm_forward: inputs of qkv and gate_up
    {Producer::kAttention,      false,   false, false},  // sdpa_forward: input of o
    {Producer::kSwiglu,         true,    true,  false},  // swiglu_forward: input of down
    {Producer::kRopeBackward,   true,    true,  true},   // rope, qk_norm_rope_backward: output gradient of qkv
    {Producer::kSwigluBackward, true,    true,  true},   // swiglu_backward: output gradient of gate_up
    {Producer::kNormBackward,   true,    false, false},  // rms_norm_backward: output gradients of o and down, which the
                                                         // residual stream needs as values
};
// clang-format on
constexpr const ProducerTraits& traits(Producer producer) { return kProducers[static_cast<size_t>(producer)]; }

}  // namespace octavo
