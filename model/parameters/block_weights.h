// Weights of a block's linear layers in the form that its precision recipe multiplies with:
//
//     bfloat16                  used as gathered
//     per-tensor FP8            rows are gathered in FP8 and transposed to columns,
//                               or both are cast if float32 is gathered
//     rowwise, blockwise FP8    rows and columns are cast from the gathered weights
//
// If the gathered weights are kept between micro-batches, so are the FP8 operands, and rows and columns are computed
// together. Otherwise each pass computes the operands that it needs, in memory that all blocks share.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/linear/linear_layer.h"
#include "model/parameters/sharded_parameters.h"

namespace octavo {

// Memory for the FP8 operands of one block's weights, one per linear. `lifetime` says how long they are needed.
struct BlockWeightMemory {
  // `with_columns` is for training. `with_rows` is for recipes whose rows are not gathered directly.
  BlockWeightMemory(std::span<const LinearSpec> linears, LinearPrecision recipe, bool with_rows, bool with_columns,
                    Lifetime lifetime, Arena& arena);

  std::vector<Fp8Operand> rows, columns;
};

class BlockWeights {
 public:
  struct Options {
    const ShardedParameters& parameters;
    std::span<const LinearSpec> linears;  // Linears of the block.
    LinearPrecision recipe;
    int64_t layer;
    // Index of the block's first linear in the tables of amaxes and statistics.
    int64_t first_linear;
    LlamaMode mode;
    const AmaxTable* amaxes;  // Table of amaxes, for per-tensor recipes. Borrowed.
    Fp8StatsTable* stats;     // Table of FP8 statistics. Borrowed, may be null.
    TensorGroup* tensor;      // Borrowed.
    // Memory shared by all blocks whose weights are not kept. The first of them allocates it.
    std::unique_ptr<BlockWeightMemory>& shared;
  };
  BlockWeights(const Options& options, Arena& arena);

  const LinearWeight& linear(size_t i) const { return linears_[i].weight; }

  // Compute the operands that forward or backward reads. `fresh` says that the weights have been gathered since the
  // last call, `reruns` that backward starts by recomputing the forward.
  void prepare_forward(bool fresh, Stream& stream);
  void prepare_backward(bool reruns, Stream& stream) const;

 private:
  struct Linear {
    LinearWeight weight;
    Tensor gathered;
    // [1] float32: AmaxTable::weight_scaling(), for per-tensor recipes.
    Tensor scaling;
    Divided divided;
  };

  void make_operands(const Options& options, Arena& arena);
  void add_stats(Stream& stream);
  void prepare(bool rows, bool columns, Stream& stream) const;

  int64_t first_linear_;
  Fp8StatsTable* stats_;
  int64_t stats_step_ = 0;  // Fp8StatsTable::steps_begun() of the last step whose statistics have these weights.
  TensorGroup* tensor_;
  bool is_fp8_;
  bool keeps_;              // Whether the gathered weights are kept.
  bool rows_are_gathered_;  // Whether the gathered weights are FP8 rows.
  std::vector<Linear> linears_;
};

}  // namespace octavo
