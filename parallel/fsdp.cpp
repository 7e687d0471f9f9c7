#include "parallel/fsdp.h"

#include "core/error.h"
#include "kernels/math/cast.h"
#include "kernels/math/sum_terms.h"

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

}  // namespace

Fsdp::Fsdp(FsdpOptions options, Arena& arena, Stream& compute)
    : options_(std::move(options)),
      compute_(&compute),
      transfers_(Stream::beside(compute)),
      replica_transfers_(Stream::beside(compute)),
      states_(options_.units.size()),
      shards_ready_(compute.device()),
      written_(compute.device()),
      scattered_(compute.device()) {
  for (size_t pool = 0; pool < options_.pools.size(); ++pool) assign_slots(pool);
  if (!alone()) allocate_slots(arena);
  lay_out_weights(arena);
  if (options_.gradients) lay_out_gradients(arena);
}

// Assigns the slots of a pool to its units in rotation.
void Fsdp::assign_slots(size_t pool) {
  const FsdpPool& p = options_.pools[pool];
  const std::vector<size_t> units = units_of(options_, pool);
  const auto count = std::ssize(units);
  const bool keeps_weights = alone() || p.weight_slots >= count;
  const bool keeps_gradients = alone() || p.gradient_slots >= count;
  const size_t first_weight = add_slots(weight_slots_, keeps_weights ? count : p.weight_slots);
  const size_t first_gradient = add_slots(gradient_slots_, keeps_gradients ? count : p.gradient_slots);
  for (size_t i = 0; i < units.size(); ++i) {
    const FsdpUnit& unit = options_.units[units[i]];
    const int64_t elements = unit.shard_elements * options_.groups.size();
    State& s = states_[units[i]];
    s.keeps_weight = keeps_weights;
    s.keeps_gradient = keeps_gradients;
    s.weight_slot = first_weight + i % (weight_slots_.size() - first_weight);
    s.gradient_slot = first_gradient + i % (gradient_slots_.size() - first_gradient);
    weight_slots_[s.weight_slot].enlarge(elements * dtype_bytes(unit.weight_dtype));
    gradient_slots_[s.gradient_slot].enlarge(full_gradient_bytes(units[i]));
  }
}

size_t Fsdp::add_slots(std::vector<Slot>& slots, int64_t count) const {
  const size_t first = slots.size();
  for (int64_t i = 0; i < count; ++i) slots.emplace_back(compute_->device());
  return first;
}

// Kept gradients are float32, because micro-batches add to them.
DType Fsdp::full_gradient_dtype(size_t unit) const {
  return states_[unit].keeps_gradient ? DType::kFloat32 : options_.units[unit].gradient_dtype;
}

// Returns the size of a unit's full gradient in its slot.
int64_t Fsdp::full_gradient_bytes(size_t unit) const {
  const FsdpUnit& u = options_.units[unit];
  if (u.tokens) return u.tokens->bytes;
  return u.shard_elements * options_.groups.size() * dtype_bytes(full_gradient_dtype(unit));
}

std::vector<size_t> Fsdp::slots_of(size_t pool, size_t State::*slot) const {
  std::vector<size_t> slots;
  for (const size_t u : units_of(options_, pool)) {
    if (std::find(slots.begin(), slots.end(), states_[u].*slot) == slots.end()) slots.push_back(states_[u].*slot);
  }
  return slots;
}

void Fsdp::allocate_weight_slots(size_t pool, Arena& arena) {
  const FsdpPool& p = options_.pools[pool];
  int64_t number = 0;
  for (const size_t i : slots_of(pool, &State::weight_slot)) {
    Slot& slot = weight_slots_[i];
    const Arena::Tag tag(arena, Contents::kGatheredWeights, p.of_blocks ? number++ : -1);
    slot.memory = arena.allocate("gathered " + p.name, DType::kUInt8, {slot.bytes}, p.weight_lifetime);
  }
}

