#include "app/train/resume.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/config/config_changes.h"
#include "app/inputs/same_files.h"
#include "app/job/job.h"
#include "app/job/progress.h"
#include "app/process/events.h"
#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/json_input.h"
#include "core/log.h"

namespace octavo {

namespace {

// Throws an InputError if the command line gives model.init_from and the run that saved the checkpoint started from
// other weights. A run that is restarted by the same command resumes.
void check_initial_weights(const Config& config, const Checkpoint& checkpoint) {
  if (config.init_from_given.empty()) return;
  const std::string recorded = find_value<std::string>(checkpoint.meta(), "/config/model/init_from").value_or("");
  // A run that started from a directory of checkpoints recorded the newest one, and a newer one may exist now.
  const bool is_same = !recorded.empty() && (absolute_path(recorded) == absolute_path(config.init_from) ||
                                             is_inside(recorded, config.init_from_given));
  CHECK_INPUT(is_same,
              "model.init_from={} is given, but the run resumes {}{}; leave model.init_from out, or start a new run "
              "from these weights with another logging.dir and checkpoint.dir",
              config.init_from_given, checkpoint.path().string(),
              recorded.empty() ? "" : fmt::format(", which began with {}", recorded));
}

void check_changes(const Config& now, const Checkpoint& checkpoint, bool logs) {
  const nlohmann::json& meta = checkpoint.meta();
  if (!meta.contains("config") || !meta.at("config").contains("training")) return;  // The checkpoint was imported.
  Config before;
  try {
    before = config_from_json(meta.at("config"), checkpoint.path().string());
  } catch (const InputError& error) {  // The config was written by another version.
    std::string reason = error.what();
    std::ranges::replace(reason, kErrorSeparator, ';');
    if (logs) log_warning("the config changes since the checkpoint was saved are unknown: {}", reason);
    return;
  }
  const int64_t step = checkpoint.step();
  const std::string refusal = refusal_to_resume(before, now, step);
  CHECK_INPUT(refusal.empty(), "{}: {}", checkpoint.path().string(), refusal);
  if (!logs) return;
  const std::string changes = describe(config_changes(before, now));
  if (!changes.empty()) log_event(EventKind::kNote, step, "config changes since the checkpoint was saved: {}", changes);
  if (step == 0 || step >= now.training.steps) return;
  log_event(EventKind::kNote, step, "learning rate: {:.3g} at step {}, {:.3g} at step {}", schedule_of(before, step).lr,
            step, schedule_of(now, step + 1).lr, step + 1);
}

// Throws an InputError if the next stage would not begin right after the samples that the run has read, because the
// config changes batch sizes or data.skip in steps that are done. Skips this check if data.resume_from_sample or
// checkpoint.allow_changes moves the data.
void check_samples_read(const Config& run, const Progress& progress, const std::string& path) {
  const nlohmann::json& state = progress.loader_state;
  if (run.stages.empty() || state.is_null() || run.checkpoint.allows(KeyClass::kData)) return;
  if (run.data.resume_from_sample || !state.value("resumed_from_sample", nlohmann::json()).is_null()) return;
  const std::vector<StageConfig> stages = stage_configs(run, progress.rolled_back);
  const StageSpan& next = stages[stage_of_step(run, progress.step + 1)].stage;
  if (next.number == std::ssize(stages) && next.steps_before != progress.step) return;  // The last stage has begun.
  const StageConfig& last = stages[stage_of_step(run, progress.step)];
  const BatchSchedule batches = last.training.batch_schedule();
  const int64_t taken = batches.samples(progress.step) - batches.samples(last.stage.steps_before);
  const std::vector<SampleRange> skip = skipped_samples(last.data, progress.rolled_back);
  const int64_t read = state.value("next_sample", int64_t{0});
  const int64_t stated = end_of_samples(skip, last.data.origin.sample, taken);
  // Moves a position past skipped samples, because these may or may not count as read.
  const auto settled = [&](int64_t sample) { return end_of_samples(skip, sample, 1); };
  CHECK_INPUT(
      settled(read) == settled(stated),
      "{}: the next stage would begin at the wrong sample, because {} samples are read and this config reads {} "
      "in the {} steps that are done; give other batch sizes or another data.skip only under `stages`, in the "
      "items of later stages",
      path, read, stated, progress.step);
}

// Throws an InputError if the run is in a fallback to bfloat16 that the config would end early.
void check_fallback(const Config& run, const Progress& progress, const std::string& path) {
  const bool ends = progress.step < progress.bfloat16_until && uses_fp8(run.precision) && !has_precision_guard(run);
  CHECK_INPUT(!ends || run.checkpoint.allows(KeyClass::kPrecision),
              "{}: the run computes in bfloat16 until step {}, because FP8 differed from it too much, and "
              "precision.guard.every=0 would end this after step {}; keep the guard, or give "
              "checkpoint.allow_changes=[precision]",
              path, progress.bfloat16_until, progress.step);
}

}  // namespace

void check_may_resume(const Config& run, const Checkpoint& checkpoint, bool logs) {
  check_same_model(checkpoint.model_config(), run.model, checkpoint.path().string());
  check_initial_weights(run, checkpoint);
  check_changes(run, checkpoint, logs);
  const Progress progress = progress_of(checkpoint);
  check_samples_read(run, progress, checkpoint.path().string());
  check_fallback(run, progress, checkpoint.path().string());
}

LoaderOptions loader_options(const StageConfig& config, int64_t steps_done) {
  return {.global_batch_size = config.training.global_batch_size,
          .batch_size_warmup = config.training.batch_size_warmup,
          .steps_done = steps_done,
          .enters_stage = config.stage.number > 1 && steps_done == config.stage.steps_before,
          .vocab_size = config.model.vocab_size};
}

int64_t samples_left(const StageConfig& config, int64_t steps_done) {
  const BatchSchedule batches = config.training.batch_schedule();
  return std::max<int64_t>(0, batches.samples(config.training.steps) - batches.samples(steps_done));
}

std::unique_ptr<Loader> open_loader(const Config& config, const LoaderOptions& options, const nlohmann::json& state,
                                    bool logs) {
  try {
    auto loader = std::make_unique<Loader>(config.data, options, state.is_null() ? nullptr : &state);
    if (!logs || state.is_null()) return loader;
    for (const std::string& sentence : loader->stream().modified_since(state)) log_warning("{}", sentence);
    return loader;
  } catch (const OtherData& error) {
    if (!config.checkpoint.allows(KeyClass::kData)) {
      throw InputError(fmt::format(
          "{}; with checkpoint.allow_changes=[data] the run continues with the current data from its beginning",
          error.what()));
    }
    if (logs) log_warning("the data starts from the beginning with step {}: {}", options.steps_done + 1, error.what());
    return std::make_unique<Loader>(config.data, options);
  }
}

}  // namespace octavo
