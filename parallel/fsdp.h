// Fully sharded data parallelism (ZeRO stage 3, Rajbhandari et al., arXiv 1910.02054; FSDP, Zhao et al., arXiv
// 2304.11277) of flat buffers. Fsdp does not depend on the model. A unit (a block, a table) is gathered and reduced by
// one collective, and every rank of the shard group stores an equal slice of the unit's weights and gradient.
//
//     forward and backward of unit u      gather(u) ahead; use(u); the ops that read weight(u); release(u)
//     backward of unit u                  begin_gradient(u, position); ops that write gradient(u); reduce(u, position)
//     backward if takes_tokens(u)         begin_gradient(u, position); reduce_tokens(u, token gradients, position)
//     before the optimizer or a new step  finish_reductions()
//     after the optimizer                 weights_changed()
//
// Units are grouped into pools. A pool has slots, in which full weights and gradients are stored. If a pool has fewer
// slots than units, its units rotate: unit i of the pool uses slot i mod slots. So addresses are known at construction,
// and with two slots two neighbouring units never share a slot. Rotating weights of a pool may share memory with
// rotating gradients of another pool that are written only after the last use of those weights
// (FsdpPool::weights_over). In a group of one rank, the full tensors are the shards and nothing is transferred.
//
// Collectives of the shard group run on their own stream, and collectives over replicas, which may use slower links, on
// another stream, so that gathers do not wait for them. A device may start collectives in the order in which they were
// queued, even on several streams, so a unit's sum over replicas is queued with the reduction of the next unit. If the
// sum were queued earlier, it would wait for the unit's reduce-scatter and hold up all later collectives, such as those
// of tensor parallelism. Events order these streams with the given compute stream. All methods except the accessors are
// collectives of the group in the sense of Communicator: every rank makes the same calls in the same order. With n
// ranks, a rank receives (n-1)/n of the unit's weights per gather and (n-1)/n of its gradient per reduce; over n
// replicas it receives 2 (n-1)/n of its gradient shard.
//
// A bfloat16 gradient is rounded twice over replicas, for any number of replicas: first each replica's term, then the
// sum. Each replica collects the terms of one part and sums them in float32 in rank order. All replicas get the same
// bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/arena.h"
#include "core/stream.h"
#include "parallel/communicator.h"
#include "parallel/gradient_reduction.h"

namespace octavo {

// Groups of ranks that share data-parallel work. Null: a group of one rank.
struct DataParallelGroups {
  // Ranks that hold the slices of one replica of the state.
  Communicator* shard = nullptr;
  // Ranks that hold the same slice of different replicas.
  Communicator* replicate = nullptr;
  // MeshShape::all_to_all_load() of the shard group.
  int64_t all_to_all_load = 1;
  int rank() const { return shard != nullptr ? shard->rank() : 0; }
  int size() const { return shard != nullptr ? shard->size() : 1; }
  bool replicated() const { return replicate != nullptr && replicate->size() > 1; }
};

struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Options of a table, such as the embedding, whose gradient is reduced from the gradients of the tokens that read the
// table. Ranks exchange these instead of the larger gradient of the table.
struct TokenUnit {
  int64_t bytes = 0;  // Size of ReducedUnit::gradient.
  std::function<std::unique_ptr<TokenReduction>(const ReducedUnit&)> make_reduction;
};

struct FsdpUnit {
  std::string name;  // Name in messages: "block 3".
  // Number of elements per rank. The full unit has size() times as many.
  int64_t shard_elements = 0;
  DType weight_dtype = DType::kBFloat16;  // Dtype in which the weights are gathered.
  // [shard_elements] weight_dtype. Set if the caller owns the shard; otherwise Fsdp allocates it.
  Tensor weight_shard;
  // Dtype in which the gradient is reduced, float32 or bfloat16. Sums are computed in float32.
  DType gradient_dtype = DType::kFloat32;
  // Whether the terms of a sum are added in rank order. Otherwise a reduce-scatter or all-reduce may choose the order
  // by the position of an element, and equal terms at two positions may have sums that differ in their last bits.
  bool in_rank_order = false;
  // Ranges of the full unit that belong to no parameter, so no op writes their gradient. They are zero in
  // gradient_shard().
  std::vector<ElementRange> padding;
  // Set for a table whose gradient is computed from the gradients of its tokens.
  std::optional<TokenUnit> tokens = {};
  size_t pool = 0;
};

// Units that share slots. If a pool has at least as many slots as units, each unit is kept in a slot of its own.
struct FsdpPool {
  std::string name;
  bool of_blocks = false;  // True if the units are the blocks of the model.
  int64_t weight_slots = 0;
  int64_t gradient_slots = 0;
  // Lifetimes of the contents of the slots.
  Lifetime weight_lifetime = Lifetime::kRun;
  Lifetime gradient_lifetime = Lifetime::kStep;
  // Index of the pool whose gradients may share memory with this pool's weights, if these gradients and weights rotate.
  // Requires: the backward pass of that pool comes after the last use of these weights in a micro-batch.
  std::optional<size_t> weights_over = {};
};

struct FsdpOptions {
  std::vector<FsdpUnit> units;
  std::vector<FsdpPool> pools;
  DataParallelGroups groups;
  bool gradients = true;  // Whether there are gradients. False for inference.
};

class Fsdp {
 public:
  Fsdp(FsdpOptions options, Arena& arena, Stream& compute);
  Fsdp(const Fsdp&) = delete;
  Fsdp& operator=(const Fsdp&) = delete;