void Fsdp::allocate_gradient_slots(size_t pool, Arena& arena) {
  const FsdpPool& p = options_.pools[pool];
  int64_t number = 0;
  for (const size_t i : slots_of(pool, &State::gradient_slot)) {
    Slot& slot = gradient_slots_[i];
    const Arena::Tag tag(arena, Contents::kGradients, p.of_blocks ? number++ : -1);
    slot.memory = arena.allocate("full gradients of " + p.name, DType::kUInt8, {slot.bytes}, p.gradient_lifetime);
  }
}

// Allocates the memory of the slots, which are the buffers for the full weights and gradients of units. The weight
// slots of a pool share memory with the gradient slots of the pool that weights_over() returns.
void Fsdp::allocate_slots(Arena& arena) {
  std::vector<bool> overlaid(options_.pools.size(), false);
  for (size_t pool = 0; pool < options_.pools.size(); ++pool) {
    const std::optional<size_t> over = options_.gradients ? weights_over(pool) : std::nullopt;
    if (!over) {
      allocate_weight_slots(pool, arena);
      continue;
    }
    arena.overlay({[&](Arena& memory) { allocate_weight_slots(pool, memory); },
                   [&](Arena& memory) { allocate_gradient_slots(*over, memory); }});
    overlaid[*over] = true;
    const std::vector<size_t> slots = slots_of(pool, &State::weight_slot);
    for (const size_t u : units_of(options_, *over)) states_[u].overwrites = slots;
  }
  for (size_t pool = 0; options_.gradients && pool < options_.pools.size(); ++pool) {
    if (!overlaid[pool]) allocate_gradient_slots(pool, arena);
  }
}

// Returns the pool whose full gradients share memory with the full weights of this pool. This requires that
// neither these gradients nor these weights are kept after use.
std::optional<size_t> Fsdp::weights_over(size_t pool) const {
  const std::optional<size_t> over = options_.pools[pool].weights_over;
  const auto none = [this](size_t p, bool State::*keeps) {
    const std::vector<size_t> units = units_of(options_, p);
    return std::none_of(units.begin(), units.end(), [&](size_t u) { return states_[u].*keeps; });
  };
  return over && none(pool, &State::keeps_weight) && none(*over, &State::keeps_gradient) ? over : std::nullopt;
}

void Fsdp::lay_out_weights(Arena& arena) {
  for (size_t u = 0; u < states_.size(); ++u) {
    const FsdpUnit& unit = options_.units[u];
    State& s = states_[u];
    const int64_t elements = unit.shard_elements;
    s.weight_shard = unit.weight_shard;
    if (!alone())
      s.weight = as(weight_slots_[s.weight_slot].memory, unit.weight_dtype, elements * options_.groups.size());
    // The shard of a kept unit is its slice of the full weights, which are gathered in place.
    if (!s.weight_shard.defined() && s.keeps_weight && !alone()) {
      s.weight_shard = s.weight.rows(options_.groups.rank() * elements, (options_.groups.rank() + 1) * elements);
    }
    const Arena::Tag tag(arena, Contents::kWeights);
    if (!s.weight_shard.defined()) s.weight_shard = arena.allocate("weights", unit.weight_dtype, {elements});
    if (alone()) s.weight = s.weight_shard;
  }
}

