#include <optional>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/config/config_check.h"
#include "app/config/stages.h"
#include "app/log/start_screen.h"
#include "app/memory/memory_room.h"
#include "app/memory/mesh_choice.h"
#include "app/plan/machine_files.h"
#include "app/process/model_path.h"
#include "app/process/same_files.h"
#include "app/run_start.h"
#include "app/train/run_folder.h"
#include "app/train/signals.h"
#include "app/train/trainer.h"
#include "checkpoint/checkpoint_files.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"

namespace octavo {

namespace {

// What goes wrong from here on shows only while running, whatever its cause.
template <typename Work>
auto while_running(const ProcessGroup& group, Work work) {
  try {
    return work();
  } catch (const InputError& error) {
    if (group.shares(error)) throw AgreedError(error.what());
    throw Error(error.what());
  }
}

// Returns when the steps end, if the rates of these GPUs came with the program.
std::string describe_time(const Config& config, const Runtime& runtime, const TrainingOptions& options,
                          int64_t samples) {
  if (!runtime.stream().is_cuda()) return time_on_cpu();
  const std::string gpu = gpu_info(runtime.gpu()).name;
  const std::optional<MachineRates> machine = find_machine_of(gpu);
  if (!machine) return fmt::format("not predicted: there are no rates of {}; the eta of the steps is measured", gpu);
  return predicted_time({.config = config,
                         .mesh = runtime.mesh().shape(),
                         .sharding = options.sharding,
                         .checkpointing = options.checkpointing},
                        *machine, {.gpus_per_node = runtime.ranks_per_machine()}, samples);
}

void log_start(const Config& config, const Runtime& runtime, const Trainer& trainer, const MemoryRoom& room) {
  const TrainingRun& run = trainer.training_run();
  if (trainer.is_finished()) return;
  const BatchSchedule batches = config.training.batch_schedule();
  const int64_t samples = batches.samples(config.training.steps) - batches.samples(run.start().step);
  const TrainingOptions& options = run.training_model().options();
  const auto last = run.checkpoints().last_path();
  StartFacts facts{.config = config,
                   .runs_on = runtime.describe(),
                   .mesh = runtime.mesh().shape(),
                   .mesh_reason = runtime.mesh_reason(),
                   .options = options,
                   .planned_bytes = run.training_model().bytes(),
                   .room = room,
                   .datasets = run.data_report().datasets(),
                   .next_sample = run.data_report().next_sample(),
                   .validation = {},
                   .resumes_from = last                   ? last->string()
                                   : run.start().step > 0 ? "the checkpoint in memory"
                                                          : "",
                   .step = run.start().step,
                   .tokens = run.start().tokens,
                   .time = describe_time(config, runtime, options, samples)};
  if (const Validator* validator = trainer.validator()) facts.validation = validator->datasets();
  log_start_screen(facts);
}

// By the checkpoint that there seems to be; the trainer may find another one to go on from (OtherStage), and says what
// is wrong with those that cannot be read.
size_t likely_stage(const Config& config, ProcessGroup& group) {
  const std::string& resume = config.checkpoint.resume;
  if (config.stages.empty() || resume == "never") return 0;
  int64_t step = 0;
  try {
    if (group.is_root()) {
      if (resume == "auto") {
        const std::vector<FoundCheckpoint> found = find_checkpoints(config.checkpoint.dir);
        step = found.empty() ? 0 : found.back().step;
      } else {
        step = Checkpoint(resolve_checkpoint(resume)).step();
      }
    }
  } catch (const Error&) {
    step = 0;
  }
  return stage_of_step(config, group.all_reduce_max(step) + 1);
}

// The stages of a run one after the other, or the whole of one without. Each goes on from the checkpoint at the end of
// the one before, as a run that is resumed.
class Stages {
 public:
  Stages(const Config& config, Runtime& runtime, StartupTimer& timer, RunFolder& folder, Console& console)
      : config_(config), runtime_(runtime), timer_(timer), folder_(folder), console_(console) {}

  Trainer::Outcome train(StopSignals& signals) {
    Trainer::Outcome outcome = Trainer::Outcome::kDone;
    for (size_t stage = train_one(likely_stage(config_, runtime_.group()), signals, outcome);
         stage < num_stages(config_) && outcome == Trainer::Outcome::kDone;) {
      stage = while_running(runtime_.group(), [&] { return train_one(stage, signals, outcome); });
    }
    return outcome;
  }

 private:
  // Of this stage, or of that in which the run turns out to be. Returns the next one.
  size_t train_one(size_t stage, StopSignals& signals, Trainer::Outcome& outcome) {
    Config config = stage_config(config_, stage);
    if (goodput_) config.checkpoint.resume = "auto";
    try {
      const MemoryRoom room = memory_room(config, runtime_);  // before the run takes its part of it
      Trainer trainer(config, runtime_, timer_, goodput_, &console_, &folder_);
      if (runtime_.group().is_root()) log_start(config, runtime_, trainer, room);
      outcome = while_running(runtime_.group(), [&] { return trainer.run(signals); });
      runtime_.group().agree([&] {
        CHECK(outcome != Trainer::Outcome::kDone || stage + 1 == num_stages(config_) ||
                  trainer.saved_step() == config.training.steps,
              "the state at the end of stage {} could not be saved, so that the next stage has nothing to resume from",
              stage + 1);
      });
      goodput_ = trainer.take_goodput();
      return stage + 1;
    } catch (const OtherStage& other) {
      return train_one(other.stage(), signals, outcome);
    }
  }

  const Config& config_;
  Runtime& runtime_;
  StartupTimer& timer_;
  RunFolder& folder_;
  Console& console_;
  std::optional<Goodput> goodput_;
};

}  // namespace

int train_command(const ConfigArguments& arguments, ProcessGroup& group, StartupTimer& timer, Console& console) {
  StopSignals signals(group);
  Config config = load_run_config(arguments, group, Purpose::kTrain);
  console.use_color(config.logging.color);
  timer.mark("config");
  Runtime runtime(config, group, &timer, copies_that_fit(config, group));
  RunFolder folder(config, runtime);
  if (group.is_root()) log_info("{}", start_title(arguments.path));
  for (const std::string& note : config.notes) {
    if (group.is_root()) log_info("{}", note);
  }
  const Trainer::Outcome outcome = [&] {
    try {
      check_overlap_of_stages(config, group);
      for (const Config& stage : stage_configs(config)) check_same_data("data.train", stage.data.train, group);
      check_same_data("data.validation", config.data.validation, group);
      timer.mark("data");
      return Stages(config, runtime, timer, folder, console).train(signals);
    } catch (const std::exception& error) {
      folder.note(fmt::format("octavo: {}", error.what()));
      throw;
    }
  }();
  if (outcome == Trainer::Outcome::kDone) return kExitDone;
  if (group.is_root()) log_info("stopped by a signal; checkpoints are in {}", config.checkpoint.dir);
  return kExitStopped;
}

}  // namespace octavo
