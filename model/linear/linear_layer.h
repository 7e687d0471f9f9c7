// A linear layer y = x W^T, forward and backward, under a precision recipe. W is [out, in] as in Hugging Face.
//
// In bfloat16 and float32 the layer is three matmuls. In FP8 each tensor is cast once, into row operands and into
// transposed column operands, and each of the two operands is read by one matmul:
//
//   forward   x -> rows [tokens, in], columns [in, tokens];  y = rows(x) rows(W)^T
//   backward  d_y -> rows [tokens, out], columns [out, tokens]
//             d_W += columns(d_y) columns(x)^T;  d_x = rows(d_y) columns(W)^T
//
// model/parameters/block_weights.h casts W. Backward reads the columns of x, so x itself may be overwritten after
// forward. model/architecture/cast_plan.h says who measures and casts x and d_y, and which pass makes the columns of x.
// All work is queued on the stream. Memory comes from the arena at construction.
//
// A layer holds its weight and its recipe. LinearActivations hold the tensors of a micro-batch in flight. Every call
// takes them.
//
// If backward or recomputation makes the columns of x, all blocks share the memory for the columns of this linear.
//
// Tensor parallelism (model/architecture/tensor_parallel.h, parallel/tensor_group.h): W is the part of the weight that
// this rank has. If the outputs are divided, x has this rank's share of the tokens, and y has all tokens and this
// rank's columns. If the inputs are divided, x has all tokens and this rank's columns, and y has this rank's share of
// the tokens. Gradients are divided like their tensors.
//
//   outputs divided   forward   y = gather(x) W^T
//                     backward  d_x = scatter(sum of d_y W),  d_W += d_y^T gather(x)
//   inputs divided    forward   y = scatter(sum of x W^T)
//                     backward  d_x = gather(d_y) W,  d_W += gather(d_y)^T x
//
// The scale of a tensor covers all ranks: the ranks that divide the layer and those that share the sequences take the
// maximum of their amaxes. Sums over ranks are in the compute dtype.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/stream.h"
#include "model/architecture/activation_checkpointing.h"
#include "model/architecture/block_spec.h"
#include "model/architecture/cast_plan.h"
#include "model/architecture/precision.h"
#include "model/linear/amax_table.h"
#include "model/linear/fp8_stats_table.h"
#include "model/linear/result_observer.h"
#include "parallel/context_group.h"
#include "parallel/tensor_group.h"

namespace octavo {

// Memory that is used within one call of a linear. All linears of a model share it.
struct LinearScratch {
  // Allocates enough memory for the largest of `linears`.
  LinearScratch(std::span<const LinearSpec> linears, const PrecisionConfig& precision, const TensorGroup& tensor,
                Arena& arena);