void Fsdp::lay_out_gradients(Arena& arena) {
  int64_t total = 0;
  for (const FsdpUnit& unit : options_.units) total += unit.shard_elements;
  {
    const Arena::Tag tag(arena, Contents::kGradients);
    gradient_shards_ = arena.allocate("gradients", DType::kFloat32, {total}, Lifetime::kStep);
  }
  int64_t offset = 0;
  for (size_t u = 0; u < states_.size(); ++u) {
    const int64_t elements = options_.units[u].shard_elements;
    states_[u].gradient_shard = gradient_shards_.rows(offset, offset + elements);
    states_[u].gradient = states_[u].gradient_shard;
    offset += elements;
  }
  if (!alone()) make_reductions(arena);
  int64_t replica_bytes = 0;
  for (size_t u = 0; u < states_.size(); ++u) {
    if (!sums_terms_of_replicas(u)) continue;
    const FsdpUnit& unit = options_.units[u];
    replica_bytes =
        std::max(replica_bytes, replica_terms_at_once(unit.shard_elements) * dtype_bytes(unit.gradient_dtype));
  }
  if (replica_bytes == 0) return;
  for (Tensor* tensor : {&replica_terms_, &replica_sums_}) {
    *tensor = arena.allocate("gradients between replicas", DType::kUInt8, {replica_bytes}, Lifetime::kBlock);
  }
}

// Creates the full gradients in their slots and the reduction of each into its shard.
void Fsdp::make_reductions(Arena& arena) {
  int64_t bytes = 0;
  for (size_t u = 0; u < states_.size(); ++u) {
    State& s = states_[u];
    const FsdpUnit& unit = options_.units[u];
    const DType dtype = full_gradient_dtype(u);
    const Tensor& memory = gradient_slots_[s.gradient_slot].memory;
    s.reduced = {.gradient = unit.tokens ? memory : as(memory, dtype, unit.shard_elements * options_.groups.size()),
                 .shard = s.gradient_shard,
                 .keeps = s.keeps_gradient,
                 .as_terms = unit.in_rank_order || (options_.groups.all_to_all_load == 1 && dtype == DType::kBFloat16),
                 .ranks = options_.groups.shard,
                 .name = name(u)};
    if (unit.tokens) s.tokens = unit.tokens->make_reduction(s.reduced);
    s.gradient = s.tokens ? s.tokens->column_slices() : s.reduced.gradient;
    if (!s.tokens) bytes = std::max(bytes, arrived_bytes(s.reduced));
  }
  arrived_ = arena.allocate("reduced gradient", DType::kUInt8, {bytes}, Lifetime::kBlock);
}

