#include "app/train/run_checkpoints.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>
#include <utility>

#include "app/process/events.h"
#include "app/process/same_files.h"
#include "app/run/weights.h"
#include "app/text/tokenizer.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/memory_directory.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"
#include "parallel/ranks/machines.h"

namespace octavo {

namespace {

namespace fs = std::filesystem;

// In the manifest of one in memory: what tells the newest one on disk by then from any other.
constexpr const char* kOnDisk = "newest_on_disk";

// What of a checkpoint this rank's shard holds: its pieces of the master weights and of the optimizer's states, without
// those that other ranks hold as well.
std::vector<CheckpointTensor> checkpoint_tensors(TrainingState& state, bool with_history) {
  std::vector<CheckpointTensor> tensors;
  const auto add = [&](const std::string& prefix, const OptimizerState& kept) {
    for (const ParameterPiece& piece : state.parameters.pieces()) {
      const ParameterSpec& spec = *piece.spec;
      if (!spec.counts || !kept.has(spec.unit)) continue;
      tensors.push_back({.name = prefix + spec.name,
                         .shape = spec.whole_shape,
                         .begin = spec.column_offset() + piece.begin,
                         .end = spec.column_offset() + piece.end,
                         .data = kept.of(piece),
                         .columns = spec.columns(),
                         .stable = true});
    }
  };
  add("", master_state(state.parameters));
  for (const OptimizerState& kept : state.optimizer.states()) add(fmt::format("{}.", kept.name), kept);
  if (const Tensor history = amax_history(state); with_history && history.defined()) {
    tensors.push_back(
        {kAmaxHistory, {history.dim(0), history.dim(1)}, 0, history.numel(), history.view({history.numel()})});
  }
  return tensors;
}

}  // namespace

std::vector<TensorPart> loaded_parts(TrainingState& state) {
  std::vector<TensorPart> parts = parts_of(state.parameters, master_state(state.parameters), "");
  for (const OptimizerState& kept : state.optimizer.states()) {
    std::ranges::move(parts_of(state.parameters, kept, fmt::format("{}.", kept.name)), std::back_inserter(parts));
  }
  if (const Tensor history = amax_history(state); history.defined()) {
    parts.push_back({kAmaxHistory, {history.dim(0), history.dim(1)}, {}, 0, history.numel()});
  }
  return parts;
}

std::vector<TensorPart> loaded_parts(const Config& config, Runtime& runtime) {
  const ParameterLayout layout(config.model, runtime.tensor_rank());
  const int64_t local_batch = config.training.global_batch_size / runtime.mesh().shape().data();
  Arena plan(runtime.stream().device());
  TrainingState state({.config = config, .layout = layout, .local_batch = local_batch, .sharding = {}}, runtime.mesh(),
                      plan);
  return loaded_parts(state);
}

void load_state(Checkpoint& checkpoint, TrainingState& state, Stream& stream) {
  load_weights(checkpoint, state.parameters, stream);
  load_optimizer(checkpoint, state.parameters, state.optimizer, stream);
  load_amax_history(checkpoint, state.model.amaxes(), stream);
}

RunCheckpoints::RunCheckpoints(const Config& config, Runtime& runtime)
    : config_(config),
      runtime_(runtime),
      writer_({.dir = config.checkpoint.dir,
               .keep = config.checkpoint.keep,
               .async = config.checkpoint.async,
               .keep_every = config.checkpoint.keep_every},
              runtime.group(), runtime.stream()) {}

void RunCheckpoints::open_memory(const fs::path& directory) {
  memory_.emplace(directory, runtime_.group());
  memory_writer_.emplace(CheckpointOptions{.dir = directory.string(), .keep = 1, .async = true, .memory = &*memory_},
                         runtime_.group(), runtime_.stream());
}

std::optional<Checkpoint> RunCheckpoints::open(std::span<const TensorPart> needed) {
  std::optional<Checkpoint> found;
  if (config_.checkpoint.in_memory && config_.checkpoint.resume == "auto") {
    if (const fs::path left = left_memory(); !left.empty()) {
      open_memory(left);
      found = newer_in_memory(needed);
    }
  }
  if (!found) {
    memory_writer_.reset();
    memory_.reset();
    found = open_checkpoint_to_resume(config_.checkpoint, needed, runtime_.group());
  }
  check_shared_directory("checkpoint.dir", config_.checkpoint.dir, runtime_.group());
  return found;
}

// The directory in memory that an earlier start named; empty for none.
fs::path RunCheckpoints::left_memory() {
  fs::path left;
  runtime_.group().agree_on_files("looking for what is in memory", [&] {
    if (runtime_.group().is_root()) left = memory_directory(config_.checkpoint.dir);
  });
  return runtime_.group().broadcast(left.string());
}

// Removes what an earlier start left in memory, and its name.
void RunCheckpoints::drop_left_memory() {
  ProcessGroup& group = runtime_.group();
  try {
    const fs::path directory = left_memory();
    group.agree_on_files("freeing memory", [&] {
      if (!directory.empty() && group.local_rank() == 0) remove_private_directory(directory);
    });
    group.agree_on_files("freeing memory", [&] {
      if (group.is_root()) forget_memory_directory(config_.checkpoint.dir);
    });
  } catch (const InputError& error) {
    if (config_.checkpoint.in_memory || !group.shares(error)) throw;
    if (group.is_root()) log_warning("what an earlier start left in memory stays there: {}", error.what());
  }
}

// Draws a new name, so that a machine that is offline now cannot bring back an old checkpoint later.
void RunCheckpoints::replace_left_memory() {
  drop_left_memory();
  if (!config_.checkpoint.in_memory) return;
  fs::path directory;
  runtime_.group().agree_on_files("naming a directory in memory", [&] {
    if (runtime_.group().is_root()) directory = renew_memory_directory(config_.checkpoint.dir);
  });
  open_memory(runtime_.group().broadcast(directory.string()));
  reserve_memory();
  carry_in_memory();
}

// What tells a checkpoint on disk from any other; empty for none.
std::string RunCheckpoints::mark_of(const std::optional<fs::path>& checkpoint) {
  std::string mark;
  runtime_.group().agree_on_files("reading a manifest", [&] {
    if (!runtime_.group().is_root() || !checkpoint) return;
    mark = manifest_mark(*checkpoint);
  });
  return runtime_.group().broadcast(mark);
}

// One that the run saved behind what is now the newest on disk: a machine that was away may have others. What is on
// disk is not looked into then: reading it would take longest of all.
std::optional<Checkpoint> RunCheckpoints::newer_in_memory(std::span<const TensorPart> needed) {
  ProcessGroup& group = runtime_.group();
  std::optional<fs::path> on_disk;
  group.agree_on_files("looking for checkpoints", [&] {
    if (group.is_root()) on_disk = Checkpoint::newest(config_.checkpoint.dir);
  });
  const std::string path = group.broadcast(on_disk.value_or("").string());
  if (!path.empty()) on_disk = path;
  const std::string mark = mark_of(on_disk);
  try {
    std::optional<Checkpoint> newest = memory_->bring_together(
        [&](const Checkpoint& checkpoint) { return checkpoint.meta().value(kOnDisk, nlohmann::json()) == mark; },
        needed);
    if (!newest) return std::nullopt;
    from_memory_ = true;
    resumed_ = on_disk;
    return newest;
  } catch (const InputError& error) {
    if (!group.shares(error)) throw;
    if (group.is_root()) log_warning("{}; the run goes on from disk", error.what());
    return std::nullopt;
  }
}

void RunCheckpoints::free_memory() {
  if (!memory_writer_) return drop_left_memory();
  attempt_in_memory([&] { memory_writer_->finish(); });
  runtime_.group().agree_on_files("freeing memory", [&] {
    memory_writer_->wait_for_removals();
    memory_->remove();
    if (runtime_.group().is_root()) forget_memory_directory(config_.checkpoint.dir);
  });
  memory_writer_.reset();
  memory_.reset();
}

void RunCheckpoints::attempt_in_memory(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    if (!runtime_.group().shares(error)) throw;
    if (runtime_.group().is_root() && !std::exchange(warned_of_memory_, true)) {
      log_warning("the state is not kept in memory: {}", error.what());
    }
  }
}