  // Row operand of x or d_y in FP8.
  Tensor row_bytes;   // [elements] uint8
  Tensor row_scales;  // [elements] float32
  // Column operand of an output gradient in FP8.
  struct Columns {
    Tensor bytes;   // [elements] uint8
    Tensor scales;  // [elements] float32
  };
  std::vector<Columns> columns;  // Indexed by LinearSpec::gradient_slot.
  Tensor share_bytes;            // [elements] uint8. Cast of this rank's share of the tokens.
  Tensor exchange;               // [elements] compute dtype. All tokens: gathered, or terms of a sum over the ranks.
  // Borrowed. Null unless results are observed. With an observer, producers write x and d_y instead of casts of them,
  // except in recomputation, so that there are results to observe. The operands have the same bits.
  ResultObserver* observer = nullptr;
};

// The operands of a weight. `value` is defined without FP8, `rows` and `columns` with FP8.
struct LinearWeight {
  Tensor value;        // [out, in]
  Fp8Operand rows;     // [out, in], valid in forward
  Fp8Operand columns;  // [in, out], valid in backward
};

// Allocates an operand [rows, k].
Fp8Operand allocate_operand(const std::string& name, DType format, Scaling scaling, int64_t rows, int64_t k,
                            Arena& arena, Lifetime lifetime = Lifetime::kRun);

// The form of x that the weight gradient reads. Both members are undefined if the weight gradient reads x itself.
struct LinearInput {
  Fp8Operand columns;  // [in, tokens] in FP8
  Tensor gathered;     // [tokens, in] compute dtype, without FP8, if the ranks gather shares of x
};

// Operands of the matmul that computes a weight gradient.
struct WeightGradientOperands {
  Fp8Operand d_y_columns, x_columns;  // [out, tokens] and [in, tokens] in FP8
  Tensor d_y, x;                      // [tokens, out] and [tokens, in] without FP8
};

// The way in which backward treats the weight gradient.
enum class WeightGradient : uint8_t {
  kWrite,  // Writes it with =.
  kAdd,    // Adds it with +=. The gradient must be float32.
  kSave,   // Saves its operands in LinearActivations::saved. backward_weights() computes it later.
};

// Existing tensors of a micro-batch in flight that hold x and d_y without FP8 until backward_weights() has read them,
// so that WeightGradient::kSave allocates no memory for them. `x` is not overwritten after backward(). `d_y` is memory
// that d_y is written or copied to, and that holds nothing else that is needed. Both may be undefined.
struct KeptOperands {
  Tensor x;    // [tokens, in]
  Tensor d_y;  // [tokens, out]
};

// The tensors of a linear for one micro-batch in flight.
struct LinearActivations {
  LinearInput input;
  WeightGradientOperands saved;  // Undefined unless LinearOptions::saves_operands.
  Tensor input_amax;             // [1] float32, slot of x in the AmaxTable. Undefined if the recipe needs no amaxes.
  Tensor gradient_amax;          // [1] float32, slot of d_y in the AmaxTable, like input_amax.
  // [1] float32, slot in the AmaxTable: factor by which d_y can exceed the gradient that it is computed from. Undefined
  // unless the scale of d_y is made from a bound.
  Tensor gradient_bound_factor;
};

struct LinearOptions {
  LinearPrecision recipe = LinearPrecision::kBFloat16;
  PrecisionConfig precision;
  LinearSpec spec;
  LinearWeight weight;
  Tensor gradient;                        // [out, in] float32 or bfloat16. Undefined in inference.
  AmaxTable* amaxes = nullptr;            // Borrowed. Required by recipes that need amaxes.
  Fp8StatsTable* stats = nullptr;         // Borrowed. Null disables statistics.
  int64_t index = 0;                      // Index of this linear in the tables.
  int64_t layer = 0;                      // Index of the layer in the model.
  LinearScratch* scratch = nullptr;       // Borrowed.
  TensorGroup* tensor = nullptr;          // Borrowed. Null means that no ranks divide the layer.
  const ContextGroup* context = nullptr;  // Borrowed. Null means that no ranks share the sequences.
  // The pass that makes LinearInput (kActivationPasses).
  BlockPass input_pass = BlockPass::kForward;
  // Whether backward queues the forward of the block again. If not, the forward also computes the values of the pass
  // kRecompute.
  bool recomputes = false;
  // Whether backward may be called with WeightGradient::kSave.
  bool saves_operands = false;
};

// The work that the producer of x or d_y (LinearSpec::input, LinearSpec::output_gradient) does for the linear. The
// linear does the rest when it is given the tensor.
struct ProducerWork {
  Tensor amax;   // [1] float32: = max(itself, amax of the tensor). If undefined, the producer does not measure.
  Fp8Cast cast;  // Operands to write in place of the tensor. If undefined, the producer writes the tensor.
};

struct LinearForward {
  Tensor y;  // [tokens, out] = x W^T
  Tensor x;  // [tokens, in]. Without FP8, backward must be given the same values.
  // kForward or kRecompute. In kRecompute the scales are known, and nothing is measured.
  BlockPass pass = BlockPass::kForward;
};

struct LinearBackward {
  Tensor d_x;  // [tokens, in] =
  Tensor d_y;  // [tokens, out]
  Tensor x;    // [tokens, in]. Read only without FP8.
  WeightGradient weight_gradient = WeightGradient::kWrite;
  // Optional function that queues work between the matmul that computes d_x and the weight gradient. The work may write
  // x. It may read d_x unless the layer's outputs are divided over the tensor-parallel ranks, because d_x is then not
  // yet summed over these ranks.
  std::function<void()> between = {};
};

class LinearLayer {
 public:
  explicit LinearLayer(const LinearOptions& options);

  // Allocates the tensors of the micro-batch in flight with number `in_flight`. LinearInput lies in `shared` if a later
  // pass than the forward makes it, and if `shared` is not null. WeightGradient::kSave copies what `kept` lacks.
  LinearActivations make_activations(int64_t in_flight, const KeptOperands& kept, SharedActivations* shared,
                                     Arena& arena) const;

