// A linear layer y = x W^T, forward and backward, under a precision recipe. W is [out, in] as in Hugging Face.
//
// In bfloat16 (or float32) it is three products. In FP8 each operand is cast once, into the layout and the transpose
// that its two products need:
//
//   forward   x -> rows [tokens, in], columns [in, tokens];  y = rows(x) rows(W)^T
//   backward  d_y -> rows [tokens, out], columns [out, tokens]
//             d_W += columns(d_y) columns(x)^T;  d_x = rows(d_y) columns(W)^T
//
// The casts of W come from outside (model/parameters/block_weights.h), once a step or whenever W has been gathered.
// What backward needs of x is kept as its FP8 columns; x itself may be overwritten after forward. All work is queued on
// the stream; memory comes from the arena at construction.
//
// A layer holds its weight and its recipe. What belongs to a micro-batch in flight is a value, LinearActivations, which
// every call takes.
//
// What backward needs of x may also be made later than in the forward (LinearOptions::input_pass), in memory that the
// same linear of all blocks shares. That is overwritten only when backward of the last block to use it is queued:
// under tensor parallelism at most one weight gradient is deferred, that of the linear before, and the first gather of
// the next block's backward, or of its forward's second run, queues it before that linear's turn comes again.
//
// Tensor parallelism (model/architecture/tensor_parallel.h, parallel/tensor_group.h): W is a rank's part of the weight.
// Where its outputs are divided, x is a share of the tokens and y all tokens of some columns; where its inputs are, x
// is all tokens of some columns and y a share of the tokens; gradients alike.
//
//   outputs divided   forward   y = gather(x) W^T
//                     backward  d_x = scatter(sum of d_y W),  d_W += d_y^T gather(x)
//   inputs divided    forward   y = scatter(sum of x W^T)
//                     backward  d_x = gather(d_y) W,  d_W += gather(d_y)^T x
//
// Per-tensor recipes cast a share first and gather the bytes, the others gather values in the compute dtype. A scale is
// that of the whole tensor, so the ranks find its amax together, with those that share the sequences. Sums over ranks
// are in the compute dtype.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/stream.h"
#include "model/architecture/activation_checkpointing.h"
#include "model/architecture/linear_spec.h"
#include "model/architecture/precision.h"
#include "model/linear/amax_table.h"
#include "model/linear/fp8_stats_table.h"
#include "parallel/context_group.h"
#include "parallel/tensor_group.h"

namespace octavo {

// What lives within one call; all linears of a model share it.
struct LinearScratch {
  // Room for the largest of `linears`.
  LinearScratch(std::span<const LinearSpec> linears, const PrecisionConfig& precision, const TensorGroup& tensor,
                Arena& arena);

  // FP8 operands.
  Tensor row_bytes;   // [elements] uint8
  Tensor row_scales;  // [elements] float32
  // Of output gradients, by LinearSpec::gradient_slot.
  struct Columns {
    Tensor bytes;   // [elements] uint8
    Tensor scales;  // [elements] float32
  };
  std::vector<Columns> columns;
  // Of a tensor-parallel group: the cast of a share of the tokens; all tokens, gathered or as sums of this rank.
  Tensor share_bytes;  // [elements] uint8
  Tensor exchange;     // [elements] compute dtype
};

// A weight as its products read it.
struct LinearWeight {
  Tensor value;        // [out, in], without FP8
  Fp8Operand rows;     // [out, in] in FP8, valid in forward
  Fp8Operand columns;  // [in, out] in FP8, valid in backward
};

// Memory for an operand [rows, k].
Fp8Operand allocate_operand(const std::string& name, DType format, Scaling scaling, int64_t rows, int64_t k,
                            Arena& arena, Lifetime lifetime = Lifetime::kRun);

// Memory for what backward needs of x, where that is not x itself.
struct LinearInput {
  Fp8Operand columns;  // [in, tokens] in FP8
  Tensor gathered;     // [tokens, in] compute dtype without FP8, where shares are gathered
};

// Operands of the matmul that computes a weight gradient.
struct WeightGradientOperands {
  Fp8Operand d_y_columns, x_columns;  // [out, tokens] and [in, tokens] in FP8
  Tensor d_y, x;                      // [tokens, out] and [tokens, in] without FP8
};

// What becomes of a weight gradient in the backward of its linear.
enum class WeightGradient : uint8_t {
  kWrite,
  kAdd,   // in float32 only
  kSave,  // Its operands are saved in LinearActivations::saved, and backward_weights() computes it.
};

// What a linear has of one micro-batch in flight.
struct LinearActivations {
  LinearInput input;
  WeightGradientOperands saved;  // Undefined unless LinearOptions::saves_operands.
  // Slots in the table of amaxes, where the recipe needs them: [1] float32.
  Tensor input_amax;     // of x
  Tensor gradient_amax;  // of d_y
};

struct LinearOptions {
  LinearPrecision recipe = LinearPrecision::kBFloat16;
  PrecisionConfig precision;
  LinearSpec spec;
  LinearWeight weight;
  Tensor gradient;                   // [out, in] float32, or bfloat16; undefined in inference
  AmaxTable* amaxes = nullptr;       // per-tensor recipes; borrowed
  Fp8StatsTable* stats = nullptr;    // FP8 recipes, where wanted; borrowed
  int64_t index = 0;                 // of this linear in the tables
  LinearScratch* scratch = nullptr;  // borrowed
  TensorGroup* tensor = nullptr;     // borrowed
  // The ranks that share the sequences; borrowed, null: this one alone. Where there are several, scales of activations
  // are of all their tokens.
  const ContextGroup* context = nullptr;
  BlockPass input_pass = BlockPass::kForward;  // The pass that makes what backward needs of x (kActivationPasses).
  // Whether backward queues the forward of the block again. If not, the forward makes what kRecompute would make.
  bool recomputes = false;
  bool saves_operands = false;  // Whether backward may be called with WeightGradient::kSave.
};

// The work that the producer of a tensor (LinearSpec::input, LinearSpec::output_gradient) does for the linear that
// reads it. The linear does the rest when it is given the tensor.
struct Target {
  Tensor amax;   // [1] float32 that takes the amax of the tensor: = max(itself, amax). Undefined: nothing to measure.
  Fp8Cast cast;  // Operands to write in place of the tensor. Undefined: the producer writes the tensor.
};

struct LinearForward {
  Tensor y;  // [tokens, out] = x W^T
  Tensor x;  // [tokens, in]; without FP8 it is to be the same in backward, kept or made again
  BlockPass pass = BlockPass::kForward;  // or kRecompute, in which the scales are known and nothing is measured
};

struct LinearBackward {
  Tensor d_x;  // [tokens, in] =
  Tensor d_y;  // [tokens, out]
  Tensor x;    // that of forward; read without FP8 only
  WeightGradient weight_gradient = WeightGradient::kWrite;
  // Queued after the product that makes d_x and before the weight gradient, where given: it may make x again, and read
  // d_x unless ranks have yet to sum it (outputs divided).
  std::function<void()> between = {};
};

class LinearLayer {
 public:
  explicit LinearLayer(const LinearOptions& options) : options_(options) {}

