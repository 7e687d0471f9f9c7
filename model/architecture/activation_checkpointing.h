// Activation checkpointing (Chen et al., arXiv 1604.06174; selective: Korthikanti et al., arXiv 2205.05198): what a
// block keeps of its forward for its backward, and what backward makes again. Losses and gradients are the same to the
// bit, whatever is kept.
//
//   mode       blocks keep                                         made again
//   none       all                                                 nothing
//   selective  what products and attention make, residuals, rstd   norms, qk-norm with rope, swiglu, casts to FP8
//   full       their input h0                                      the block's forward up to gate_up
//   block      `ratio` of the blocks, spread evenly, as full; the others as none
//
// No mode keeps what backward has next to nothing to do for: swiglu, which its backward kernel makes on the way, and
// the cast of attention.
//
// What is not kept lies in memory that all blocks share (SharedActivations).
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "core/arena.h"
#include "model/architecture/config.h"
#include "model/architecture/linear_spec.h"
#include "model/architecture/precision.h"

namespace octavo {

// The activation_checkpointing section of the config.
struct ActivationCheckpointing {
  enum class Mode : uint8_t { kAuto, kNone, kSelective, kBlock, kFull };
  Mode mode = Mode::kAuto;  // auto: decided by the memory there is (app/memory/training_options.h)
  double ratio = 1.0;       // of block mode; no effect in the others
};

// How much of a block's forward is made again in its backward, from the least.
enum class Recompute : uint8_t { kNothing, kCheap, kBlock };

// Of block `layer` in a mode other than auto. In block mode with ratio p, block i is recomputed when
// floor((i + 1) p + 1/2) > floor(i p + 1/2), so floor(num_layers p + 1/2) of them are.
Recompute recompute_of(const ActivationCheckpointing& checkpointing, int64_t layer);

// What decides whether an activation is kept.
enum class Activation : uint8_t {
  kBlockInput,   // h0, of which all others can be made
  kOutput,       // of a product, of attention, the residual between them, and the norms' rstd
  kRotated,      // queries and keys after qk-norm and rope; rope alone happens in place
  kLinearInput,  // what a linear's weight gradient reads: the values, their gathered shares, or their FP8 columns
  kMadeAgain,    // such an input that backward makes again in every mode
};
// A linear's input under a recipe. Casting by rows takes two passes of its own, which no backward kernel makes on its
// way.
constexpr Activation linear_input_kind(Producer producer, LinearPrecision recipe) {
  const bool made_again =
      producer == Producer::kAttention || (producer == Producer::kSwiglu && traits(recipe).casts_in_one_pass);
  return made_again ? Activation::kMadeAgain : Activation::kLinearInput;
}
constexpr bool keeps(Recompute recompute, Activation activation) {
  switch (activation) {
    case Activation::kBlockInput:
      return true;
    case Activation::kOutput:
      return recompute != Recompute::kBlock;
    case Activation::kLinearInput:
    case Activation::kRotated:
      return recompute == Recompute::kNothing;
    case Activation::kMadeAgain:
      return false;
  }
  return true;
}

// Activations that all blocks share, as none of them needs them for long. By name; made by the first who asks.
class SharedActivations {
 public:
  Tensor get(const std::string& name, DType dtype, std::initializer_list<int64_t> shape, Arena& arena);

 private:
  std::map<std::string, Tensor> tensors_;
};

}  // namespace octavo