  // Return the work of the producer of x before forward or recompute_input, and of the producer of d_y before backward.
  // Requires: no other linear is called between the producer and this linear, because all linears cast into one memory.
  ProducerWork input_work(const LinearActivations& a, BlockPass pass = BlockPass::kForward) const {
    return producer_work(a, AmaxTable::kInput, pass);
  }
  ProducerWork gradient_work(const LinearActivations& a) const {
    return producer_work(a, AmaxTable::kOutputGradient, BlockPass::kForward);
  }

  // Makes the scale of d_y from an upper bound of its amax, if LinearActivations::gradient_bound_factor is defined. The
  // producer of d_y computes d_y from a gradient `d`, and each |d_y| is at most gradient_bound_factor * max |d|. Called
  // before gradient_work.
  void bound_gradient(const LinearActivations& a, const Tensor& d, Stream& stream) const;

  void forward(const LinearActivations& a, const LinearForward& args, Stream& stream) const;
  // Makes LinearInput within backward.
  // Requires: the producer of x has done the work of input_work(kBackward).
  void recompute_input(const LinearActivations& a, const Tensor& x, Stream& stream) const;
  // Returns whether the caller of backward must make LinearInput, with recompute_input or a kernel that writes it.
  bool recomputes_input() const { return options_.input_pass == BlockPass::kBackward; }
  // Returns whether the backward kernel of the op that computes x can also write input_work(kBackward), so that
  // recompute_input is not needed. Such a kernel cannot write a rowwise cast, because its scales come from all tokens.
  bool input_is_by_product() const { return casts_in_one_pass(options_.recipe); }
  // Computes d_x, and treats the weight gradient as args.weight_gradient says.
  void backward(const LinearActivations& a, const LinearBackward& args, Stream& stream) const;

  // Computes the weight gradient from the operands that backward saved. Adds it to gradient() if `accumulate` is true,
  // and otherwise writes it.
  void backward_weights(const LinearActivations& a, bool accumulate, Stream& stream) const {
    compute_weight_gradient(a.saved, accumulate, stream);
  }

  // Returns the weight gradient. Undefined in inference.
  const Tensor& gradient() const { return options_.gradient; }

  static int64_t workspace_bytes(LinearPrecision recipe, const LinearShape& shape, DType compute, const Stream& stream);

 private:
  using Kind = AmaxTable::Kind;
  // The tensor that operands are cast from.
  struct Source {
    const LinearActivations& a;
    Tensor x;
    Kind kind;
    BlockPass pass = BlockPass::kForward;
  };

  LinearInput allocate_input(SharedActivations* shared, Arena& arena) const;
  Tensor amax_slot(const LinearActivations& a, Kind kind) const;
  Tensor scale_amax(const LinearActivations& a, Kind kind) const;
  const TensorCast& work_on(Kind kind, BlockPass pass) const;
  Exchange exchange_of(Kind kind) const;
  Fp8Cast input_operands(const LinearActivations& a, BlockPass pass) const;
  Fp8Cast gradient_operands(const LinearActivations& a) const;
  ProducerWork producer_work(const LinearActivations& a, Kind kind, BlockPass pass) const;
  Fp8Operand share_rows(const Fp8Operand& rows) const;
  void make_operands(const Fp8Cast& operands, const Source& source, Stream& stream) const;
  void all_reduce_maximum(const Tensor& maximum, Stream& stream) const;
  void cast(const Fp8Cast& operands, const Source& source, Stream& stream) const;
  WeightGradientOperands allocate_saved(const LinearInput& input, const KeptOperands& kept, Arena& arena) const;
  void save_operands(const LinearActivations& a, const WeightGradientOperands& operands, Stream& stream) const;
  void compute_weight_gradient(const WeightGradientOperands& operands, bool accumulate, Stream& stream) const;
  void add_stats(const Fp8Operand& rows, const Source& source, Stream& stream) const;
  ResultObserver* observer() const { return options_.scratch != nullptr ? options_.scratch->observer : nullptr; }
  // Returns the operand of a matmul for the observer: the cast in FP8, and otherwise the value.
  OpInput observed(const Fp8Operand& cast, const Tensor& value) const;
  Tensor exchange() const;
  Tensor all_tokens(const Source& source) const;
  bool alone() const { return options_.tensor == nullptr || options_.tensor->alone(); }
  bool shares_sequences() const { return options_.context != nullptr && !options_.context->alone(); }
  bool divides(Divided what) const { return !alone() && options_.spec.shape.divided == what; }
  bool fast(bool forward) const;
  const char* name_of(Kind kind) const;

  LinearOptions options_;
  CastPlan casts_;
};

}  // namespace octavo
