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
// All modes recompute two inputs that backward gets almost for free: the output of swiglu, which the kernel of its
// backward also computes, and the cast of attention's output. Mode none under fp8_rowwise is the exception, which saves
// the cast of swiglu. model/architecture/activations.h has the table.
//
// Activations that are not saved lie in memory that all blocks share (SharedActivations).
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
  Mode mode = Mode::kAuto;  // kAuto chooses a mode by the memory of the device (app/memory/memory_choice.h).
  double ratio = 1.0;       // Share of the blocks that mode block recomputes. Other modes ignore it.
};

// Returns how much block `layer` recomputes. Throws in mode auto. Mode block with ratio p recomputes block i if
// floor((i + 1) p + 1/2) > floor(i p + 1/2), so it recomputes floor(num_layers p + 1/2) blocks.
Recompute recompute_of(const ActivationCheckpointing& checkpointing, int64_t layer);

// Activations that all blocks share, because each block needs them only for a short time. The first call with a name
// allocates the tensor.
class SharedActivations {
 public:
  Tensor get(const std::string& name, DType dtype, std::initializer_list<int64_t> shape, Arena& arena);

 private:
  std::map<std::string, Tensor> tensors_;
};

}  // namespace octavo