std::optional<Checkpoint> RunCheckpoints::open_last(std::span<const TensorPart> needed) {
  complete_pending_save();
  writer_.wait_for_removals();
  CheckpointConfig last = config_.checkpoint;
  last.resume = writer_.last_saved() ? "auto" : resumed_ ? resumed_->string() : "never";
  return open_checkpoint_to_resume(last, needed, runtime_.group());
}

void RunCheckpoints::started_from(const Checkpoint* checkpoint) {
  // What is in memory is gone with the next one there: the last one to go back to is that on disk.
  if (checkpoint != nullptr && !std::exchange(from_memory_, false)) {
    resumed_ = checkpoint->path();
    saved_step_ = checkpoint->step();
  }
  carry_tokenizer(checkpoint);
}

// Checkpoints carry their tokenizer; where the one that the config names is not at hand, that of the resumed one.
void RunCheckpoints::carry_tokenizer(const Checkpoint* resumed) {
  const std::string& name = config_.data.tokenizer;
  if (!runtime_.group().is_root() || name == "byte") return;
  std::vector<CarriedFile> files = read_tokenizer_files(name);
  if (files.empty() && resumed != nullptr) {
    for (const CarriedFileInfo& file : resumed->files()) files.push_back({file.name, resumed->read_file(file)});
  }
  if (files.empty()) log_warning("data.tokenizer {} is not a file, so that checkpoints carry no tokenizer", name);
  tokenizer_files_ = files;
  writer_.carry(std::move(files));
}

