// Fully sharded data parallelism (ZeRO stage 3, Rajbhandari et al., arXiv 1910.02054; FSDP, Zhao et al., arXiv
// 2304.11277) of flat buffers. It knows of no model: a unit is what is gathered and reduced at once (a block, a table),
// and every rank of the shard group keeps an equal slice of its weights and of its gradient.
//
//   forward and backward of unit u     gather(u) ahead; use(u); the ops that read weight(u); release(u)
//   backward of unit u                 begin_gradient(u, place); the ops that write gradient(u); reduce(u, place)
//     of one that takes tokens         begin_gradient(u, place); reduce_tokens(u, the gradients of the tokens, place)
//   before the optimizer               finish_reductions()
//   after it                           weights_changed()
//
// Full weights and gradients lie in slots. Units of a pool with fewer slots than units take turns, unit i of the pool
// in slot i mod slots, so an address is known at construction and two neighbours never meet in one slot (with two
// slots). Rotating weights of a pool may lie over the rotating gradients of another that are only written once those
// weights were used (FsdpPool::weights_over). In a group of one, the full tensors are the shards themselves, and
// nothing moves.
//
// Collectives run on a stream of their own, beside the compute stream that is given; those over replicas, which may be
// on slower links, on another, so that gathers do not wait for them. Events order the streams. All methods but the
// accessors are collectives of the group in the sense of Communicator: the same calls in the same order on every rank.
// Bytes received per rank, n ranks: gather (n-1)/n of the unit's weights, reduce (n-1)/n of its gradient, and over n
// replicas 2 (n-1)/n of the shard's.
//
// Over replicas a gradient that travels in bfloat16 is rounded twice, however many they are: every replica's term, of
// which each replica brings together a part and sums it in float32 in rank order, and the sum. All have the same bits.
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

// The axes of the mesh that share data-parallel work; null: an axis of one rank.
struct DataParallelGroups {
  Communicator* shard = nullptr;      // ranks that hold the slices of one copy
  Communicator* replicate = nullptr;  // ranks that hold the same slice
  int64_t all_to_all_load = 1;        // MeshShape::all_to_all_load()
  int rank() const { return shard != nullptr ? shard->rank() : 0; }
  int size() const { return shard != nullptr ? shard->size() : 1; }
  bool replicated() const { return replicate != nullptr && replicate->size() > 1; }
};

struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// A unit whose gradient is given as that of the tokens that read it.
struct TokenUnit {
  int64_t bytes = 0;  // of ReducedUnit::gradient
  std::function<std::unique_ptr<TokenReduction>(const ReducedUnit&)> make_reduction;
};

struct FsdpUnit {
  std::string name;                       // for messages: "block 3"
  int64_t shard_elements = 0;             // of one rank; the full unit has size() times as many
  DType weight_dtype = DType::kBFloat16;  // as the weights travel
  Tensor weight_shard;  // [shard_elements] weight_dtype where the weights lie elsewhere; else allocated
  DType gradient_dtype = DType::kFloat32;  // as the gradient travels, float32 or bfloat16; it is summed in float32
  // Of the full unit: what holds no parameter, so that no op writes its gradient. It is zero in gradient_shard().
  std::vector<ElementRange> padding;
  // A table whose gradient is that of the tokens that read it.
  std::optional<TokenUnit> tokens = {};
  size_t pool = 0;
};

// Slots for the units of a pool; as many as units (or more) keep all of them.
struct FsdpPool {
  std::string name;
  bool of_blocks = false;  // its units are the blocks of the model
  int64_t weight_slots = 0;
  int64_t gradient_slots = 0;
  // Of what lies in them.
  Lifetime weight_lifetime = Lifetime::kRun;
  Lifetime gradient_lifetime = Lifetime::kStep;
  // The pool over whose gradients this pool's weights may lie, where neither are kept: its backward comes after the
  // last use of these weights in a micro-batch.
  std::optional<size_t> weights_over = {};
};

struct FsdpOptions {
  std::vector<FsdpUnit> units;
  std::vector<FsdpPool> pools;
  DataParallelGroups groups;
  bool gradients = true;  // false in inference
};

class Fsdp {
 public:
  Fsdp(FsdpOptions options, Arena& arena, Stream& compute);
  Fsdp(const Fsdp&) = delete;
  Fsdp& operator=(const Fsdp&) = delete;

