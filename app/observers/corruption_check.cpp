#include "app/observers/corruption_check.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "app/observers/step_observer.h"
#include "app/process/events.h"
#include "app/records/append_file.h"
#include "app/run/disk_checkpoints.h"
#include "core/error.h"
#include "core/log.h"
#include "kernels/math/bit_hash.h"
#include "model/architecture/block_spec.h"
#include "parallel/ranks/machines.h"

namespace octavo {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HashedPart, what, copy)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CheckedRank, place, parts)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CorruptionVerdict, ranks, replicas_differ, message)

namespace {

// Returns the place of a shard, "(shard 1 of tensor rank 0)" or "(shard 1 of tensor rank 0 of pipeline stage 2)". For
// norms, it does not name the tensor rank, because their shards are equal on all of them.
std::string place_of(const ParameterUnit& unit, const Mesh& mesh) {
  std::string place = fmt::format("(shard {}", mesh.shard().rank());
  if (!unit.is_norms && mesh.tensor().size() > 1) place += fmt::format(" of tensor rank {}", mesh.tensor().rank());
  if (mesh.pipeline().size() > 1) place += fmt::format(" of pipeline stage {}", mesh.pipeline().rank());
  return place + ")";
}

void add_units(const TrainingState& state, const std::vector<OptimizerState>& kept, std::vector<HashedSlice>& all) {
  const Mesh& mesh = state.mesh;
  const std::vector<ParameterUnit>& units = state.parameters.layout().units();
  for (size_t u = 0; u < units.size(); ++u) {
    if (mesh.replicate().size() == 1 && !(units[u].is_norms && mesh.tensor().size() > 1)) continue;
    const auto add = [&](const char* name, const Tensor& data) {
      all.push_back({{fmt::format("{} of {} {}", name, units[u].name, place_of(units[u], mesh)), ""}, data});
    };
    for (const OptimizerState& one : kept) {
      if (one.has(u)) add(one.name, one.of(state.parameters, u));
    }
    const Tensor& cast = state.parameters.fsdp().weight_shard(u);
    if (cast.dtype() != DType::kFloat32) add("cast weights", cast);
  }
}

bool is_of_kv_heads(const ModelConfig& config, const ParameterSpec& spec) {
  const auto is_part = [&](const MatrixSpec& matrix) { return matrix.of_kv_heads && spec.name.ends_with(matrix.name); };
  return std::ranges::any_of(block_linears(config),
                             [&](const LinearSpec& linear) { return std::ranges::any_of(linear.matrices, is_part); });
}

// Adds the kv heads that several ranks hold. They are hashed head by head at offsets within the head, because the
// ranks' replicas are sliced into shards at different offsets.
void add_kv_copies(const ModelConfig& config, const TrainingState& state, const std::vector<OptimizerState>& kept,
                   std::vector<HashedSlice>& all) {
  const ShardedParameters& parameters = state.parameters;
  const int64_t elements = config.head_dim * config.hidden_size;  // Elements of one kv head's weight.
  for (const ParameterSlice& slice : parameters.slices()) {
    const ParameterSpec& spec = *slice.spec;
    if (!is_of_kv_heads(config, spec)) continue;
    const int64_t first = spec.whole_index(0);  // Index of the first row in the whole tensor.
    const int64_t end = first + slice.end;
    for (int64_t begin = first + slice.begin; begin < end;) {
      const int64_t head = begin / elements;
      const int64_t next = std::min(end, (head + 1) * elements);
      const int64_t within = begin - first - slice.begin;
      const int64_t offset = slice.offset + within;
      const std::string copy = fmt::format("replica {}, tensor rank {}, place {}", state.mesh.replicate().rank(),
                                           state.mesh.tensor().rank(), spec.offset + head * elements - first);
      const auto add = [&](const char* name, const Tensor& data) {
        all.push_back({{fmt::format("{} of {} head {}", name, spec.name, head), copy}, data, begin % elements});
      };
      for (const OptimizerState& one : kept) {
        if (one.has(spec.unit)) add(one.name, one.slice(spec.unit, offset, offset + next - begin));
      }
      const Tensor cast = parameters.weight(slice);
      if (cast.defined()) add("cast weights", cast.rows(within, within + next - begin));
      begin = next;
    }
  }
}

// Returns the slices of all parts of the training state that more than one rank holds. Their tensors are views of the
// tensors in `state`.
//
//   replicate axis  each unit's shard of the master weights, of the weights that are cast from them and gathered,
//                   and of the optimizer states
//   tensor axis     the shards of the norms, which are equal on all tensor-parallel ranks; and each kv head that
//                   several ranks hold, of which each rank has the slices in its shard
//   all ranks       the amax history of delayed FP8 scaling
std::vector<HashedSlice> replicated_parts(const ModelConfig& config, TrainingState& state) {
  std::vector<OptimizerState> kept = {master_state(state.parameters)};
  kept.insert(kept.end(), state.optimizer.states().begin(), state.optimizer.states().end());
  std::vector<HashedSlice> all;
  add_units(state, kept, all);
  if (has_kv_copies(config, state.mesh.tensor().size())) add_kv_copies(config, state, kept, all);
  const Tensor history = amax_history(state);
  const bool is_shared = history.defined() && state.mesh.world().size() > 1;
  if (is_shared) all.push_back({{"FP8 amax history", ""}, history.view({history.numel()})});
  return all;
}

// Observer that runs the check for silent corruption (app/observers/corruption_check.h) every
// training.corruption_check_every steps, acts on differences as training.on_corruption says, and refuses to save a
// state whose replicas are known to differ. Does nothing if training.corruption_check_every is 0.
//
// If something differs and the run must end, on_result() and allows_save() throw an ErrorOfAllRanks that names the
// rank, its machine and GPU, what differs, and the last checkpoint.
class CorruptionWatch : public StepObserver {
 public:
  explicit CorruptionWatch(const ObserverContext& context) : context_(context) {
    on_new_state();
    if (!check_ || check_->recomputes() || context.config.stage.number > 1 || !context.runtime.group().is_root())
      return;
    log_info(
        "training.corruption_check_every compares the replicas of the state; with training.deterministic it would also "
        "compare a micro-batch that is computed twice");
  }