  // Return the full weights and gradient of a unit. The weights are [size * shard_elements] in weight_dtype, valid
  // between use() and release(). The gradient has the same shape, in float32 if keeps_gradient() and otherwise in
  // gradient_dtype. Ops write it between begin_gradient() and reduce(). For a unit with takes_tokens(), gradient() is
  // the copy of the tokens' gradients that reduce_tokens() makes.
  const Tensor& weight(size_t unit) const { return states_[unit].weight; }
  const Tensor& gradient(size_t unit) const { return states_[unit].gradient; }
  // Return this rank's slices. gradient_shards() are the float32 gradient slices of all units, one after the other.
  const Tensor& weight_shard(size_t unit) const { return states_[unit].weight_shard; }
  const Tensor& gradient_shard(size_t unit) const { return states_[unit].gradient_shard; }
  const Tensor& gradient_shards() const { return gradient_shards_; }

  // Return whether a unit's weights (gradient) have a slot of their own. Such weights stay valid between uses, and ops
  // add the gradients of several micro-batches in such a slot.
  bool keeps_weight(size_t unit) const { return states_[unit].keeps_weight; }
  bool keeps_gradient(size_t unit) const { return states_[unit].keeps_gradient; }
  // Returns whether the caller must use reduce_tokens() instead of reduce() and must not write gradient(). True for a
  // TokenUnit in a group of several ranks.
  bool takes_tokens(size_t unit) const { return states_[unit].tokens != nullptr; }
  const char* name(size_t unit) const { return options_.units[unit].name.c_str(); }
  // Return the streams of the collectives of the shard group and of the collectives over replicas.
  Stream& transfers() { return transfers_; }
  Stream& replica_transfers() { return replica_transfers_; }

  // Starts the gather of the unit's full weights, unless they are present or already being gathered.
  // Requires: the unit that used the slot before has been released.
  void gather(size_t unit);
  // Makes the compute stream wait for the weights, and gathers them if gather() was not called. Returns true if the
  // weights have been gathered since the last use of the unit.
  bool use(size_t unit);
  // Marks the weights as no longer needed by the operations that follow on the compute stream. The slot may be reused.
  void release(size_t unit);