// From every machine, as each may be the one that is left.
void RunCheckpoints::carry_in_memory() {
  ProcessGroup& group = runtime_.group();
  tokenizer_files_.resize(static_cast<size_t>(group.all_reduce_max(std::ssize(tokenizer_files_))));
  for (CarriedFile& file : tokenizer_files_) {
    file.name = group.broadcast(file.name);
    file.content = group.broadcast(file.content);
  }
  memory_writer_->carry(tokenizer_files_);
}

void RunCheckpoints::prepare(TrainingState& state, int64_t start_step, int64_t last_step) {
  state_ = &state;
  reserve_staging();
  if (memory_writer_) {
    reserve_memory();
    carry_in_memory();
  } else if (config_.checkpoint.in_memory && left_memory().empty()) {
    check_memory();  // with nothing to free first, it is known before anything is written
  }
  int64_t bytes = 0;
  for (const CheckpointTensor& piece : pieces()) bytes += piece.data.bytes();
  bytes_ = std::llround(runtime_.group().all_reduce_sum(static_cast<double>(bytes)));
  runtime_.group().agree_on_files("looking at the room for checkpoints", [&] {
    if (runtime_.group().is_root() && start_step < last_step) check_room(start_step, last_step);
  });
}

void RunCheckpoints::leave_other_runs() {
  runtime_.group().agree_on_files("clearing checkpoint.dir", [&] {
    if (runtime_.group().is_root()) move_other_runs();
  });
  if (!memory_) replace_left_memory();
}

// So that auto never takes steps of a run that this one does not go on from: all of them, or where it goes on from one
// that is there, those after it.
void RunCheckpoints::move_other_runs() const {
  const fs::path dir = config_.checkpoint.dir;
  std::vector<FoundCheckpoint> others = find_checkpoints(dir);
  const auto mine = std::find_if(others.begin(), others.end(), [&](const FoundCheckpoint& found) {
    return resumed_ && fs::equivalent(found.path, *resumed_);
  });
  if (mine != others.end()) others.erase(others.begin(), mine + 1);
  if (others.empty()) return;
  const fs::path earlier = move_to_earlier(dir, others);
  log_info("checkpoint.resume is {}: {} checkpoint{} of another run, up to {}, moved to {}", config_.checkpoint.resume,
           others.size(), others.size() == 1 ? "" : "s", step_directory_name(others.back().step), earlier.string());
}

// How many more there are at a time than the `there` ones of now, of those that this run saves and keeps.
int64_t RunCheckpoints::checkpoints_to_come(int64_t start_step, int64_t last_step, int64_t there) const {
  const CheckpointConfig& c = config_.checkpoint;
  const auto multiples = [&](int64_t n) { return n > 0 ? (last_step - 1) / n - start_step / n : 0; };
  const int64_t saves = 1 + (c.every_minutes > 0 ? last_step - 1 - start_step : multiples(c.every));
  if (c.keep <= 0) return saves;
  const int64_t kept_for_ever = c.every > 0 && c.keep_every > 0 ? multiples(std::lcm(c.every, c.keep_every)) : 0;
  return std::min(saves, c.keep + 1 - std::min(there, c.keep) + kept_for_ever);
}