  // The full unit: weights [size * shard_elements] in weight_dtype, valid between use() and release(); the gradient of
  // the same shape, float32 or gradient_dtype, for the ops to write between begin_gradient() and reduce(); of a unit
  // that takes_tokens() what reduce_tokens() made of them.
  const Tensor& weight(size_t unit) const { return states_[unit].weight; }
  const Tensor& gradient(size_t unit) const { return states_[unit].gradient; }
  // This rank's slices. Gradients are float32, of all units one after the other: gradient_shards().
  const Tensor& weight_shard(size_t unit) const { return states_[unit].weight_shard; }
  const Tensor& gradient_shard(size_t unit) const { return states_[unit].gradient_shard; }
  const Tensor& gradient_shards() const { return gradient_shards_; }

  // Whether a unit's weights (gradient) have a slot of their own, and so last from use to use (micro-batch to
  // micro-batch, in which case ops add to them).
  bool keeps_weight(size_t unit) const { return states_[unit].keeps_weight; }
  bool keeps_gradient(size_t unit) const { return states_[unit].keeps_gradient; }
  // Whether reduce_tokens() is called in place of reduce(), and nothing is written to gradient(): of a TokenUnit, among
  // several ranks.
  bool takes_tokens(size_t unit) const { return states_[unit].tokens != nullptr; }
  const char* name(size_t unit) const { return options_.units[unit].name.c_str(); }
  // On which the collectives run.
  Stream& transfers() { return transfers_; }
  Stream& replica_transfers() { return replica_transfers_; }  // those over replicas

  // Starts bringing the unit's full weights, if they are not there or on their way; after the last use of whatever lies
  // in its slot.
  void gather(size_t unit);
  // The compute stream waits for the weights; gathers them if nobody did. True when they have come anew since the last
  // use of the unit.
  bool use(size_t unit);
  // The compute stream has queued its last reader for now: the slot may be given to the next.
  void release(size_t unit);

  // The compute stream waits until the gradient's slot is free, and clears the unit's padding where other things lay
  // there. True when the ops are to add to what it holds.
  bool begin_gradient(size_t unit, const MicroBatchPlace& place);
  // Whether reduce() reduces the full gradient into gradient_shard(). Otherwise later micro-batches add to it first.
  bool is_complete(size_t unit, const MicroBatchPlace& place) const { return place.last || !keeps_gradient(unit); }
  // The compute stream has queued the last writer. Reduces the gradient into gradient_shard() if it is_complete(): =
  // with the first micro-batch, += with later ones. Sums the shards over replicas with the last micro-batch.
  void reduce(size_t unit, const MicroBatchPlace& place);
  // The same of a table, where takes_tokens(): of the gradients of this rank's tokens, which are copied on the compute
  // stream.
  void reduce_tokens(size_t unit, const TokenRows& tokens, const MicroBatchPlace& place);
  // From now on reduce() calls `observer` first, when what the gradient gets from this rank and micro-batch is queued
  // on the compute stream and nothing has been reduced; null: no longer. It may queue what reads the gradient there.
  void observe_gradients(std::function<void(size_t unit)> observer) { observer_ = std::move(observer); }
  // The compute stream waits for all reductions.
  void finish_reductions();
  // The compute stream has queued the last writer of the weight shards: full weights are gathered anew.
  void weights_changed();

 private:
  struct State {
    Tensor weight, weight_shard, gradient, gradient_shard;
    std::unique_ptr<GradientReduction> reduction;  // null in a group of one
    TokenReduction* tokens = nullptr;              // the same, where the unit takes tokens
    bool keeps_weight = true;
    bool keeps_gradient = true;
    size_t weight_slot = 0;          // of all pools
    size_t gradient_slot = 0;        // of all pools
    std::vector<size_t> overwrites;  // weight slots that its gradient lies over
  };
  struct Slot {
    explicit Slot(Device device) : filled(device), free(device) {}
    void enlarge(int64_t more) { bytes = std::max(bytes, more); }
    int64_t bytes = 0;    // of the largest of its units
    Tensor memory;        // undefined in a group of one
    int64_t unit = -1;    // whose weights it holds
    bool fresh = false;   // gathered and not yet used
    bool waited = false;  // the compute stream has waited for `filled`
    Event filled;         // of weights: gathered; of gradients: reduced
    Event free;           // no reader left on the compute stream
  };

  void assign_slots(size_t pool);
  size_t add_slots(std::vector<Slot>& slots, int64_t count) const;  // the first of the new ones
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
  bool behind_tokens(size_t unit) const;
  void clear_padding(size_t unit);
  void sum_over_replicas(size_t unit);
  bool rounds_over_replicas(size_t unit) const;
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
  Tensor replica_terms_, replica_sums_;  // of a gradient in bfloat16, on the way to the replicas and back
  Event shards_ready_;
  Event written_;    // the gradient to reduce is complete
  Event scattered_;  // and so is the shard's sum over the shard group
  std::function<void(size_t unit)> observer_;
};

}  // namespace octavo
