// The weights of a block's linears under its precision recipe: what has been gathered, made ready for the products.
//
//   bfloat16                 read as gathered
//   per-tensor FP8           rows are gathered; columns are their transpose (or, where float32 travels, both are cast)
//   rowwise, blockwise FP8   rows and columns are cast from what is gathered
//
// Where the gathered weights stay from micro-batch to micro-batch, so do the operands, and both are made at once; else
// each pass makes what it needs in memory that all blocks share.
#pragma once

#include <array>
#include <memory>

#include "model/block.h"
#include "model/sharded_parameters.h"

namespace octavo {

// Memory for the FP8 operands of one block's weights, which last as `lifetime` says.
struct BlockWeightMemory {
  // Columns only in training, rows only where they are not what is gathered.
  BlockWeightMemory(const std::array<LinearShape, kLinearsPerBlock>& shapes, LinearPrecision recipe, bool rows,
                    bool columns, Lifetime lifetime, Arena& arena);

  std::array<Fp8Operand, kLinearsPerBlock> rows, columns;
};

class BlockWeights {
 public:
  struct Options {
    const ShardedParameters& parameters;
    const ModelConfig& config;
    const PrecisionConfig& precision;
    std::array<LinearShape, kLinearsPerBlock> shapes;
    int64_t layer;
    LlamaMode mode;
    const AmaxTable* amaxes;                     // borrowed; per-tensor recipes
    Fp8StatsTable* stats;                        // borrowed; may be null
    TensorGroup* tensor;                         // borrowed
    std::unique_ptr<BlockWeightMemory>& shared;  // of all blocks whose weights do not stay; made by the first of them
  };
  BlockWeights(const Options& options, Arena& arena);

  const Tensor& norm1() const { return views_.norm1; }
  const Tensor& norm2() const { return views_.norm2; }
  const LinearWeight& linear(size_t i) const { return weights_[i]; }  // in the order of BlockLinears

  // Makes the operands that forward, or backward, reads; `fresh`: the weights have been gathered since the last time,
  // `reruns`: backward begins with forward once more.
  void prepare_forward(bool fresh, Stream& stream) const;
  void prepare_backward(bool reruns, Stream& stream) const;

 private:
  void add_stats(Stream& stream) const;
  void prepare(bool rows, bool columns, Stream& stream) const;

  BlockParameters views_;
  int64_t first_linear_;  // of the model
  Fp8StatsTable* stats_;
  TensorGroup* tensor_;
  std::array<LinearShape, kLinearsPerBlock> shapes_;
  bool is_fp8_;
  bool keeps_;              // the gathered weights stay
  bool rows_are_gathered_;  // in FP8
  std::array<Tensor, kLinearsPerBlock> gathered_;
  std::array<Tensor, kLinearsPerBlock> scaling_;  // [1] float32 of per-tensor recipes
  std::array<LinearWeight, kLinearsPerBlock> weights_;
};

}  // namespace octavo