void RunCheckpoints::check_room(int64_t start_step, int64_t last_step) {
  const std::string& dir = config_.checkpoint.dir;
  std::optional<int64_t> free = free_bytes(dir);
  if (!free) return;
  const auto there = resumed_ ? static_cast<int64_t>(find_checkpoints(dir).size()) : 0;
  const int64_t to_come = checkpoints_to_come(start_step, last_step, there);
  const auto fit = [&] { return *free / std::max<int64_t>(1, bytes_); };
  if (fit() < to_come) {
    writer_.wait_for_removals();
    free = free_bytes(dir).value_or(*free);
  }
  CHECK_INPUT(*free >= bytes_, "checkpoint.dir {}: {}, so that not even one fits", dir, room());
  if (fit() >= to_come) return;
  log_warning(
      "checkpoint.dir {}: {}; there is room for {} of the {} to come at a time (checkpoint.keep is {}, {} there)", dir,
      room(), fit(), to_come, config_.checkpoint.keep, there);
}

std::string RunCheckpoints::room() const {
  const std::optional<int64_t> free = free_bytes(config_.checkpoint.dir);
  std::string text = fmt::format("a checkpoint takes {} bytes", with_thousands_separators(bytes_));
  if (free) text += fmt::format(", {} are free", with_thousands_separators(*free));
  if (free && *free < bytes_) text += fmt::format(", {} too few", with_thousands_separators(bytes_ - *free));
  return text;
}

// Pages that the system cannot hand out would end the process when they are first written, long after the start.
void RunCheckpoints::reserve_staging() {
  if (!writer_.stages()) return;
  const int64_t bytes = CheckpointWriter::staging_bytes(pieces());
  runtime_.group().agree([&] {
    const HostMemory host = runtime_.share_of_host_memory();
    CHECK_INPUT(bytes <= host.available_bytes,
                "a checkpoint is copied to host memory, {:.1f} GiB a rank, but {:.1f} GiB are available{}; {} takes "
                "less",
                gib(bytes), gib(host.available_bytes), host.describe_limit(),
                runtime_.stream().is_cuda() ? "optimizer.state_dtype=bfloat16" : "checkpoint.async=false");
  });
  runtime_.group().agree([&] { writer_.reserve(bytes); });
}

// Staging memory, and files: one complete checkpoint and one that is being written, with the copies for another
// machine.
void RunCheckpoints::check_memory() {
  const int64_t bytes = CheckpointWriter::staging_bytes(pieces());
  const int machines = Machines(runtime_.group()).count();
  runtime_.group().agree([&] {
    const int64_t needed = (machines > 1 ? 5 : 3) * bytes;
    const HostMemory host = runtime_.share_of_host_memory();
    CHECK_INPUT(needed <= host.available_bytes,
                "checkpoint.in_memory takes {:.1f} GiB of host memory a rank, but {:.1f} GiB are available{}",
                gib(needed), gib(host.available_bytes), host.describe_limit());
  });
}

void RunCheckpoints::reserve_memory() {
  check_memory();
  runtime_.group().agree([&] { memory_writer_->reserve(CheckpointWriter::staging_bytes(pieces())); });
}

bool RunCheckpoints::due(int64_t step) const {
  return config_.checkpoint.every > 0 && step % config_.checkpoint.every == 0;
}

bool RunCheckpoints::has_time_passed() const {
  const double minutes = config_.checkpoint.every_minutes;
  const std::chrono::duration<double, std::ratio<60>> passed = std::chrono::steady_clock::now() - last_begun_;
  return minutes > 0 && runtime_.group().is_root() && passed.count() >= minutes;
}

std::vector<CheckpointTensor> RunCheckpoints::pieces() const {
  const Communicator& replicas = runtime_.mesh().replicate();  // they hold the same
  const Communicator& world = runtime_.mesh().world();
  const bool with_history = world.rank() % (world.size() / replicas.size()) == 0;  // on one rank of each replica
  return divide_tensors(checkpoint_tensors(*state_, with_history), replicas.rank(), replicas.size());
}