  // Returns what this linear has of micro-batch `in_flight` of those in flight. What backward needs of x lies in
  // `shared` unless the forward makes it. `shared` may be null if this linear has no such memory.
  LinearActivations make_activations(int64_t in_flight, SharedActivations* shared, Arena& arena) const;

  // Return what the producer of x, or of d_y, must do before forward, or backward, is called. All linears cast into
  // the same memory, so no other linear may be called between the producer and this linear.
  Target input_target(const LinearActivations& a, BlockPass pass = BlockPass::kForward) const {
    return target(a, AmaxTable::kInput, pass);
  }
  Target gradient_target(const LinearActivations& a) const {
    return target(a, AmaxTable::kOutputGradient, BlockPass::kForward);
  }

  void forward(const LinearActivations& a, const LinearForward& args, Stream& stream) const;
  // Makes what backward needs of x, if backward does (recomputes_input()): after the producer of x, which was given
  // input_target(kBackward).
  void recompute_input(const LinearActivations& a, const Tensor& x, Stream& stream) const;
  bool recomputes_input() const { return options_.input_pass == BlockPass::kBackward; }
  // Whether the backward kernel of the op that makes x can write input_target(kBackward) on its way, so that
  // recompute_input() is not needed. Rowwise scales take a pass over all tokens first.
  bool input_is_by_product() const { return traits(options_.recipe).casts_in_one_pass; }
  // With several ranks of a group the weight gradient may be deferred (TensorGroup::defer).
  void backward(const LinearActivations& a, const LinearBackward& args, Stream& stream) const;

  // Computes the weight gradient of which backward has saved the operands: adds it to gradient(), or writes it.
  void backward_weights(const LinearActivations& a, bool accumulate, Stream& stream) const {
    compute_weight_gradient(a.saved, accumulate, stream);
  }

  // The weight's; undefined in inference.
  const Tensor& gradient() const { return options_.gradient; }

  static int64_t workspace_bytes(LinearPrecision recipe, const LinearShape& shape, DType compute, const Stream& stream);

 private:
  using Kind = AmaxTable::Kind;
  // What operands are made of.
  struct Source {
    const LinearActivations& a;
    Tensor x;
    Kind kind;
    BlockPass pass = BlockPass::kForward;
  };

  LinearInput allocate_input(SharedActivations* shared, Arena& arena) const;
  Tensor amax_slot(const LinearActivations& a, Kind kind) const;
  Tensor scale_amax(const LinearActivations& a, Kind kind) const;
  bool makes_input(BlockPass pass) const;
  Fp8Cast input_operands(const LinearActivations& a, BlockPass pass) const;
  Fp8Cast gradient_operands(const LinearActivations& a) const;
  Target target(const LinearActivations& a, Kind kind, BlockPass pass) const;
  const ProducerTraits& producer_of(Kind kind) const;
  bool producer_casts(Kind kind, BlockPass pass) const;
  bool is_share(Kind kind) const;
  Fp8Operand share_rows(const Fp8Operand& rows) const;
  void make_operands(const Fp8Cast& operands, const Source& source, Stream& stream,
                     const TensorGroup::Work& work) const;
  void gather_operands(const Fp8Cast& operands, const Source& source, Stream& stream,
                       const TensorGroup::Work& work) const;
  Tensor measure(const Source& source, Stream& stream) const;
  void cast(const Fp8Cast& operands, const Source& source, Stream& stream) const;
  WeightGradientOperands allocate_saved(const LinearInput& input, Arena& arena) const;
  void save_operands(const LinearActivations& a, const WeightGradientOperands& operands, Stream& stream) const;
  void compute_weight_gradient(const WeightGradientOperands& operands, bool accumulate, Stream& stream) const;
  void add_stats(const Fp8Operand& rows, const Source& source, Stream& stream) const;
  void reduce_scatter(const Tensor& y, const TensorGroup::Work& work) const;
  Tensor exchange() const;
  Tensor all_tokens(const Source& source) const;
  bool alone() const { return options_.tensor == nullptr || options_.tensor->alone(); }
  bool shares_sequences() const { return options_.context != nullptr && !options_.context->alone(); }
  bool divides(Divided what) const { return !alone() && options_.spec.shape.divided == what; }
  bool fast(bool forward) const;
  const char* name_of(Kind kind) const;

  LinearOptions options_;
};

}  // namespace octavo
