#include "app/guard/corruption_check.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "kernels/math/bit_hash.h"

namespace octavo {

namespace {

template <typename T>
std::string bytes_of(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

template <typename T>
std::vector<T> values_of(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

nlohmann::json to_json(const CheckedRank& rank) {
  nlohmann::json json = {{"place", rank.place}, {"processor", rank.processor}, {"neighbor", rank.neighbor}};
  auto& parts = json["parts"] = nlohmann::json::array();
  for (const HashedPart& part : rank.parts) parts.push_back({part.what, part.copy});
  return json;
}

CheckedRank checked_rank(const nlohmann::json& json) {
  CheckedRank rank{.place = json.at("place").get<std::string>(),
                   .processor = json.at("processor").get<std::string>(),
                   .neighbor = json.at("neighbor").get<int>(),
                   .parts = {}};
  for (const auto& part : json.at("parts")) {
    rank.parts.push_back({part.at(0).get<std::string>(), part.at(1).get<std::string>()});
  }
  return rank;
}

nlohmann::json to_json(const CorruptionVerdict& verdict) {
  return {{"ranks", verdict.ranks}, {"copies_differ", verdict.copies_differ}, {"message", verdict.message}};
}

CorruptionVerdict verdict_from(const nlohmann::json& json) {
  return {.ranks = json.at("ranks").get<std::vector<int>>(),
          .copies_differ = json.at("copies_differ").get<bool>(),
          .message = json.at("message").get<std::string>()};
}

// The rank of the run that is `offset` further along those that work on other samples, in this one's place otherwise.
int data_neighbor(const Mesh& mesh, int64_t offset) {
  const int64_t data_ranks = mesh.shape().data();
  const Communicator& same_samples = mesh.micro_batch();
  return static_cast<int>((mesh.data_rank() + offset + data_ranks) % data_ranks * same_samples.size()) +
         same_samples.rank();
}

}  // namespace

CorruptionCheck::CorruptionCheck(const Config& config, TrainingState& state, ProcessGroup& group,
                                 const Identity& identity)
    : state_(state),
      stream_(state.mesh.stream()),
      group_(group),
      every_(config.training.check_every),
      micro_batch_tokens_(state.model.shape().tokens()),
      recomputes_(!stream_.is_cuda() || stream_.deterministic()),
      parts_(config.model, state),
      results_({"losses"}) {
  for (const ParameterUnit& unit : state.parameters.layout().units()) results_.push_back("gradients of " + unit.name);
  hashes_ = kCheckedPasses * std::ssize(results_) + std::ssize(parts_.parts());
  CHECK(hashes_ <= state.check->hashes.dim(0), "{} hashes, room for {}", hashes_, state.check->hashes.dim(0));
  host_ = Buffer::host(stream_.device(), kSlots * hashes_ * static_cast<int64_t>(sizeof(uint64_t)));
  for (int64_t slot = 0; slot < kSlots; ++slot) pending_.push_back({false, Event(stream_.device())});
  const CheckedRank mine{.place = identity.place,
                         .processor = identity.processor,
                         .neighbor = data_neighbor(state.mesh, 1),
                         .parts = parts_.parts()};
  const std::vector<std::string> all = group.gather(to_json(mine).dump());
  if (!group.is_root()) return;
  for (const std::string& text : all) ranks_.push_back(checked_rank(nlohmann::json::parse(text)));
}

Tensor CorruptionCheck::pass_hashes_of(Pass pass) const {
  const auto count = std::ssize(results_);
  return state_.check->hashes.rows(pass * count, (pass + 1) * count);
}

Tensor CorruptionCheck::state_hashes() const {
  return state_.check->hashes.rows(kCheckedPasses * std::ssize(results_), hashes_);
}

void CorruptionCheck::begin_step(const TrainingStep& step, const Batch& batch) {
  if (!recomputes_) return;
  for (const Pass pass : {kFirst, kNeighbor, kSecond}) stream_.zero(pass_hashes_of(pass));
  Llama& model = state_.model;
  const bool last = state_.batch.num_micro_batches() == 1;
  if (state_.mesh.shape().data() > 1) {
    BatchBuffers& neighbor = state_.check->neighbor;
    neighbor.upload(exchange(batch));
    observe(kNeighbor);
    model.forward_backward(neighbor.micro_batch(0), loss_scale(step), true, last);
  }
  observe(kFirst);
  model.forward_backward(state_.batch.micro_batch(0), loss_scale(step), true, last);
  state_.parameters.fsdp().weights_changed();  // so that the step gathers and casts, and measures, all of them
  observe(kSecond);
}

// What is queued on the compute stream when the first gradient is complete has made the losses, and what makes those of
// the next micro-batch is not.
void CorruptionCheck::observe(Pass pass) {
  observed_.assign(results_.size(), false);
  state_.parameters.fsdp().observe_gradients([this, pass](size_t unit) { hash_gradient(pass, unit); });
}

void CorruptionCheck::hash_gradient(Pass pass, size_t unit) {
  const auto hash = [&](size_t result, const Tensor& x) {
    if (observed_[result]) return;  // of the first micro-batch
    observed_[result] = true;
    const auto row = static_cast<int64_t>(result);
    bit_hash({.out = pass_hashes_of(pass).rows(row, row + 1).view({2}), .x = x}, stream_);
  };
  hash(0, state_.model.losses());
  hash(1 + unit, state_.parameters.fsdp().gradient(unit));
}

// The first micro-batch of the next data-parallel rank.
Batch CorruptionCheck::exchange(const Batch& batch) {
  const auto tokens = static_cast<size_t>(micro_batch_tokens_);
  const auto swap = [&](const std::vector<int32_t>& values) {
    const std::span<const int32_t> mine(values.data(), std::min(tokens, values.size()));
    return values_of<int32_t>(
        group_.send_receive(bytes_of(mine), data_neighbor(state_.mesh, -1), data_neighbor(state_.mesh, 1)));
  };
  Batch neighbor;
  neighbor.inputs = swap(batch.inputs);
  neighbor.targets = swap(batch.targets);
  neighbor.document_start = swap(batch.document_start);
  return neighbor;
}

void CorruptionCheck::end_step() {
  state_.parameters.fsdp().observe_gradients(nullptr);
  push(recomputes_);
}

void CorruptionCheck::push(bool recomputed) {
  CHECK(pushed_ - popped_ < kSlots, "{} checks are pending", pushed_ - popped_);
  const int64_t slot = pushed_++ % kSlots;
  parts_.queue(state_hashes(), stream_);
  const Tensor used = state_.check->hashes.rows(0, hashes_);
  stream_.copy(static_cast<char*>(host_.data()) + slot * used.bytes(), used.raw(), used.bytes());
  Pending& pending = pending_[static_cast<size_t>(slot)];
  pending.recomputed = recomputed;
  pending.copied.record(stream_);
}

CorruptionVerdict CorruptionCheck::finish() { return pop(); }

CorruptionVerdict CorruptionCheck::check_state() {
  CHECK(pushed_ == popped_, "{} checks are pending", pushed_ - popped_);
  push(false);
  return pop();
}

// This rank's hashes, those of passes only where there were some.
std::string CorruptionCheck::packed(int64_t slot) const {
  const auto count = static_cast<size_t>(hashes_);
  const std::span<const uint64_t> all(static_cast<const uint64_t*>(host_.data()) + slot * hashes_, count);
  const size_t passes = static_cast<size_t>(kCheckedPasses) * results_.size();
  return bytes_of(pending_[static_cast<size_t>(slot)].recomputed ? all : all.subspan(passes));
}

RankHashes CorruptionCheck::unpacked(const std::string& packed, size_t parts) const {
  const std::vector<uint64_t> all = values_of<uint64_t>(packed);
  const auto end = all.end() - static_cast<int64_t>(parts);
  RankHashes hashes{.parts = {end, all.end()}, .first = {}, .second = {}, .of_neighbor = {}};
  if (end == all.begin()) return hashes;
  const auto pass = [&](Pass p) {
    const auto begin = all.begin() + p * std::ssize(results_);
    return std::vector<uint64_t>(begin, begin + std::ssize(results_));
  };
  hashes.first = pass(kFirst);
  hashes.second = pass(kSecond);
  if (state_.mesh.shape().data() > 1) hashes.of_neighbor = pass(kNeighbor);
  return hashes;
}

CorruptionVerdict CorruptionCheck::pop() {
  CHECK(popped_ < pushed_, "no check is pending");
  const int64_t slot = popped_++ % kSlots;
  pending_[static_cast<size_t>(slot)].copied.synchronize();
  const std::vector<std::string> all = group_.gather(packed(slot));
  std::string text;
  if (group_.is_root()) {
    std::vector<RankHashes> hashes;
    for (size_t r = 0; r < all.size(); ++r) hashes.push_back(unpacked(all[r], ranks_[r].parts.size()));
    const CorruptionVerdict verdict = judge(ranks_, hashes, results_);
    if (!verdict.ranks.empty()) text = to_json(verdict).dump();
  }
  text = group_.broadcast(text);
  return text.empty() ? CorruptionVerdict{} : verdict_from(nlohmann::json::parse(text));
}

}  // namespace octavo
