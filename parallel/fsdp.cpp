#include "parallel/fsdp.h"

#include <algorithm>
#include <utility>

#include "kernels/add.h"
#include "kernels/cast.h"
#include "kernels/core/error.h"

namespace octavo {

namespace {

Tensor as(const Tensor& bytes, DType dtype, int64_t elements) { return Tensor(bytes.raw(), dtype, {elements}); }

std::vector<size_t> units_of(const FsdpOptions& options, size_t pool) {
  std::vector<size_t> units;
  for (size_t u = 0; u < options.units.size(); ++u) {
    if (options.units[u].pool == pool) units.push_back(u);
  }
  return units;
}

// Hands out the slots of a pool to its units in turn.
class Turns {
 public:
  // `first`: the pool's first slot among all.
  Turns(size_t first, size_t slots) : first_(first), bytes_(slots, 0) {}
  // The slot of the next unit, which needs `bytes` of it.
  size_t next(int64_t bytes) {
    const size_t slot = count_++ % bytes_.size();
    bytes_[slot] = std::max(bytes_[slot], bytes);
    return first_ + slot;
  }
  const std::vector<int64_t>& bytes() const { return bytes_; }

 private:
  size_t first_;
  size_t count_ = 0;
  std::vector<int64_t> bytes_;
};

}  // namespace

Fsdp::Fsdp(FsdpOptions options, Arena& arena, Stream& compute)
    : options_(std::move(options)),
      compute_(&compute),
      transfers_(Stream::beside(compute)),
      states_(options_.units.size()),
      shards_ready_(compute.device()),
      written_(compute.device()) {
  for (size_t pool = 0; pool < options_.pools.size(); ++pool) lay_out_weights(pool, arena);
  if (options_.gradients) lay_out_gradients(arena);
}

void Fsdp::lay_out_weights(size_t pool, Arena& arena) {
  const FsdpPool& p = options_.pools[pool];
  const std::vector<size_t> units = units_of(options_, pool);
  const bool keeps = alone() || p.weight_slots >= std::ssize(units);
  Turns turns(weight_slots_.size(), keeps ? units.size() : static_cast<size_t>(p.weight_slots));
  for (const size_t u : units) {
    const FsdpUnit& unit = options_.units[u];
    states_[u].keeps_weight = keeps;
    states_[u].weight_shard = unit.weight_shard;
    states_[u].weight_slot = turns.next(unit.shard_elements * options_.groups.size() * dtype_bytes(unit.weight_dtype));
  }
  std::vector<Tensor> slots;
  for (const int64_t bytes : turns.bytes()) {
    weight_slots_.emplace_back(compute_->device());
    if (!alone()) slots.push_back(arena.allocate("gathered " + p.name, DType::kUInt8, {bytes}));
  }
  for (const size_t u : units) {
    const FsdpUnit& unit = options_.units[u];
    State& s = states_[u];
    if (!alone()) {
      const Tensor& slot = slots[s.weight_slot - (weight_slots_.size() - slots.size())];
      s.weight = as(slot, unit.weight_dtype, unit.shard_elements * options_.groups.size());
    }
    // A kept unit's shard is its slice of the full weights, gathered in place.
    if (!s.weight_shard.defined() && keeps && !alone()) {
      s.weight_shard = s.weight.rows(options_.groups.rank() * unit.shard_elements,
                                     (options_.groups.rank() + 1) * unit.shard_elements);
    }
    if (!s.weight_shard.defined()) {
      s.weight_shard = arena.allocate("weights", unit.weight_dtype, {unit.shard_elements});
    }
    if (alone()) s.weight = s.weight_shard;
  }
}

void Fsdp::lay_out_gradients(Arena& arena) {
  int64_t total = 0;
  for (const FsdpUnit& unit : options_.units) total += unit.shard_elements;
  gradient_shards_ = arena.allocate("gradients", DType::kFloat32, {total});
  int64_t offset = 0;
  for (size_t u = 0; u < states_.size(); ++u) {
    const int64_t elements = options_.units[u].shard_elements;
    states_[u].gradient_shard = gradient_shards_.rows(offset, offset + elements);
    states_[u].gradient = states_[u].gradient_shard;  // in a group of one
    offset += elements;
  }
  if (alone()) return;
  int64_t arrived_bytes = 0;
  for (size_t pool = 0; pool < options_.pools.size(); ++pool) {
    const FsdpPool& p = options_.pools[pool];
    const std::vector<size_t> units = units_of(options_, pool);
    const bool keeps = p.gradient_slots >= std::ssize(units);
    const size_t first = gradient_slots_.size();
    Turns turns(first, keeps ? units.size() : static_cast<size_t>(p.gradient_slots));
    const auto dtype = [&](const FsdpUnit& unit) { return keeps ? DType::kFloat32 : unit.gradient_dtype; };
    for (const size_t u : units) {
      const FsdpUnit& unit = options_.units[u];
      states_[u].keeps_gradient = keeps;
      states_[u].gradient_slot = turns.next(unit.shard_elements * options_.groups.size() * dtype_bytes(dtype(unit)));
      if (!keeps) arrived_bytes = std::max(arrived_bytes, unit.shard_elements * dtype_bytes(dtype(unit)));
    }
    std::vector<Tensor> slots;
    for (const int64_t bytes : turns.bytes()) {
      gradient_slots_.emplace_back(compute_->device());
      slots.push_back(arena.allocate("full gradients of " + p.name, DType::kUInt8, {bytes}));
    }
    for (const size_t u : units) {
      const FsdpUnit& unit = options_.units[u];
      states_[u].gradient =
          as(slots[states_[u].gradient_slot - first], dtype(unit), unit.shard_elements * options_.groups.size());
    }
  }
  arrived_ = arena.allocate("reduced gradient", DType::kUInt8, {arrived_bytes});
}

void Fsdp::gather(size_t unit) {
  if (alone()) return;
  const State& s = states_[unit];
  Slot& slot = weight_slots_[s.weight_slot];
  if (slot.unit == static_cast<int64_t>(unit)) return;
  slot.free.wait(transfers_);
  shards_ready_.wait(transfers_);
  options_.groups.shard->all_gather(s.weight, s.weight_shard, transfers_, options_.units[unit].name.c_str());
  slot.filled.record(transfers_);
  slot.unit = static_cast<int64_t>(unit);
  slot.fresh = true;
  slot.waited = false;
}

bool Fsdp::use(size_t unit) {
  gather(unit);
  Slot& slot = weight_slots_[states_[unit].weight_slot];
  if (alone()) {
    const bool fresh = slot.unit < 0;
    slot.unit = static_cast<int64_t>(unit);
    return fresh;
  }
  if (!slot.waited) slot.filled.wait(*compute_);
  slot.waited = true;
  return std::exchange(slot.fresh, false);
}

void Fsdp::release(size_t unit) {
  if (alone()) return;
  weight_slots_[states_[unit].weight_slot].free.record(*compute_);
}

void Fsdp::begin_micro_batch(bool first, bool last) {
  first_ = first;
  last_ = last;
}

bool Fsdp::begin_gradient(size_t unit) {
  if (!alone()) gradient_slots_[states_[unit].gradient_slot].filled.wait(*compute_);
  return states_[unit].keeps_gradient && !first_;
}

void Fsdp::reduce(size_t unit) {
  const State& s = states_[unit];
  const DataParallelGroups& groups = options_.groups;
  const char* name = options_.units[unit].name.c_str();
  const bool scatters = !alone() && (last_ || !s.keeps_gradient);
  const bool replicates = groups.replicated() && last_;
  if (!scatters && !replicates) return;
  written_.record(*compute_);
  written_.wait(transfers_);
  if (scatters) {
    const bool adds = !s.keeps_gradient && !first_;
    const bool direct = !adds && s.gradient.dtype() == DType::kFloat32;
    const Tensor arrived = direct ? s.gradient_shard : as(arrived_, s.gradient.dtype(), s.gradient_shard.numel());
    groups.shard->reduce_scatter_sum(arrived, s.gradient, transfers_, name);
    if (adds) add({.out = s.gradient_shard, .x = arrived}, transfers_);
    if (!adds && !direct) cast({.out = s.gradient_shard, .x = arrived}, transfers_);
    gradient_slots_[s.gradient_slot].filled.record(transfers_);
  }
  if (replicates) groups.replicate->all_reduce_sum(s.gradient_shard, transfers_, name);
}

void Fsdp::finish_reductions() {
  if (alone() && !options_.groups.replicated()) return;
  written_.record(transfers_);
  written_.wait(*compute_);
}

void Fsdp::weights_changed() {
  shards_ready_.record(*compute_);
  for (Slot& slot : weight_slots_) slot.unit = -1;
}

}  // namespace octavo