  void before_step(const TrainingStep& step) override {
    if (due(step.number)) check_->begin_step(step);
  }

  void after_step(int64_t step) override {
    if (due(step)) check_->end_step();
  }

  void on_result(Step& step) override {
    if (due(step.number)) take(step.number, check_->finish());
  }

  // Compares the replicas unless on_result() has just done so. Logs why saving is refused.
  bool allows_save(int64_t step) override {
    if (check_ && !check_->due(step)) take(step, check_->check_state());
    if (replicas_differ_ && context_.runtime.group().is_root()) {
      log_event(EventKind::kWarning, step, "the checkpoint of step {} is not saved, because its replicas differ", step);
    }
    return !replicas_differ_;
  }

  void on_new_state() override {
    check_.reset();
    replicas_differ_ = false;
    if (!context_.state.hashes.defined()) return;
    Runtime& runtime = context_.runtime;
    std::string place = host_name();
    if (runtime.stream().is_cuda()) place += fmt::format(", GPU {} ({})", runtime.gpu(), gpu_info(runtime.gpu()).uuid);
    check_.emplace(context_.config, context_.state, runtime.group(), place);
  }

 private:
  bool due(int64_t step) const { return check_ && check_->due(step); }

  void take(int64_t step, const CorruptionVerdict& verdict) {
    replicas_differ_ = verdict.replicas_differ;
    if (verdict.ranks.empty()) return;
    const bool ends = context_.config.training.on_corruption != OnCorruption::kWarn;
    // Completes the pending save, so that the checkpoint that the message names exists.
    if (ends) context_.checkpoints.complete_pending_save();
    std::string message =
        fmt::format("step {}: {}; the last checkpoint is {}", step, verdict.message, context_.checkpoints.last());
    if (context_.config.training.on_corruption == OnCorruption::kExclude) message += exclude(verdict.ranks, message);
    if (ends) context_.runtime.group().throw_on_all_ranks([&] { throw Error(message); });
    if (context_.runtime.group().is_root()) log_event(EventKind::kWarning, step, message);
  }

  // Writes the machines of `ranks` with the reason to the file that launchers read. Returns a sentence about the
  // result.
  std::string exclude(const std::vector<int>& ranks, const std::string& why) {
    ProcessGroup& group = context_.runtime.group();
    const std::vector<std::string> by_rank = group.all_gather(host_name());
    std::set<std::string> wrong;
    for (const int rank : ranks) wrong.insert(by_rank[static_cast<size_t>(rank)]);
    const std::string names = fmt::format("{}", fmt::join(wrong, ", "));
    if (wrong.size() == std::set(by_rank.begin(), by_rank.end()).size()) {
      return fmt::format("; {} cannot be excluded, because there is no other machine", names);
    }
    // The run ends with the message about the corruption even if the file cannot be written. scripts/launching.sh reads
    // it.
    const std::string path = context_.config.checkpoint.dir + "/excluded_hosts";
    std::string failure;
    try {
      std::optional<AppendFile> file;
      if (group.is_root()) file.emplace(path);
      for (const std::string& host : wrong) {
        if (file && !file->write(fmt::format("{} # {}\n", host, why))) failure = file->failure();
      }
    } catch (const std::exception& error) {
      failure = error.what();
    }
    failure = group.broadcast(failure);
    if (!failure.empty()) return fmt::format("; {} could not be excluded: {}", names, failure);
    return fmt::format("; {} was added to {}, and is excluded from restarts", names, path);
  }

  const ObserverContext context_;
  std::optional<CorruptionCheck> check_;
  bool replicas_differ_ = false;  // Result of the last comparison of the replicas.
};

}  // namespace

CorruptionCheck::CorruptionCheck(const Config& config, TrainingState& state, ProcessGroup& group,
                                 const std::string& place)
    : state_(state),
      stream_(state.mesh.stream()),
      group_(group),
      every_(config.training.corruption_check_every),
      recomputes_(!stream_.is_cuda() || stream_.deterministic()),
      parts_(replicated_parts(config.model, state)),
      results_({"losses"}) {
  // All ranks list the units of the whole model, so that a result has the same index on all pipeline stages.
  const ParameterLayout whole = state.parameters.layout().whole();
  for (const ParameterUnit& unit : whole.units()) results_.push_back("gradients of " + unit.name);
  for (const ParameterUnit& unit : state.parameters.layout().units()) {
    const auto result = std::ranges::find(results_, "gradients of " + unit.name);
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
  state_.model.forward_backward(state_.batch.micro_batch(0), inverse_targets(step), true,
                                state_.batch.num_micro_batches() == 1);
  state_.parameters.fsdp().finish_reductions();  // The step overwrites the gradients.
  state_.parameters.fsdp().weights_changed();    // Makes the step gather, cast and measure all weights again.
  hash_results(1);
}

// Makes the next micro-batch hash its results as they become complete. `pass` is 0 for the additional pass and 1 for
// the step. The losses are hashed when the first gradient is complete on the compute stream: at that time the losses
// are complete and not yet overwritten. If the stage has several chunks, the gradients of norms are not hashed, because
// in a step other micro-batches have added to them by then.
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

std::unique_ptr<StepObserver> make_corruption_watch(const ObserverContext& context) {
  return std::make_unique<CorruptionWatch>(context);
}

}  // namespace octavo