void Fsdp::gather(size_t unit) {
  if (alone()) return;
  const State& s = states_[unit];
  Slot& slot = weight_slots_[s.weight_slot];
  if (slot.unit == static_cast<int64_t>(unit)) return;
  slot.free.wait(transfers_);
  shards_ready_.wait(transfers_);
  options_.groups.shard->all_gather(s.weight, s.weight_shard, transfers_, name(unit));
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

bool Fsdp::begin_gradient(size_t unit, const MicroBatchPosition& position) {
  if (!alone()) {
    Slot& slot = gradient_slots_[states_[unit].gradient_slot];
    const int64_t held = std::exchange(slot.unit, static_cast<int64_t>(unit));
    CHECK(held < 0 || held == slot.unit, "the gradient of {} is written over that of {}, which is not reduced",
          name(unit), name(static_cast<size_t>(held)));
    slot.filled.wait(*compute_);
  }
  for (const size_t slot : states_[unit].overwrites) weight_slots_[slot].unit = -1;
  if (!states_[unit].overwrites.empty() || shares_slot_with_tokens(unit)) clear_padding(unit);
  return states_[unit].keeps_gradient && !position.first;
}

// Returns whether the unit's gradient shares a slot with the tokens of another unit.
bool Fsdp::shares_slot_with_tokens(size_t unit) const {
  const auto shares_slot = [&](const State& s) {
    return s.tokens != nullptr && s.gradient_slot == states_[unit].gradient_slot;
  };
  return states_[unit].tokens == nullptr && std::any_of(states_.begin(), states_.end(), shares_slot);
}

void Fsdp::clear_padding(size_t unit) {
  for (const ElementRange& range : options_.units[unit].padding) {
    compute_->zero(states_[unit].gradient.rows(range.begin, range.end));
  }
}

void Fsdp::reduce(size_t unit, const MicroBatchPosition& position) {
  if (observer_) observer_(unit);
  const State& s = states_[unit];
  const bool reduces = !alone() && (s.tokens || is_complete(unit, position));
  const bool replicates = options_.groups.replicated() && position.last;
  if (!reduces && !replicates) return;
  written_.record(*compute_);
  written_.wait(transfers_);
  if (reduces) {
    s.tokens ? s.tokens->run(position, transfers_) : reduce_gradient(s.reduced, arrived_, position.first, transfers_);
    gradient_slots_[s.gradient_slot].filled.record(transfers_);
    gradient_slots_[s.gradient_slot].unit = -1;
  }
  if (!replicates) return;
  sum_previous_over_replicas();
  scattered_.record(transfers_);
  scattered_unit_ = unit;
}

void Fsdp::sum_previous_over_replicas() {
  if (!scattered_unit_) return;
  scattered_.wait(replica_transfers_);
  sum_over_replicas(*std::exchange(scattered_unit_, std::nullopt));
}

void Fsdp::reduce_tokens(size_t unit, const TokenRows& tokens, const MicroBatchPosition& position) {
  states_[unit].tokens->slice_columns(tokens, *compute_);
  reduce(unit, position);
}

bool Fsdp::sums_terms_of_replicas(size_t unit) const {
  const FsdpUnit& u = options_.units[unit];
  return options_.groups.replicated() && (u.in_rank_order || u.gradient_dtype == DType::kBFloat16);
}

// Sums the shard over replicas in chunks that fit into the buffers. Each replica receives the terms of its part of a
// chunk and sums them, and then all replicas gather the sums.
void Fsdp::sum_over_replicas(size_t unit) {
  Communicator& replicas = *options_.groups.replicate;
  Stream& stream = replica_transfers_;
  const Tensor& shard = states_[unit].gradient_shard;
  if (!sums_terms_of_replicas(unit)) return replicas.all_reduce_sum(shard, stream, name(unit));
  const int64_t elements = shard.numel();
  const int64_t step = replica_terms_at_once(elements);
  for (int64_t begin = 0; begin < elements; begin += step) {
    const Tensor chunk = shard.rows(begin, std::min(begin + step, elements));
    const Tensor sums = as(replica_sums_, options_.units[unit].gradient_dtype, step);
    const Tensor terms = as(replica_terms_, options_.units[unit].gradient_dtype, step);
    const Tensor values = sums.rows(0, chunk.numel());  // The elements after these are transferred but not used.
    const int64_t part = step / replicas.size();
    const Tensor mine = sums.rows(replicas.rank() * part, (replicas.rank() + 1) * part);
    cast({.out = values, .x = chunk}, stream);
    replicas.all_to_all(terms, sums, 0, stream, name(unit));
    sum_terms({.out = mine, .terms = terms}, stream);
    replicas.all_gather(sums, mine, stream, name(unit));
    cast({.out = chunk, .x = values}, stream);
  }
}

// Returns how many elements of a shard are summed over replicas at a time, a multiple of the number of replicas.
int64_t Fsdp::replica_terms_at_once(int64_t shard_elements) const {
  constexpr int64_t kMostElements = int64_t{1} << 26;
  constexpr int64_t kMultiple = 1 << 10;  // Multiple of elements that gives all parts the same alignment.
  const int64_t parts = options_.groups.replicate->size();
  const int64_t part = (std::min(shard_elements, kMostElements) + parts - 1) / parts;
  return (part + kMultiple - 1) / kMultiple * kMultiple * parts;
}

void Fsdp::finish_reductions() {
  if (alone() && !options_.groups.replicated()) return;
  sum_previous_over_replicas();
  for (Stream* stream : {&transfers_, &replica_transfers_}) {
    written_.record(*stream);
    written_.wait(*compute_);
  }
}

void Fsdp::weights_changed() {
  shards_ready_.record(*compute_);
  for (Slot& slot : weight_slots_) slot.unit = -1;
}

}  // namespace octavo
