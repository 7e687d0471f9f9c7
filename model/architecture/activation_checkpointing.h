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
#include "model/architecture/activations.h"

namespace octavo {

// The activation_checkpointing section of the config.
struct ActivationCheckpointing {
  enum class Mode : uint8_t { kAuto, kNone, kSelective, kBlock, kFull };
  Mode mode = Mode::kAuto;  // auto: decided by the memory there is (app/memory/training_options.h)
  double ratio = 1.0;       // of block mode; no effect in the others
};

// Of block `layer` in a mode other than auto. In block mode with ratio p, block i is recomputed when
// floor((i + 1) p + 1/2) > floor(i p + 1/2), so floor(num_layers p + 1/2) of them are.
Recompute recompute_of(const ActivationCheckpointing& checkpointing, int64_t layer);

// Activations that all blocks share, as none of them needs them for long. By name; made by the first who asks.
class SharedActivations {
 public:
  Tensor get(const std::string& name, DType dtype, std::initializer_list<int64_t> shape, Arena& arena);

 private:
  std::map<std::string, Tensor> tensors_;
};

}  // namespace octavo