  // Makes the compute stream wait until the gradient's slot is free, and zeroes the unit's padding if other data may
  // have overwritten it. Returns true if ops must add to the gradient instead of overwriting it.
  bool begin_gradient(size_t unit, const MicroBatchPosition& position);
  // Returns whether reduce() reduces the full gradient into gradient_shard() after this micro-batch. Otherwise later
  // micro-batches add to the full gradient first.
  bool is_complete(size_t unit, const MicroBatchPosition& position) const {
    return position.last || !keeps_gradient(unit);
  }
  // Reduces the gradient into gradient_shard() if is_complete(), with = for the first micro-batch and += for later
  // ones. With the last micro-batch, the shards are also summed over replicas.
  // Requires: the last operation that writes the gradient has been queued.
  void reduce(size_t unit, const MicroBatchPosition& position);
  // Equivalent of reduce() for a unit with takes_tokens(). The gradients of this rank's tokens are copied on the
  // compute stream.
  void reduce_tokens(size_t unit, const TokenRows& tokens, const MicroBatchPosition& position);
  // Sets a function that reduce() calls before it reduces the unit's gradient, when all operations that compute this
  // rank's gradient of this micro-batch have been queued on the compute stream. The function may queue operations that
  // read the gradient on that stream. Null removes it.
  void observe_gradients(std::function<void(size_t unit)> observer) { observer_ = std::move(observer); }
  // Queues the last sum over replicas and makes the compute stream wait for all reductions. Must be called after the
  // last micro-batch of every step, even if the step does not use the gradients.
  void finish_reductions();
  // Marks all full weights as outdated, so that they are gathered again.
  // Requires: the operations that update the weight shards have been queued.
  void weights_changed();

 private:
  struct State {
    Tensor weight, weight_shard, gradient, gradient_shard;
    ReducedUnit reduced;                     // Reduction of the unit's gradient in a group of several ranks.
    std::unique_ptr<TokenReduction> tokens;  // Reduction of a unit with takes_tokens(). Null for others.
    bool keeps_weight = true;
    bool keeps_gradient = true;
    // Index of the unit's slot in weight_slots_.
    size_t weight_slot = 0;
    // Index of the unit's slot in gradient_slots_.
    size_t gradient_slot = 0;
    // Weight slots that share memory with this gradient.
    std::vector<size_t> overwrites;
  };
  struct Slot {
    explicit Slot(Device device) : filled(device), free(device) {}
    void enlarge(int64_t more) { bytes = std::max(bytes, more); }
    int64_t bytes = 0;  // Size in bytes, that of the slot's largest unit.
    Tensor memory;      // Memory of the slot. Undefined in a group of one rank.
    // Unit whose weights the slot holds, or whose gradient is being written and not yet reduced. -1: none.
    int64_t unit = -1;
    bool fresh = false;   // Whether the weights were gathered and not yet used.
    bool waited = false;  // Whether the compute stream has waited for `filled`.
    // Event after which the gather of the weights, or the reduction of the gradients, is complete.
    Event filled;
    // Event after which the compute stream no longer reads the slot.
    Event free;
  };

  void assign_slots(size_t pool);
  size_t add_slots(std::vector<Slot>& slots, int64_t count) const;  // Returns the index of the first new slot.
  DType full_gradient_dtype(size_t unit) const;
  int64_t full_gradient_bytes(size_t unit) const;
  std::vector<size_t> slots_of(size_t pool, size_t State::*slot) const;
  std::optional<size_t> weights_over(size_t pool) const;
  void allocate_weight_slots(size_t pool, Arena& arena);
  void allocate_gradient_slots(size_t pool, Arena& arena);
  void allocate_slots(Arena& arena);
  void lay_out_weights(Arena& arena);
  void lay_out_gradients(Arena& arena);
  void make_reductions(Arena& arena);
  bool shares_slot_with_tokens(size_t unit) const;
  void clear_padding(size_t unit);
  void sum_previous_over_replicas();
  void sum_over_replicas(size_t unit);
  bool sums_terms_of_replicas(size_t unit) const;
  int64_t replica_terms_at_once(int64_t shard_elements) const;
  bool alone() const { return options_.groups.size() == 1; }

  FsdpOptions options_;
  Stream* compute_;
  Stream transfers_;
  Stream replica_transfers_;
  std::vector<State> states_;
  std::vector<Slot> weight_slots_;
  std::vector<Slot> gradient_slots_;
  Tensor gradient_shards_;
  Tensor arrived_;  // Buffer of reduce_gradient().
  // Buffers for gradients whose terms are summed over replicas.
  Tensor replica_terms_, replica_sums_;
  Event shards_ready_;
  Event written_;  // Event after which the gradient is ready for its reduction.
  // Event after which the gradient of scattered_unit_ has been summed over the shard group.
  Event scattered_;
  // Unit whose sum over replicas is not queued yet.
  std::optional<size_t> scattered_unit_;
  std::function<void(size_t unit)> observer_;
};

}  // namespace octavo
