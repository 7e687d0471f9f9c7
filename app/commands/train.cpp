#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/commands/commands.h"
#include "app/commands/run_start.h"
#include "app/config/config_check.h"
#include "app/config/stages.h"
#include "app/inputs/same_files.h"
#include "app/log/start_screen.h"
#include "app/memory/memory_budget.h"
#include "app/memory/mesh_choice.h"
#include "app/plan/machine_rates.h"
#include "app/process/exit_codes.h"
#include "app/process/signals.h"
#include "app/records/run_folder.h"
#include "app/run/weights.h"
#include "app/train/resume.h"
#include "app/train/trainer.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"
#include "core/printable.h"

namespace octavo {

namespace {

struct TrainArguments {
  TargetArguments target;  // Only a dry run uses more than the config in it.
  bool dry_run = false;
};

// Converts an InputError that `work` throws to an Error, because it was found while running and not before.
template <typename Work>
auto while_running(const ProcessGroup& group, Work work) {
  try {
    return work();
  } catch (const InputError& error) {
    if (group.shares(error)) throw AgreedError(error.what());
    throw Error(error.what());
  }
}

// Predicts when the steps end, if the program contains a machine file for these GPUs.
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

void log_start(const Config& config, const Runtime& runtime, const Trainer& trainer, const MemoryBudget& budget) {
  const TrainingRun& run = trainer.training_run();
  if (trainer.is_finished()) return;
  const int64_t samples = samples_left(config, run.start().step);
  const TrainingOptions& options = run.training_model().options();
  const auto last = run.checkpoints().last_path();
  StartFacts facts{
      .config = config,
      .runs_on = runtime.describe(),
      .mesh = runtime.mesh().shape(),
      .mesh_reason = runtime.mesh_reason(),
      .memory = {options.checkpointing, options.sharding.reshard_after_forward, options.sharding.accumulate_unsharded},
      .planned_bytes = run.training_model().bytes(),
      .budget = budget,
      .datasets = run.data_report().datasets(),
      .data_notes = run.data_report().notes(),
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

// Returns the checkpoint that the run resumes, or nothing if the run starts from step 0. With auto, this is the newer
// one of the checkpoints on disk and in memory.
std::optional<Checkpoint> open_to_resume(RunContext& context, std::span<const TensorPart> needed,
                                         bool verifies_newest) {
  const std::optional<std::filesystem::path> newest = context.checkpoints.newest();
  std::optional<Checkpoint> found = context.memory_checkpoints.open(newest, needed);
  if (!found) return context.checkpoints.open(needed, verifies_newest);
  context.checkpoints.set_resumed_on_disk(newest);
  return found;
}

RunOutcome train_stage(const Config& stage, RunContext& context, std::optional<Checkpoint> resumed,
                       StopSignals& signals) {
  ProcessGroup& group = context.runtime.group();
  const MemoryBudget budget =
      memory_budget(stage, context.runtime);  // Memory budget before the run allocates its memory.
  Trainer trainer(stage, context, std::move(resumed));
  if (group.is_root()) log_start(stage, context.runtime, trainer, budget);
  return while_running(group, [&] { return trainer.run(signals); });
}

// Trains the stages of a run one after the other, or the whole run if it has no stages. Each stage resumes from the
// last checkpoint of the previous stage.
RunOutcome train_stages(const Config& config, RunContext& context, std::span<const TensorPart> needed,
                        std::optional<Checkpoint> resumed, StopSignals& signals) {
  ProcessGroup& group = context.runtime.group();
  for (;;) {
    const size_t number = stage_to_train(config, resumed);
    Config stage = stage_config(config, number);
    const bool is_first = !context.goodput;
    if (!is_first) stage.checkpoint.resume = "auto";
    const auto train = [&] { return train_stage(stage, context, std::move(resumed), signals); };
    const RunOutcome outcome = is_first ? train() : while_running(group, train);
    if (outcome == RunOutcome::kStopped || number + 1 == num_stages(config)) return outcome;
    group.agree([&] {
      CHECK(context.checkpoints.saved_step() == stage.training.steps,
            "the state at the end of stage {} could not be saved, so that the next stage has nothing to resume from",
            number + 1);
    });
    resumed = while_running(group, [&] { return context.checkpoints.open_last(needed); });
  }
}

// Resumes and trains the run. The checksums of the newest checkpoint are compared as the state is loaded. If there is
// damage, the newest undamaged checkpoint is searched for before anything is loaded again.
RunOutcome resume_and_train(const Config& config, RunContext& context, StopSignals& signals) {
  ProcessGroup& group = context.runtime.group();
  const std::vector<TensorPart> needed = loaded_parts(stage_config(config, 0), context.runtime);
  std::optional<Checkpoint> resumed = open_to_resume(context, needed, false);
  const bool has_others = resumed && config.checkpoint.resume == "auto";
  check_shared_directory("checkpoint.dir", config.checkpoint.dir, group);
  context.timer.mark("reading");
  try {
    return train_stages(config, context, needed, std::move(resumed), signals);
  } catch (const DamagedCheckpoint& damage) {
    group.agree([&] {
      if (!has_others) throw InputError(damage.what());
    });
  }
  return train_stages(config, context, needed, open_to_resume(context, needed, true), signals);
}

// Fails if lines of the run's files are lost, although the training itself has ended well. A run that a signal stops
// keeps its exit code, by which launchers decide, and only names the loss on standard error.
void check_lost_lines(RunContext& context, RunOutcome outcome) {
  context.runtime.group().agree([&] {
    std::vector<std::string> lost = context.lost_lines;
    for (std::string& one : context.folder->lost_lines()) lost.push_back(std::move(one));
    CHECK(lost.empty() || outcome == RunOutcome::kStopped, "{}", fmt::join(lost, std::string(1, kErrorSeparator)));
    for (const std::string& one : lost) std::fputs(fmt::format("octavo: {}\n", printable(one)).c_str(), stderr);
  });
}

int run_train(const ConfigArguments& arguments, ProcessGroup& group, StartupTimer& timer, Console& console) {
  StopSignals signals(group);
  Config config = load_run_config(arguments, group, Purpose::kTrain);
  console.use_color(config.logging.color);
  timer.mark("config");
  Runtime runtime(config, group, &timer, mesh_that_fits(config, group));
  RunFolder folder(config, runtime);
  if (group.is_root()) log_info("{}", start_title(arguments.path));
  for (const std::string& note : config.notes) {
    if (group.is_root()) log_info("{}", note);
  }
  const RunOutcome outcome = [&] {
    try {
      check_data(config, group);
      timer.mark("data");
      DiskCheckpoints checkpoints(config, runtime);
      MemoryCheckpoints memory_checkpoints(config, runtime);
      RunContext context{.runtime = runtime,
                         .timer = timer,
                         .checkpoints = checkpoints,
                         .memory_checkpoints = memory_checkpoints,
                         .console = &console,
                         .folder = &folder};
      const RunOutcome ended = resume_and_train(config, context, signals);
      check_lost_lines(context, ended);
      return ended;
    } catch (const std::exception& error) {
      folder.note(fmt::format("octavo: {}", error.what()));
      throw;
    }
  }();
  if (outcome == RunOutcome::kDone) return kExitDone;
  if (group.is_root()) log_info("stopped by a signal; checkpoints are in {}", config.checkpoint.dir);
  return kExitStopped;
}

}  // namespace

void add_train(CommandLine& line) {
  auto& arguments = line.arguments<TrainArguments>();
  TargetArguments& target = arguments.target;
  const auto run = [&](ProcessGroup& group) {
    return arguments.dry_run ? octavo::dry_run(target, group)
                             : run_train(target.config, group, line.timer(), line.console());
  };
  CLI::App* train =
      line.add("train", "train a model, or resume its training; scripts/launch_mpirun.sh starts several ranks", run,
               "scripts/launch_mpirun.sh configs/llama3_8b_8gpu.yaml training.steps=1000 logging.dir=runs/mine");
  add_config_arguments(train, target.config);
  auto* dry_run = train->add_flag("--dry-run", arguments.dry_run,
                                  "check everything, print the start screen and what would be resumed, and write "
                                  "nothing; needs no GPU");
  train->add_option("--gpus", target.gpus, "with --dry-run: number of GPUs of the run")
      ->check(integer(1, 1 << 20))
      ->default_str("as octavo plan")
      ->needs(dry_run);
  train
      ->add_option("--gpus-per-node", target.gpus_per_node,
                   "with --dry-run: number of GPUs per node, which NVLink connects")
      ->check(integer(1, 1 << 20))
      ->needs(dry_run);
  train->add_option("--machine", target.machine, "with --dry-run: h200, h100 or a FILE that octavo doctor --save wrote")
      ->default_str("as octavo plan")
      ->needs(dry_run);
}

}  // namespace octavo
