#include "app/observers/corruption_check.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "kernels/math/bit_hash.h"

namespace octavo {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HashedPart, what, copy)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CheckedRank, place, parts)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CorruptionVerdict, ranks, replicas_differ, message)

CorruptionCheck::CorruptionCheck(const Config& config, TrainingState& state, ProcessGroup& group,
                                 const std::string& place)
    : state_(state),
      stream_(state.mesh.stream()),
      group_(group),
      every_(config.training.corruption_check_every),
      recomputes_(!stream_.is_cuda() || stream_.deterministic()),
      parts_(replicated_parts(config.model, state)),
      results_({"losses"}) {
  // All ranks list the units of the whole model, so that the results of all pipeline stages have the same places.
  const ParameterLayout whole = state.parameters.layout().whole();
  for (const ParameterUnit& unit : whole.units()) results_.push_back("gradients of " + unit.name);
  for (const ParameterUnit& unit : state.parameters.layout().units()) {
    const auto result = std::find(results_.begin(), results_.end(), "gradients of " + unit.name);
    result_of_unit_.push_back(static_cast<size_t>(result - results_.begin()));
  }
  const int64_t count = 2 * std::ssize(results_) + std::ssize(parts_);
  CHECK(count <= state.hashes.dim(0), "there are {} hashes, expected at most {}", count, state.hashes.dim(0));
  hashes_ = state.hashes.rows(0, count);
  for (int slot = 0; slot < 2; ++slot) {
    pending_.push_back({Buffer::host(stream_.device(), hashes_.bytes()), Event(stream_.device())});
  }
  CheckedRank mine{.place = place, .parts = {}};
  for (const HashedSlice& slice : parts_) mine.parts.push_back(slice.part);
  const std::vector<std::string> all = group.gather(nlohmann::json(mine).dump());
  if (!group.is_root()) return;
  for (const std::string& text : all) ranks_.push_back(nlohmann::json::parse(text));
}

void CorruptionCheck::begin_step(const TrainingStep& step) {
  stream_.zero(passes());
  if (!recomputes_) return;
  hash_results(0);
  state_.model.forward_backward(state_.batch.micro_batch(0), loss_scale(step), true,
                                state_.batch.num_micro_batches() == 1);
  state_.parameters.fsdp().finish_reductions();  // The step overwrites the gradients.
  state_.parameters.fsdp().weights_changed();    // Makes the step gather, cast and measure all weights again.
  hash_results(1);
}

// Queues hashing of the results of the next micro-batch. The losses are hashed when the first gradient is complete on
// the compute stream: at that time the losses are complete and not yet overwritten. If the stage has several chunks,
// the gradients of norms are not hashed, because in a step other micro-batches have added to them by then.
void CorruptionCheck::hash_results(int64_t pass) {
  auto hash = [this, pass, hashed = std::vector<bool>(results_.size())](size_t result, const Tensor& x) mutable {
    if (hashed[result]) return;  // Only the first micro-batch is hashed.
    hashed[result] = true;
    const int64_t row = pass * std::ssize(results_) + static_cast<int64_t>(result);
    bit_hash({.out = hashes_.rows(row, row + 1).view({2}), .x = x}, stream_);
  };
  state_.parameters.fsdp().observe_gradients([this, hash](size_t unit) mutable {
    if (state_.model.losses().defined()) hash(0, state_.model.losses());
    if (unit == ParameterLayout::kNorms && state_.parameters.layout().stage().size() > 1) return;
    hash(result_of_unit_[unit], state_.parameters.fsdp().gradient(unit));
  });
}

void CorruptionCheck::end_step() {
  CHECK(pushed_ - popped_ < std::ssize(pending_), "{} checks are pending", pushed_ - popped_);
  state_.parameters.fsdp().observe_gradients(nullptr);
  int64_t row = passes().dim(0);
  stream_.zero(hashes_.rows(row, hashes_.dim(0)));
  for (const HashedSlice& slice : parts_) {
    bit_hash({.out = hashes_.rows(row, row + 1).view({2}), .x = slice.data, .begin = slice.begin}, stream_);
    ++row;
  }
  Pending& pending = pending_[static_cast<size_t>(pushed_++ % std::ssize(pending_))];
  stream_.copy(pending.host.data(), hashes_.raw(), hashes_.bytes());
  pending.copied.record(stream_);
}

CorruptionVerdict CorruptionCheck::finish() {
  CHECK(popped_ < pushed_, "no check is pending");
  Pending& pending = pending_[static_cast<size_t>(popped_++ % std::ssize(pending_))];
  pending.copied.synchronize();
  const std::vector<std::string> all =
      group_.gather({static_cast<const char*>(pending.host.data()), static_cast<size_t>(hashes_.bytes())});
  CorruptionVerdict verdict;
  if (group_.is_root()) {
    std::vector<RankHashes> hashes;
    for (const std::string& packed : all) {
      std::vector<uint64_t> values(packed.size() / sizeof(uint64_t));
      std::memcpy(values.data(), packed.data(), packed.size());
      const auto second = values.begin() + std::ssize(results_);
      const auto parts = second + std::ssize(results_);
      hashes.push_back({.first = {values.begin(), second}, .second = {second, parts}, .parts = {parts, values.end()}});
    }
    verdict = judge(ranks_, hashes, results_);
  }
  return nlohmann::json::parse(group_.broadcast(nlohmann::json(verdict).dump()));
}

CorruptionVerdict CorruptionCheck::check_state() {
  CHECK(pushed_ == popped_, "{} checks are pending", pushed_ - popped_);
  stream_.zero(passes());
  end_step();
  return finish();
}

}  // namespace octavo
