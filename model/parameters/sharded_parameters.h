// The parameters of a model as one rank holds them: its shard of the float32 master weights and of the gradients, and
// the weights that products read, which travel between the ranks (parallel/fsdp.h).
//
// Shard buffers hold this rank's slice of every unit, one after the other in the order of the layout; on one rank that
// is the whole flat order, and ParameterSpec::offset is the place of a parameter in it.
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

enum class LlamaMode : uint8_t { kTraining, kInference };  // inference has no gradients

// How much of the full weights and gradients a rank keeps.
struct ShardingOptions {
  bool reshard_after_forward = false;  // full weights live in rotating buffers, else all of them stay
  bool accumulate_unsharded = false;   // gradient accumulation: full gradients stay and are reduced once a step
  int64_t tokens = 0;                  // of a rank and micro-batch, in training; 0: not known
};

// An embedding table, or a rank's part of its rows, that ranks shard.
struct EmbeddingSharding {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  bool tied = false;  // lm_head's gradient, which has every row, is in the table's
  DType compute = DType::kBFloat16;
  int64_t tokens = 0;
  int64_t ranks = 1;
  int64_t all_to_all_load = 1;  // MeshShape::all_to_all_load()
};
// The table whose gradient is exchanged as that of the tokens; none where reducing it whole is as good or has to be.
std::optional<TableSpec> exchanged_table(const EmbeddingSharding& embedding);

// A stretch of one parameter that lies in this rank's shard.
struct ParameterPiece {
  const ParameterSpec* spec = nullptr;
  int64_t begin = 0;  // of the flattened parameter
  int64_t end = 0;
  int64_t offset = 0;  // of element `begin` in shard buffers
};

// What FP8 casts of weights need; all null without.
struct WeightCasts {
  AmaxTable* amaxes = nullptr;     // of per-tensor recipes
  Fp8StatsTable* stats = nullptr;  // where statistics are taken
  Communicator* ranks = nullptr;   // that hold parts of the weights; null: this one holds all
};

class ShardedParameters {
 public:
  // `layout` and `mesh` must outlive the object. A null mesh stands for one rank.
  ShardedParameters(const ParameterLayout& layout, const PrecisionConfig& precision, const ShardingOptions& sharding,
                    LlamaMode mode, const Mesh* mesh, Arena& arena, Stream& stream);

  const ParameterLayout& layout() const { return *layout_; }
  // Null for one rank.
  const Mesh* mesh() const { return mesh_; }
  // [elements of all shards] float32.
  const Tensor& master() const { return master_; }
  const Tensor& gradients() const { return fsdp_->gradient_shards(); }  // in training
  Tensor master(const ParameterPiece& piece) const { return slice(master_, piece); }
  Tensor gradient(const ParameterPiece& piece) const { return slice(gradients(), piece); }
  // What of the parameters this rank holds, in the order of shard buffers.
  const std::vector<ParameterPiece>& pieces() const { return pieces_; }
  // What of a buffer in that order is of a unit.
  Tensor unit_shard(const Tensor& shards, size_t unit) const {
    return shards.rows(unit_begin(unit), unit_begin(unit + 1));
  }
  int64_t unit_begin(size_t unit) const { return shard_begin_[unit]; }  // the end of the last where there is no such
  // That products read weights in, but for those in FP8.
  DType compute_dtype() const { return precision_.compute; }
  // The gradients that count in the norm: all, but for copies of what another rank holds (ParameterSpec::counts).
  std::vector<Tensor> counted_gradients() const;

  // Whether the products' weights of a unit are FP8 casts of the master weights, made shard by shard.
  bool travels_in_fp8(size_t unit) const;
  // The piece's place among the weights that travel; undefined where that is the master weight itself.
  Tensor weight(const ParameterPiece& piece) const;

  // Waits for the reductions of the last micro-batch and completes what they leave: a tensor-parallel rank has
  // the gradients of the norms from its share of the tokens alone; they are summed in float32, to the same bits in
  // every copy.
  void finish_gradients(Stream& stream);

  // The master weights have changed, and casts.amaxes has those of this rank's pieces: they are made global, the FP8
  // shards are cast with them, and full weights are gathered anew.
  void publish(const WeightCasts& casts, Stream& stream);
  // After the master weights were set from outside: measures them, rounds them, and publishes.
  void set(const WeightCasts& casts, Stream& stream);

  Fsdp& fsdp() { return *fsdp_; }
  const Fsdp& fsdp() const { return *fsdp_; }
  // Views of the full weights and gradients of a unit; see Fsdp for when they are valid.
  Tensor full_weight(const ParameterSpec& spec) const { return full(fsdp_->weight(spec.unit), spec); }
  Tensor full_gradient(const ParameterSpec& spec) const { return full(fsdp_->gradient(spec.unit), spec); }

 private:
  static Tensor slice(const Tensor& shards, const ParameterPiece& piece) {
    return shards.rows(piece.offset, piece.offset + piece.end - piece.begin);
  }
  Tensor full(const Tensor& unit, const ParameterSpec& spec) const;
  DType traveling_dtype(const ParameterUnit& unit) const;
  std::optional<TableSpec> find_table(const ShardingOptions& sharding, const DataParallelGroups& groups) const;
  void find_pieces(int rank);
  void cast_to_fp8(const ParameterPiece& piece, const WeightCasts& casts, Stream& stream) const;

  const ParameterLayout* layout_;
  const Mesh* mesh_;
  PrecisionConfig precision_;
  std::vector<int64_t> shard_begin_;  // of each unit in shard buffers, and the end of the last
  std::vector<ParameterPiece> pieces_;
  Tensor master_;
  std::unique_ptr<Fsdp> fsdp_;
};

}  // namespace octavo
