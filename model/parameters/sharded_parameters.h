// The parameters of a model as one rank holds them: its shard of the float32 master weights and of the gradients, and
// the weights for matmuls, which ranks gather from each other (parallel/fsdp.h).
//
// Shard buffers hold this rank's slice of every unit, one after the other in the order of the layout. On one rank a
// shard buffer is the whole flat order, and ParameterSpec::offset is the index of a parameter in it.
#pragma once

#include <optional>
#include <vector>

#include "model/architecture/precision.h"
#include "model/linear/amax_table.h"
#include "model/linear/fp8_stats_table.h"
#include "model/parameters/parameters.h"
#include "model/parameters/table_gradient.h"
#include "parallel/fsdp.h"
#include "parallel/mesh.h"

namespace octavo {

enum class LlamaMode : uint8_t { kTraining, kInference };  // Purpose of a model. Inference has no gradients.

// Options that decide which full weights and gradients a rank keeps.
struct ShardingOptions {
  // Whether full weights use rotating buffers. Otherwise all of them are kept.
  bool reshard_after_forward = false;
  // Whether full gradients are kept over the micro-batches of a step and reduced once.
  bool accumulate_unsharded = false;
  // Number of tokens per rank and micro-batch in training. 0 means unknown.
  int64_t tokens = 0;
};

// An embedding table, or a rank's part of its rows, that ranks shard.
struct EmbeddingSharding {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  // Whether lm_head is this table. The gradient of lm_head, which has every row, is then added to the table's.
  bool tied = false;
  DType compute = DType::kBFloat16;
  int64_t tokens = 0;
  int64_t ranks = 1;
  int64_t all_to_all_load = 1;  // MeshShape::all_to_all_load()
};
// Returns the table whose gradient is reduced by exchanging the gradients of its tokens. Empty if reducing the whole
// table is better or necessary.
std::optional<TableSpec> exchanged_table(const EmbeddingSharding& embedding);

// Range of one parameter in this rank's shard.
struct ParameterSlice {
  const ParameterSpec* spec = nullptr;
  int64_t begin = 0;  // First element of the range in the flattened parameter.
  int64_t end = 0;
  int64_t offset = 0;  // Index of the range's first element in shard buffers.
};

// Tables for the FP8 casts of weights. All are null without FP8.
struct WeightCasts {
  AmaxTable* amaxes = nullptr;     // Table of amaxes, for per-tensor recipes.
  Fp8StatsTable* stats = nullptr;  // FP8 statistics, if they are collected.
  // Ranks that hold parts of the weights. Null: this rank holds all.
  Communicator* ranks = nullptr;
};

class ShardedParameters {
 public:
  // A null mesh stands for one rank.
  // Requires: `layout` and `mesh` outlive the object.
  ShardedParameters(const ParameterLayout& layout, const PrecisionConfig& precision, const ShardingOptions& sharding,
                    LlamaMode mode, const Mesh* mesh, Arena& arena, Stream& stream);

  const ParameterLayout& layout() const { return *layout_; }
  // Returns the mesh. Null for one rank.
  const Mesh* mesh() const { return mesh_; }
  // Returns this rank's shards of the master weights, [elements of all shards] float32.
  const Tensor& master() const { return master_; }
  const Tensor& gradients() const { return fsdp_->gradient_shards(); }  // Returns this rank's gradients. Training only.
  Tensor master(const ParameterSlice& slice) const { return rows_of(master_, slice); }
  Tensor gradient(const ParameterSlice& slice) const { return rows_of(gradients(), slice); }
  // Returns the ranges of parameters that this rank holds, in the order of shard buffers.
  const std::vector<ParameterSlice>& slices() const { return slices_; }
  // Returns the slice of a shard buffer that belongs to a unit.
  Tensor unit_shard(const Tensor& shards, size_t unit) const {
    return shards.rows(unit_begin(unit), unit_begin(unit + 1));
  }
  // Returns the index of a unit's first element in shard buffers. unit_begin(number of units) is their size.
  int64_t unit_begin(size_t unit) const { return shard_begin_[unit]; }
  // Returns the dtype of the weights that matmuls read, except FP8 weights.
  DType compute_dtype() const { return compute_; }
  // Returns the gradients that count in the norm: all except those of replicas of parts that another rank holds
  // (ParameterSpec::counts).
  std::vector<Tensor> counted_gradients() const;

  // Returns whether a unit's weights are gathered as FP8 casts of the master weights, which each rank casts for its
  // shard.
  bool travels_in_fp8(size_t unit) const { return fsdp_->weight_shard(unit).dtype() == DType::kFloat8E4M3; }
  // Returns the slice's weights in the dtype in which they are gathered. Undefined if the master weights themselves are
  // gathered.
  Tensor weight(const ParameterSlice& slice) const;

  // Waits for the reductions of the last micro-batch and completes the gradients. With tensor parallelism, the
  // gradients of the norms come from each rank's share of the tokens, so they are summed over these ranks in float32.
  // The gradient of a tied table is summed over the first and the last pipeline stage. All replicas get the same bits.
  void finish_gradients(Stream& stream);

  // Reduces the amaxes over all ranks, casts the FP8 shards with them, and makes the next use of every unit gather its
  // weights again. Must be called after an update of the master weights.
  // Requires: casts.amaxes has the amaxes of this rank's slices.
  void cast_fp8_weights(const WeightCasts& casts, Stream& stream);
  // Computes the amaxes of the master weights, rounds the weights to the gathered dtype, and calls cast_fp8_weights().
  // Must be called after the master weights were set by other means than the optimizer.
  void cast_weights(const WeightCasts& casts, Stream& stream);

  Fsdp& fsdp() { return *fsdp_; }
  const Fsdp& fsdp() const { return *fsdp_; }
  // Return views of a unit's full weights and gradients. Fsdp says when they are valid.
  Tensor full_weight(const ParameterSpec& spec) const { return full(fsdp_->weight(spec.unit), spec); }
  Tensor full_gradient(const ParameterSpec& spec) const { return full(fsdp_->gradient(spec.unit), spec); }

 private:
  static Tensor rows_of(const Tensor& shards, const ParameterSlice& slice) {
    return shards.rows(slice.offset, slice.offset + slice.end - slice.begin);
  }
  Tensor full(const Tensor& unit, const ParameterSpec& spec) const;
  std::optional<TableSpec> find_table(const ShardingOptions& sharding, const DataParallelGroups& groups) const;
  void find_slices(int rank);
  // Adds the gradient of a tied table that the other end of the pipeline has.
  void sum_tied_table(Stream& stream);
  void cast_to_fp8(const ParameterSlice& slice, const WeightCasts& casts, Stream& stream) const;

  const ParameterLayout* layout_;
  const Mesh* mesh_;
  DType compute_;
  // Index of each unit's first element in shard buffers, followed by the end of the last unit.
  std::vector<int64_t> shard_begin_;
  std::vector<ParameterSlice> slices_;
  Tensor master_;
  std::unique_ptr<Fsdp> fsdp_;
  // Buffer for a part of the gradient of the tied table on the other end of the pipeline. Undefined without such a
  // table.
  Tensor tied_part_;
};

}  // namespace octavo
