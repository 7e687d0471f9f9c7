#include "app/run/disk_checkpoints.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>

#include "app/inputs/same_files.h"
#include "app/process/events.h"
#include "checkpoint/checkpoint_files.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"

namespace octavo {

namespace fs = std::filesystem;

namespace {

// Calls `is_done` until it returns true, for about a quarter of a second. The number of calls does not depend on the
// clock, so that all ranks run equally many collectives.
bool wait_briefly_for(const std::function<bool()>& is_done) {
  constexpr std::chrono::milliseconds kPause{5};
  constexpr int kPolls = 50;
  for (int i = 0; i < kPolls; ++i) {
    if (is_done()) return true;
    std::this_thread::sleep_for(kPause);
  }
  return false;
}

}  // namespace

CreatedDirectories::CreatedDirectories(const fs::path& dir, ProcessGroup& group) {
  group.throw_on_all_ranks([&] {
    std::error_code error;
    fs::path path = fs::absolute(dir).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();  // The path had a trailing slash.
    for (; group.is_root() && !fs::exists(path, error) && !error; path = path.parent_path()) missing_.push_back(path);
  });
}

CreatedDirectories::~CreatedDirectories() {
  for (const fs::path& path : missing_) ::rmdir(path.c_str());
}

DiskCheckpoints::DiskCheckpoints(const Config& config, Runtime& runtime)
    : config_(config),
      runtime_(runtime),
      directories_(config.checkpoint.dir, runtime.group()),
      writer_({.dir = config.checkpoint.dir,
               .keep = config.checkpoint.keep,
               .async = config.checkpoint.async,
               .keep_every = config.checkpoint.keep_every},
              runtime.group(), runtime.stream()) {}

std::optional<fs::path> DiskCheckpoints::newest() {
  const std::string path =
      found_by_root("looking for checkpoints", runtime_.group(), [&] { return path_to_resume(config_.checkpoint); });
  return path.empty() ? std::nullopt : std::optional<fs::path>(path);
}

std::optional<Checkpoint> DiskCheckpoints::open(std::span<const TensorPart> needed, bool verifies_newest) {
  return resume(config_.checkpoint, needed, verifies_newest);
}

std::optional<Checkpoint> DiskCheckpoints::open_last(std::span<const TensorPart> needed) {
  complete_pending_save();
  writer_.wait_for_removals();
  CheckpointConfig last = config_.checkpoint;
  last.resume = writer_.last_saved() ? "auto" : resumed_ ? resumed_->string() : "never";
  return resume(last, needed, true);
}

std::optional<Checkpoint> DiskCheckpoints::resume(const CheckpointConfig& config, std::span<const TensorPart> needed,
                                                  bool verifies_newest) {
  std::optional<Checkpoint> found = open_checkpoint_to_resume(config, needed, runtime_.group(), true, verifies_newest);
  if (found) {
    resumed_ = found->path();
    saved_step_ = found->step();
  }
  return found;
}

void DiskCheckpoints::prepare(std::span<const CheckpointTensor> pieces, int64_t start_step, int64_t last_step) {
  reserve_staging(pieces);
  int64_t bytes = 0;
  for (const CheckpointTensor& piece : pieces) bytes += piece.data.bytes();
  bytes_ = std::llround(runtime_.group().all_reduce_sum(static_cast<double>(bytes)));
  runtime_.group().throw_file_errors_on_all_ranks("checking the free disk space", [&] {
    if (runtime_.group().is_root() && start_step < last_step) check_free_space(start_step, last_step);
  });
}

void DiskCheckpoints::set_other_runs_aside() {
  runtime_.group().throw_file_errors_on_all_ranks("clearing checkpoint.dir", [&] {
    if (runtime_.group().is_root()) move_other_runs();
  });
}

// Moves checkpoints that this run does not resume, so that `auto` never finds them later. If the run resumes a
// checkpoint in this directory, only later checkpoints move, otherwise all. Incomplete checkpoints move too, because a
// save of the same step would replace them.
void DiskCheckpoints::move_other_runs() const {
  const fs::path dir = config_.checkpoint.dir;
  std::vector<FoundCheckpoint> others = find_checkpoints(dir, true);
  const auto mine = std::ranges::find_if(
      others, [&](const FoundCheckpoint& found) { return resumed_ && fs::equivalent(found.path, *resumed_); });
  if (mine != others.end()) others.erase(others.begin(), mine + 1);
  if (others.empty()) return;
  const fs::path earlier = move_to_earlier(dir, others);
  log_info("checkpoint.resume is {}: {} checkpoint{} of another run, up to {}, moved to {}", config_.checkpoint.resume,
           others.size(), others.size() == 1 ? "" : "s", step_directory_name(others.back().step), earlier.string());
}

// Returns the largest growth of the number of checkpoints on disk until `last_step`, if old ones are removed. `there`
// is the number of checkpoints that exist now.
int64_t DiskCheckpoints::checkpoints_to_come(int64_t start_step, int64_t last_step, int64_t there) const {
  const CheckpointConfig& c = config_.checkpoint;
  const auto multiples = [&](int64_t n) { return n > 0 ? (last_step - 1) / n - start_step / n : 0; };
  const int64_t saves = 1 + (c.every_minutes > 0 ? last_step - 1 - start_step : multiples(c.every));
  if (c.keep <= 0) return saves;
  const int64_t kept_for_ever = c.every > 0 && c.keep_every > 0 ? multiples(std::lcm(c.every, c.keep_every)) : 0;
  return std::min(saves, c.keep + 1 - std::min(there, c.keep) + kept_for_ever);
}

void DiskCheckpoints::check_free_space(int64_t start_step, int64_t last_step) {
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
  CHECK_INPUT(*free >= bytes_, "checkpoint.dir {}: {}, so not a single checkpoint fits", dir, describe_space());
  if (fit() >= to_come) return;
  log_warning(
      "checkpoint.dir {}: {}; only {} of the {} further checkpoints that the run keeps at a time fit (checkpoint.keep "
      "is {}, and {} exist)",
      dir, describe_space(), fit(), to_come, config_.checkpoint.keep, there);
}

std::string DiskCheckpoints::describe_space() const {
  const std::optional<int64_t> free = free_bytes(config_.checkpoint.dir);
  std::string text = fmt::format("a checkpoint takes {} bytes", with_thousands_separators(bytes_));
  if (free) text += fmt::format(", {} are free", with_thousands_separators(*free));
  if (free && *free < bytes_) text += fmt::format(", {} too few", with_thousands_separators(bytes_ - *free));
  return text;
}

// Reserves the staging memory at the start. If memory is short, a process would otherwise be killed at its first save.
void DiskCheckpoints::reserve_staging(std::span<const CheckpointTensor> pieces) {
  if (!writer_.stages()) return;
  const int64_t bytes = CheckpointWriter::staging_bytes(pieces);
  runtime_.group().throw_on_all_ranks([&] {
    const HostMemory host = share_of_host_memory(runtime_.group());
    CHECK_INPUT(
        bytes <= host.available_bytes,
        "a checkpoint is staged in host memory, {:.1f} GiB per rank, but {:.1f} GiB are available{}; {} needs less",
        gib(bytes), gib(host.available_bytes), host.describe_limit(),
        runtime_.stream().is_cuda() ? "optimizer.state_dtype=bfloat16" : "checkpoint.async=false");
  });
  runtime_.group().throw_on_all_ranks([&] { writer_.reserve(bytes); });
}

bool DiskCheckpoints::due(int64_t step) const {
  return config_.checkpoint.every > 0 && step % config_.checkpoint.every == 0;
}

bool DiskCheckpoints::has_time_passed() const {
  const double minutes = config_.checkpoint.every_minutes;
  const std::chrono::duration<double, std::ratio<60>> passed = std::chrono::steady_clock::now() - last_begun_;
  return minutes > 0 && runtime_.group().is_root() && passed.count() >= minutes;
}

void DiskCheckpoints::save(int64_t step, const nlohmann::json& meta, std::span<const CheckpointTensor> pieces,
                           bool is_final) {
  if (is_final) {
    make_way_for_final_save(step);
  } else {
    finish();
  }
  restart_clock();
  saving_step_ = step;
  is_final_ = is_final;
  attempt([&] { writer_.save(step, config_.model, meta, pieces); });
}

bool final_save_replaces(int64_t step, int64_t keep_every, bool has_complete_checkpoint) {
  return has_complete_checkpoint && (keep_every <= 0 || step % keep_every != 0);
}

// Completes or abandons a pending save, whose failure does not prevent the final save of `step`.
void DiskCheckpoints::make_way_for_final_save(int64_t step) {
  if (!pending()) return;
  if (!final_save_replaces(saving_step_, config_.checkpoint.keep_every, last_path().has_value()) ||
      wait_briefly_for([&] { return writer_.written(); })) {
    complete_pending_save();
    return;
  }
  writer_.abandon();
  if (!runtime_.group().is_root()) return;
  log_info(
      "the checkpoint of step {} was still being written and is dropped, because the final one of step {} replaces it",
      saving_step_, step);
}

void DiskCheckpoints::poll() {
  if (pending()) {
    attempt([&] { writer_.poll(); });
  } else if (!ready()) {
    writer_.poll();
  }
}

void DiskCheckpoints::wait_briefly() {
  wait_briefly_for([&] {
    poll();
    return ready();
  });
}

void DiskCheckpoints::finish() {
  if (writer_.pending()) attempt([&] { writer_.finish(); });
}

void DiskCheckpoints::attempt(const std::function<void()>& work) {
  try {
    work();
    if (writer_.pending()) return;
    report_saved();
  } catch (const std::exception& error) {
    if (!runtime_.group().shares(error)) throw;
    count_failure(error.what());
  }
}

// Logs the completed save with the time of the slowest rank.
void DiskCheckpoints::report_saved() {
  failed_saves_ = 0;
  saved_step_ = saving_step_;
  completed_.push_back(saved_step_);
  const auto milliseconds = runtime_.group().all_reduce_max(std::llround(1e3 * writer_.write_seconds()));
  const double seconds = static_cast<double>(std::max<int64_t>(1, milliseconds)) / 1e3;
  if (!runtime_.group().is_root()) return;
  log_event(EventKind::kCheckpoint, saved_step_, "saved {}: {:.3f} GB in {:.1f} s, {:.2f} GB/s",
            writer_.last_saved()->string(), static_cast<double>(bytes_) / 1e9, seconds,
            static_cast<double>(bytes_) / 1e9 / seconds);
}

// Counts a failure on all ranks. At the maximum, or for the final save, all ranks throw rank 0's error.
void DiskCheckpoints::count_failure(const std::string& reason) {
  ++failed_saves_;
  const int64_t most = std::max<int64_t>(1, config_.checkpoint.max_failed_saves);
  const std::string what =
      fmt::format("the checkpoint of step {} is not saved: {}; {}", saving_step_, reason, describe_space());
  runtime_.group().throw_on_all_ranks([&] {
    CHECK(!is_final_, "{}; it is the final checkpoint, and the last good one is {}", what, last());
    CHECK(failed_saves_ < most,
          "{}; {} in a row failed (checkpoint.max_failed_saves), and the last good checkpoint is {}", what,
          failed_saves_, last());
  });
  if (!runtime_.group().is_root()) return;
  log_warning("{}; the next due save tries again (failure {} of {})", what, failed_saves_, most);
}

void DiskCheckpoints::complete_pending_save() {
  if (!writer_.pending()) return;
  try {
    writer_.finish();
    report_saved();
  } catch (const std::exception& error) {
    if (!runtime_.group().shares(error)) throw;
    if (runtime_.group().is_root())
      log_warning("the pending checkpoint is lost: {}; {}", error.what(), describe_space());
  }
}

std::optional<std::filesystem::path> DiskCheckpoints::last_path() const {
  return writer_.last_saved() ? writer_.last_saved() : resumed_;
}

std::string DiskCheckpoints::last() const { return last_path() ? last_path()->string() : "none"; }

}  // namespace octavo
