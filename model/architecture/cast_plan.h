// CastPlan: who measures the input x and the output gradient d_y of a linear, who casts them to FP8, and how ranks that
// have shares of their tokens exchange them. cast_plan() decides it once, when a linear is constructed
// (model/linear/linear_layer.h), and the linear only reads it.
//
//   recipe                tensor                    cast by                 measured by            amax reduced
//   bfloat16              any                       nobody                  nobody                 no
//   scales of rows        any                       the linear              nobody                 no
//   scales of blocks      whole                     the producer if it can  nobody                 no
//                         share of the tokens       the linear              nobody                 no
//   one scale per tensor  recomputation, backward   the producer if it can  nobody                 no
//                         forward and gradient:
//                         - scales of a history     the producer if it can  producer, else cast    no
//                         - gradient with a bound   the producer            nobody                 no
//                         - whole, own scale kTwice the producer            the producer           no
//                         - otherwise               the linear              producer, else linear  yes
//
// An observer of results and the FP8 statistics need the tensors themselves. While one of them is active, the linear
// instead of the producer casts d_y, and in the forward also x.
#pragma once

#include <array>
#include <cstdint>

#include "model/architecture/activation_checkpointing.h"
#include "model/architecture/precision.h"
#include "model/architecture/tensor_parallel.h"

namespace octavo {

enum class LinearTensor : uint8_t { kInput, kOutputGradient };

// The facts that the plan depends on. LinearOptions and LinearSpec have the members of the same names.
struct CastFacts {
  LinearPrecision recipe = LinearPrecision::kBFloat16;
  DType gradient_format = DType::kFloat8E5M2;
  Producer input = Producer::kNorm;
  Producer output_gradient = Producer::kNormBackward;
  Divided divided = Divided::kOutputs;
  bool divides_layer = false;     // Whether several tensor-parallel ranks divide the layer.
  bool shares_sequences = false;  // Whether several ranks share the sequences.
  BlockPass input_pass = BlockPass::kForward;
  bool recomputes = false;
};

// The state of a run that the work on a tensor depends on. It changes while the model runs.
struct CastMoment {
  bool history = false;  // Whether scales come from the amaxes of earlier steps (AmaxTable::uses_history).
  bool watched = false;  // Whether results are observed or statistics measured, which need the tensors themselves.
  constexpr size_t index() const { return (history ? 2 : 0) + (watched ? 1 : 0); }
};

enum class Caster : uint8_t { kNobody, kProducer, kLinear };
enum class Measurer : uint8_t {
  kNobody,
  kProducer,
  kLinear,  // a kernel of its own, before the cast
  kCast     // the kernel that casts, for later steps
};
// How ranks with shares of the tokens of a tensor gather it.
enum class Exchange : uint8_t {
  kNone,   // Every rank has all tokens.
  kBytes,  // Each rank casts its share, and the ranks gather the casts.
  kValues  // The ranks gather the values in the compute dtype, and each rank casts all tokens.
};

// The work on one tensor in one pass.
struct TensorCast {
  Caster cast = Caster::kNobody;
  Measurer measure = Measurer::kNobody;
  bool reduces_amax = false;  // Whether ranks take the maximum of their amaxes before the cast.
  bool rows = false;          // Whether the row operand is made.
  bool columns = false;       // Whether the transposed operand is made.
  bool operator==(const TensorCast&) const = default;
};

struct CastPlan {
  bool fp8 = false;                       // Whether the matmuls read casts. Otherwise they read the tensors.
  bool has_amaxes = false;                // Whether a tensor has one scale, which is made of its amax.
  bool bounds_gradient = false;           // Whether the scale of d_y is made from an upper bound of its amax.
  std::array<Exchange, 2> exchange = {};  // By LinearTensor
  std::array<std::array<TensorCast, 4>, 3> inputs = {};  // By BlockPass and CastMoment::index().
  std::array<TensorCast, 4> gradients = {};              // By CastMoment::index().