bool RunCheckpoints::due_in_memory(int64_t step) const {
  return memory_writer_ && !memory_writer_->pending() && step % config_.checkpoint.in_memory_every == 0;
}

void RunCheckpoints::save(int64_t step, const nlohmann::json& meta, Save which) {
  saves_in_memory_ = which == Save::kInMemory;
  if (saves_in_memory_) {
    if (std::optional<fs::path> on_disk = last_path(); on_disk != marked_) {
      mark_ = mark_of(on_disk);
      marked_ = std::move(on_disk);
    }
    nlohmann::json with_mark = meta;
    with_mark[kOnDisk] = mark_;
    return attempt_in_memory([&] { memory_writer_->save(step, config_.model, with_mark, pieces()); });
  }
  if (which == Save::kFinal) {
    complete_pending_save();  // whose failure ends nothing: this one is tried in any case
  } else {
    finish();
  }
  restart_clock();
  saving_step_ = step;
  saving_ = which;
  attempt([&] { writer_.save(step, config_.model, meta, pieces()); });
}

void RunCheckpoints::poll() {
  if (writer_.pending()) attempt([&] { writer_.poll(); });
  if (memory_writer_ && memory_writer_->pending()) attempt_in_memory([&] { memory_writer_->poll(); });
}

// All ranks poll as often as each other, whatever their clocks say.
void RunCheckpoints::wait_briefly() {
  constexpr std::chrono::milliseconds kPause{10};
  constexpr int kPolls = 200;
  for (int i = 0; i < kPolls && pending(); ++i) {
    std::this_thread::sleep_for(kPause);
    poll();
  }
}

void RunCheckpoints::finish() {
  if (writer_.pending()) attempt([&] { writer_.finish(); });
}

void RunCheckpoints::attempt(const std::function<void()>& work) {
  try {
    work();
    if (writer_.pending()) return;
    failed_saves_ = 0;
    report_saved();
  } catch (const std::exception& error) {
    if (!runtime_.group().shares(error)) throw;
    count_failure(error.what());
  }
}

// The slowest rank's time.
void RunCheckpoints::report_saved() {
  saved_step_ = saving_step_;
  const auto milliseconds = runtime_.group().all_reduce_max(std::llround(1e3 * writer_.write_seconds()));
  const double seconds = static_cast<double>(std::max<int64_t>(1, milliseconds)) / 1e3;
  if (!runtime_.group().is_root()) return;
  log_event(EventKind::kCheckpoint, saved_step_, "saved {}: {:.3f} GB in {:.1f} s, {:.2f} GB/s",
            writer_.last_saved()->string(), static_cast<double>(bytes_) / 1e9, seconds,
            static_cast<double>(bytes_) / 1e9 / seconds);
}

// Of all ranks, which then throw rank 0's error.
void RunCheckpoints::count_failure(const std::string& reason) {
  ++failed_saves_;
  const int64_t most = std::max<int64_t>(1, config_.checkpoint.max_failed_saves);
  const std::string what = fmt::format("the checkpoint of step {} is not saved: {}; {}", saving_step_, reason, room());
  runtime_.group().agree([&] {
    CHECK(saving_ != Save::kFinal, "{}; it is the final one, and the last good checkpoint is {}", what, last());
    CHECK(failed_saves_ < most,
          "{}; {} in a row failed (checkpoint.max_failed_saves), and the last good checkpoint is {}", what,
          failed_saves_, last());
  });
  if (!runtime_.group().is_root()) return;
  log_warning("{}; it is tried again when the next is due (failure {} of {})", what, failed_saves_, most);
}

void RunCheckpoints::complete_pending_save() {
  if (!writer_.pending()) return;
  try {
    writer_.finish();
    report_saved();
  } catch (const std::exception& error) {
    if (!runtime_.group().shares(error)) throw;
    if (runtime_.group().is_root()) log_warning("the checkpoint on its way is lost: {}; {}", error.what(), room());
  }
}

std::optional<std::filesystem::path> RunCheckpoints::last_path() const {
  return writer_.last_saved() ? writer_.last_saved() : resumed_;
}

std::string RunCheckpoints::last() const { return last_path() ? last_path()->string() : "none"; }

}  // namespace octavo
