// Muon over this rank's shard of the blocks' matrices (kernels/optimizer/muon.h has the formula): each of q, k, v, o,
// gate, up and down is orthogonalized as a whole, as a model that keeps them apart would, whatever the mesh.
//
// The matrices are gathered, not the states: the momentum is sharded as the weights are. Round by round (a few blocks,
// see model/optimizer/whole_matrices.h) each rank
//   1. updates its shard of the momentum and has its shard of u, in place in a full block;
//   2. gathers it over the shard axis and then the tensor axis;
//   3. iterates on the matrices of the round that it owns, in precision.compute, and clears the others;
//   4. sums over the tensor axis and then the shard axis, each rank keeping its slice: one rank's numbers and zeros;
//   5. updates its weights.
// Copies (the replicate axis) each do all of it, with products that give each the same bits. A rank receives what a
// gather of the weights and a reduction of the gradients in precision.compute do; the alternative without step 4, every
// rank iterating on all matrices, costs as many times the FLOPs as there are ranks.
#pragma once

#include <vector>

#include "model/optimizer/optimizer_config.h"
#include "model/optimizer/whole_matrices.h"
#include "model/parameters/sharded_parameters.h"

namespace octavo {

class Muon {
 public:
  // `parameters` and the communicators must outlive it.
  Muon(const OptimizerConfig& config, ShardedParameters& parameters, Arena& arena);

  // Whether it updates a unit's parameters.
  static bool updates(const ParameterUnit& unit) { return unit.layer >= 0; }
  // What its products ask of a stream's workspace.
  static int64_t workspace_bytes(const ParameterLayout& layout, DType compute, const Stream& stream);

  struct Step {
    Tensor momentum;              // [elements of the blocks' shards], as OptimizerState
    AmaxTable* amaxes = nullptr;  // null without FP8
    Tensor grad_sum_of_squares;
    Tensor skip;
    double lr = 0;
  };
  // Queued on `stream`.
  void step(const Step& step, Stream& stream);
  // Every product once, so that algorithms are chosen before the first step.
  void warm_up(Stream& stream);

 private:
  void gather(const MatrixRound& round, const Step& step, Stream& stream);
  void scatter(const MatrixRound& round, Stream& stream);
  void orthogonalize(const WholeMatrix& matrix, const Tensor& block, Stream& stream);
  void iterate(const WholeMatrix& matrix, Stream& stream);
  void update_weights(size_t unit, const Tensor& block, const Step& step, Stream& stream);

  int64_t shard_elements(size_t unit) const {
    return parameters_->unit_begin(unit + 1) - parameters_->unit_begin(unit);
  }
  int64_t whole_elements(size_t unit) const { return shard_ranks_ * shard_elements(unit); }  // of one tensor rank
  // Of a block on its way: what is of a tensor rank, and of that this rank's shard.
  Tensor of_tensor_rank(const Tensor& block, size_t unit, int64_t rank) const;
  Tensor own_shard(const Tensor& block, size_t unit) const;
  Tensor part_of(const Tensor& block, const WholeMatrix& matrix, const MatrixPart& part) const;

  OptimizerConfig config_;
  ShardedParameters* parameters_;
  const Mesh* mesh_;  // null for one rank
  int64_t shard_ranks_ = 1;
  int64_t shard_rank_ = 0;
  int64_t tensor_ranks_ = 1;
  int64_t tensor_rank_ = 0;
  std::vector<MatrixRound> rounds_;
  std::vector<std::vector<const ParameterPiece*>> pieces_;  // by unit
  std::vector<Tensor> blocks_;                              // of a round, of all tensor ranks, in precision.compute
  Tensor x_, next_x_;                                       // the largest matrix
  Tensor gram_, square_;                                    // the largest A and A^2
  Tensor sum_of_squares_;
};

}  // namespace octavo