  const TensorCast& input(BlockPass pass, CastMoment now) const {
    return inputs[static_cast<size_t>(pass)][now.index()];
  }
  const TensorCast& gradient(CastMoment now) const { return gradients[now.index()]; }
};

// Returns whether a rank has only its share of the tokens of a tensor.
constexpr bool is_share(const CastFacts& f, LinearTensor tensor) {
  return f.divides_layer && f.divided == (tensor == LinearTensor::kInput ? Divided::kOutputs : Divided::kInputs);
}

// Returns whether the scale of d_y is made from an upper bound of its amax. A history needs the amaxes themselves.
constexpr bool bounds_gradient(const CastFacts& f) {
  return needs_amax(f.recipe) && !traits(f.recipe).uses_history &&
         traits(f.output_gradient).own_scale == OwnScale::kBound && f.gradient_format == DType::kFloat8E5M2;
}

// Returns the work on a tensor in a pass. Output gradients, like inputs in the forward, have no scale yet, so their
// pass is kForward.
constexpr TensorCast tensor_cast(const CastFacts& f, LinearTensor tensor, BlockPass pass, CastMoment now) {
  if (!is_fp8(f.recipe)) return {};
  const bool input = tensor == LinearTensor::kInput;
  const ProducerTraits& producer = traits(input ? f.input : f.output_gradient);
  const bool first = pass == BlockPass::kForward;
  const bool per_tensor = needs_amax(f.recipe);
  // The amax of a part of a tensor is not the amax of the tensor.
  const bool whole = !f.divides_layer && !f.shares_sequences;
  const bool bounded = !input && bounds_gradient(f);
  // A block of 128 tokens may extend over the shares of two ranks.
  const bool scales_blocks = scales_locally(f.recipe) && !is_share(f, tensor);
  const bool has_scale = per_tensor ? !first || now.history || bounded : scales_blocks;
  const bool makes_scale = per_tensor && producer.own_scale == OwnScale::kTwice && whole;
  const bool measures = per_tensor && first && !bounded;
  TensorCast c;
  c.cast =
      producer.casts && !(first && now.watched) && (has_scale || makes_scale) ? Caster::kProducer : Caster::kLinear;
  if (measures) c.measure = producer.measures ? Measurer::kProducer : now.history ? Measurer::kCast : Measurer::kLinear;
  c.reduces_amax = measures && !now.history && c.cast == Caster::kLinear;
  // If backward does not queue the forward again, the only forward also makes the columns of the pass kRecompute.
  const BlockPass makes_columns =
      f.input_pass == BlockPass::kRecompute && !f.recomputes ? BlockPass::kForward : f.input_pass;
  // The forward and d_x read the rows. If ranks gather casts of their shares, the columns are transposed from the rows.
  c.rows = !input || pass != BlockPass::kBackward || (per_tensor && is_share(f, tensor));
  c.columns = !input || pass == makes_columns;
  return c;
}

constexpr CastPlan cast_plan(const CastFacts& f) {
  CastPlan plan{.fp8 = is_fp8(f.recipe), .has_amaxes = needs_amax(f.recipe), .bounds_gradient = bounds_gradient(f)};
  for (const bool history : {false, true}) {
    for (const bool watched : {false, true}) {
      const CastMoment now{history, watched};
      for (const BlockPass pass : {BlockPass::kForward, BlockPass::kRecompute, BlockPass::kBackward})
        plan.inputs[static_cast<size_t>(pass)][now.index()] = tensor_cast(f, LinearTensor::kInput, pass, now);
      plan.gradients[now.index()] = tensor_cast(f, LinearTensor::kOutputGradient, BlockPass::kForward, now);
    }
  }
  for (const LinearTensor tensor : {LinearTensor::kInput, LinearTensor::kOutputGradient}) {
    if (is_share(f, tensor))
      plan.exchange[static_cast<size_t>(tensor)] = needs_amax(f.recipe) ? Exchange::kBytes : Exchange::kValues;
  }
  return plan;
}

}  // namespace octavo
