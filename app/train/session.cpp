#include "app/train/session.h"

#include <filesystem>

#include "app/config/stages.h"
#include "app/inputs/same_files.h"
#include "app/resolve/resolve.h"
#include "app/run/weights.h"
#include "app/train/resume.h"

namespace octavo {

Session::Session(const Setting& setting, ProcessGroup& group, StartupTimer& startup_timer, Console* shown_on)
    : config(setting.run),
      timer(startup_timer),
      console(shown_on),
      runtime(setting, group, &startup_timer),
      folder(config, runtime),
      checkpoints(config, runtime),
      memory_checkpoints(config, runtime),
      needed_(loaded_parts(draft(stage_configs(config).front(), {}, runtime.mesh_choice()), runtime.mesh())) {}

Start Session::find_start() {
  std::optional<Checkpoint> resumed = open_to_resume();
  check_shared_directory("checkpoint.dir", config.checkpoint.dir, runtime.group());
  timer.mark("reading");
  return start_at(std::move(resumed));
}

Start Session::find_undamaged_start(const Start& start, const DamagedCheckpoint& damage) {
  runtime.group().throw_on_all_ranks([&] {
    const bool has_others = std::holds_alternative<Checkpoint>(start.values) && config.checkpoint.resume == "auto";
    if (!has_others || verifies_newest_) throw InputError(damage.what());
  });
  verifies_newest_ = true;
  return start_at(open_to_resume());
}

std::optional<Checkpoint> Session::open_to_resume() {
  const std::optional<std::filesystem::path> newest = checkpoints.newest();
  std::optional<Checkpoint> found = memory_checkpoints.open(newest, needed_);
  if (!found) return checkpoints.open(needed_, verifies_newest_);
  checkpoints.set_resumed_on_disk(newest);
  return found;
}

void Session::account(Goodput::Use use, std::chrono::steady_clock::time_point begin) {
  const double seconds = seconds_since(begin);
  goodput->add(use, seconds);
  accounted_s_ += seconds;
}

Start Session::start_at(std::optional<Checkpoint> resumed) {
  Start start;
  if (!resumed) return start;
  runtime.group().throw_file_errors_on_all_ranks("reading the checkpoint", [&] {
    check_may_resume(config, *resumed, runtime.group().is_root());
    start.progress = progress_of(*resumed);
  });
  if (is_path(config.checkpoint.resume)) start.progress.began_from = config.checkpoint.resume;
  start.values = std::move(*resumed);
  return start;
}

// The folder recognizes the run by the directory of the checkpoint that the run resumes. For a checkpoint in memory,
// this is the directory of the run's checkpoints on disk.
void Session::claim_folder(const Progress& start) {
  folder.lock();
  if (const std::optional<std::filesystem::path> last = checkpoints.last_path()) {
    folder.claim(last->parent_path());
  } else {
    folder.claim(start.step > 0 ? config.checkpoint.dir : "");
  }
}

bool Session::poll_command() {
  const std::vector<int64_t> saved = checkpoints.take_completed();
  if (!checkpoint_command) return false;
  for (const int64_t step : saved) checkpoint_command->start(step);
  return checkpoint_command->poll();
}

bool Session::add_evaluation(MetricRow& row) {
  std::optional<CheckpointCommand::Numbers> numbers;
  if (checkpoint_command) numbers = checkpoint_command->next_numbers();
  if (!numbers) return false;
  row.set("evaluation_step", static_cast<double>(numbers->step));
  row.set("evaluation", std::move(numbers->values));
  return true;
}

void Session::begin(const Progress& start) {
  folder.open();
  checkpoints.set_other_runs_aside();
  memory_checkpoints.begin();
  if (runtime.group().is_root() && !config.checkpoint.command.empty()) {
    checkpoint_command.emplace(config);
  }
  goodput.emplace(config.logging.dir, continues() && runtime.group().is_root(), start.steps_s);
}

}  // namespace octavo
