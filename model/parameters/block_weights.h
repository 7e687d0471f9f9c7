// The weights of a block's linears under its precision recipe: what has been gathered, made ready for the products.
//
//   bfloat16                 read as gathered
//   per-tensor FP8           rows are gathered; columns are their transpose (or, where float32 travels, both are cast)
//   rowwise, blockwise FP8   rows and columns are cast from what is gathered
//
// Where the gathered weights stay from micro-batch to micro-batch, so do the operands, and both are made at once; else
// each pass makes what it needs in memory that all blocks share.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/linear/linear_layer.h"
#include "model/parameters/sharded_parameters.h"

namespace octavo {

// Memory for the FP8 operands of one block's weights, by linear, which last as `lifetime` says.
struct BlockWeightMemory {
  // Columns only in training, rows only where they are not what is gathered.
  BlockWeightMemory(std::span<const LinearSpec> linears, LinearPrecision recipe, bool with_rows, bool with_columns,
                    Lifetime lifetime, Arena& arena);

  std::vector<Fp8Operand> rows, columns;
};

class BlockWeights {
 public:
  struct Options {
    const ShardedParameters& parameters;
    std::span<const LinearSpec> linears;  // of the block
    LinearPrecision recipe;
    int64_t layer;
    int64_t first_linear;  // its place in the tables of linears
    LlamaMode mode;
    const AmaxTable* amaxes;                     // borrowed; per-tensor recipes
    Fp8StatsTable* stats;                        // borrowed; may be null
    TensorGroup* tensor;                         // borrowed
    std::unique_ptr<BlockWeightMemory>& shared;  // of all blocks whose weights do not stay; made by the first of them
  };
  BlockWeights(const Options& options, Arena& arena);

  const LinearWeight& linear(size_t i) const { return linears_[i].weight; }

  // Makes the operands that forward, or backward, reads; `fresh`: the weights have been gathered since the last time,
  // `reruns`: backward begins with forward once more.
  void prepare_forward(bool fresh, Stream& stream) const;
  void prepare_backward(bool reruns, Stream& stream) const;

 private:
  struct Linear {
    LinearWeight weight;
    Tensor gathered;
    Tensor scaling;  // [1] float32 of per-tensor recipes
    Divided divided;
  };

  void make_operands(const Options& options, Arena& arena);
  void add_stats(Stream& stream) const;
  void prepare(bool rows, bool columns, Stream& stream) const;

  int64_t first_linear_;
  Fp8StatsTable* stats_;
  TensorGroup* tensor_;
  bool is_fp8_;
  bool keeps_;              // the gathered weights stay
  bool rows_are_gathered_;  // in FP8
  std::vector<Linear> linears_;
};

}  // namespace octavo
