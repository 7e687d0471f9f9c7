#include <fmt/ranges.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "app/commands/commands.h"
#include "app/config/config.h"
#include "app/config/config_check.h"
#include "app/config/stages.h"
#include "app/inputs/same_files.h"
#include "app/job/progress.h"
#include "app/log/start_screen.h"
#include "app/plan/plan_search.h"
#include "app/predict/machine_rates.h"
#include "app/predict/predictor.h"
#include "app/process/exit_codes.h"
#include "app/process/host_memory.h"
#include "app/process/signals.h"
#include "app/records/metrics_writer.h"
#include "app/records/run_folder.h"
#include "app/resolve/memory_advice.h"
#include "app/resolve/mesh_choice.h"
#include "app/resolve/resolve.h"
#include "app/text/tokenizer.h"
#include "app/train/resume.h"
#include "app/train/training_loop.h"
#include "build_config.h"
#include "checkpoint/directory_lock.h"
#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/output_file.h"
#include "core/format.h"
#include "core/log.h"
#include "core/printable.h"
#include "data/loader.h"
#include "data/overlap.h"
#include "data/validation_set.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

namespace {

namespace fs = std::filesystem;

struct TrainArguments {
  TargetArguments target;  // Without --dry-run, only target.config is used.
  bool dry_run = false;
};

// Throws an InputError if a stage trains on a file that data.validation holds out, a later stage has less data than a
// window, or a rank sees other data than rank 0. A collective.
void check_data(const Config& config, ProcessGroup& group) {
  const std::vector<StageConfig> stages = stage_configs(config);
  group.throw_file_errors_on_all_ranks("looking for training data that is held out", [&] {
    if (!group.is_root() || config.data.allow_overlap) return;
    for (const StageConfig& stage : stages) check_overlap(stage.data.train, config.data.validation);
  });
  group.throw_file_errors_on_all_ranks("looking at the data of later stages", [&] {
    for (size_t i = 1; group.is_root() && i < stages.size(); ++i) {
      const DataConfig& data = stages[i].data;
      check_windows(SampleStream(data, data.train, /*vocab_size=*/0), data.train);
    }
  });
  for (const StageConfig& stage : stages) check_same_data("data.train", stage.data.train, group);
  check_same_data("data.validation", config.data.validation, group);
}

// Returns the sentence on the start screen that predicts how long training on `samples` sequences takes, from the rates
// of the machine.
std::string predicted_time(const Job& job, const MachineRates& machine, const NetworkRates& network, int64_t samples) {
  try {
    const StepPrediction step = predict_step(job, machine, network);
    const double seconds =
        step.step_s * static_cast<double>(samples) / static_cast<double>(job.config.training.global_batch_size);
    std::string text = fmt::format("{} predicted for the steps, of {:.0f} ms each, by the rates of {}: {} wps",
                                   format_duration(seconds), step.step_s * 1e3, machine.name,
                                   with_thousands_separators(std::llround(step.wps)));
    if (const auto range = prediction_range(step.wps, job, machine)) {
      text += range->not_measured.empty()
                  ? fmt::format(" ({} to {})", with_thousands_separators(std::llround(range->low_wps)),
                                with_thousands_separators(std::llround(range->high_wps)))
                  : fmt::format(" (range unknown, not measured: {})", fmt::join(range->not_measured, ", "));
    }
    if (!job.place.one_node()) {
      text += fmt::format(", and an assumed {:g} Gbit/s per GPU between machines", network.gbps);
    }
    return text;
  } catch (const std::exception& error) {  // Ignored, because a run does not need the prediction.
    return fmt::format("not predicted: {}", error.what());
  }
}

// Returns the sentence that the start screen shows on a CPU instead of a predicted time.
std::string time_on_cpu() { return "not predicted on a CPU; the eta of the steps is measured"; }

// Logs the start screen and the warnings about the config.
void log_start_screen(const StartFacts& facts) {
  for (const std::string& line : start_screen(facts)) log_info("{}", line);
  for (const std::string& warning : config_warnings(facts.job.config, facts.datasets)) log_warning("{}", warning);
}

// Predicts how long the steps take, if the program contains a machine file for these GPUs.
std::string describe_time(const Job& job, const Runtime& runtime, int64_t samples) {
  if (!runtime.stream().is_cuda()) return time_on_cpu();
  const std::string gpu = gpu_info(runtime.gpu()).name;
  const std::optional<MachineRates> machine = find_machine_of(gpu);
  if (!machine) return fmt::format("not predicted: there are no rates of {}; the eta of the steps is measured", gpu);
  return predicted_time(job, *machine, {}, samples);
}

void log_start(const Job& job, Session& session, Training& training) {
  const Progress& start = training.start();
  const DataReport& data = training.data_report();
  const auto last = session.checkpoints.last_path();
  StartFacts facts{.job = job,
                   .runs_on = session.runtime.describe(),
                   .datasets = data.datasets(),
                   .data_notes = data.notes(),
                   .next_sample = data.next_sample(),
                   .validation = {},
                   .resumes_from = last             ? last->string()
                                   : start.step > 0 ? "the checkpoint in memory"
                                                    : "",
                   .step = start.step,
                   .tokens = start.tokens,
                   .time = describe_time(job, session.runtime, samples_left(job.config, start.step))};
  if (const Validator* validator = training.validator()) facts.validation = validator->datasets();
  log_start_screen(facts);
}

// Ends a run that has nothing to do, because an earlier start already completed its last step, `step`.
Ended nothing_to_do(Session& session, int64_t step) {
  session.memory_checkpoints.free();
  if (session.runtime.group().is_root()) {
    log_info(
        "nothing to do: step {} of {} is reached, and the run is finished; a larger training.steps trains further, "
        "with checkpoint.allow_changes=[schedule] if the schedule depends on it",
        step, session.config.training.steps);
  }
  return Ended::kDone;
}

// Trains one job after the other, each from where the previous one ended. A stage keeps its memory for all its jobs.
Ended train(Session& session, StopSignals& signals) {
  ProcessGroup& group = session.runtime.group();
  std::optional<Training> training;
  Ended last = Ended::kDone;                         // How the last job ended.
  auto last_end = std::chrono::steady_clock::now();  // Time at which the last job ended.
  for (Start start = session.find_start();;) {
    const bool is_new = !training;
    const Job job = is_new ? resolve(session.config, LiveSite(session.runtime), start.progress)
                           : later_job(training->job(), session.config, start.progress);
    if (is_new) {
      group.throw_on_all_ranks([&] { check_fits(job); });
      training.emplace(job, session);
    }
    try {
      training->load(job, start);
      start.values = {};  // Frees the memory and the disk space of a checkpoint that the run may remove.
    } catch (const DamagedCheckpoint& damage) {
      group.throw_on_all_ranks([&] { CHECK(!session.has_begun(), "{}", damage.what()); });
      training.reset();
      start = session.find_undamaged_start(start, damage);
      continue;
    }
    if (training->is_finished()) return nothing_to_do(session, start.progress.step);
    if (is_new) {
      training->open_log();
      if (group.is_root()) log_start(job, session, *training);
      training->warm_up();
    } else {
      session.goodput->roll_back(start.progress.steps_s);
      session.account(last == Ended::kFallback ? Goodput::kChecks : Goodput::kRecovery, last_end);
    }
    Outcome outcome = TrainingLoop(session, *training).run(signals);
    last_end = std::chrono::steady_clock::now();
    last = outcome.ended;
    if (!outcome.next) return last;
    if (last == Ended::kStage) training.reset();
    start = std::move(*outcome.next);
  }
}

// Throws an Error if lines of the run's files are lost, although the training itself has ended well. If a signal
// stopped the run, only prints the loss of lines, because launchers rely on the exit code kExitStopped.
void check_lost_lines(Session& session, Ended ended) {
  session.runtime.group().throw_on_all_ranks([&] {
    std::vector<std::string> lost = session.lost_lines;
    for (std::string& one : session.folder.lost_lines()) lost.push_back(std::move(one));
    CHECK(lost.empty() || ended == Ended::kStopped, "{}", fmt::join(lost, std::string(1, kErrorSeparator)));
    for (const std::string& one : lost) std::fputs(fmt::format("octavo: {}\n", printable(one)).c_str(), stderr);
  });
}

// Ends the session after an error: records it in the log, and completes a pending save if all ranks know the error. An
// InputError that was found after the run began is thrown as an Error, because no input was refused.
[[noreturn]] void end_with(const std::exception_ptr& thrown, Session& session) {
  const ProcessGroup& group = session.runtime.group();
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    const bool shared = group.shares(error);
    if (session.has_begun() && shared) session.checkpoints.complete_pending_save();
    session.folder.note(fmt::format("octavo: {}", error.what()));
    if (shared) session.folder.end_alerts();
    if (!session.has_begun() || dynamic_cast<const InputError*>(&error) == nullptr) throw;
    if (shared) throw ErrorOfAllRanks(error.what());
    throw Error(error.what());
  }
}

int run_train(const ConfigArguments& arguments, ProcessGroup& group, StartupTimer& timer, Console& console) {
  StopSignals signals(group);
  Config stated = load_run_config(arguments, group, Purpose::kTrain);
  console.use_color(stated.logging.color);
  timer.mark("config");
  Session session(with_chosen_mesh(observe_setting(std::move(stated), group), group), group, timer, &console);
  if (group.is_root()) {
    log_info("{}", start_title(arguments.path));
    for (const std::string& note : session.config.notes) log_info("{}", note);
  }
  try {
    check_data(session.config, group);
    timer.mark("data");
    const Ended ended = train(session, signals);
    check_lost_lines(session, ended);
    session.folder.end_alerts();
    if (ended == Ended::kDone) return kExitDone;
  } catch (...) {
    end_with(std::current_exception(), session);
  }
  if (group.is_root()) log_info("stopped by a signal; checkpoints are in {}", session.config.checkpoint.dir);
  return kExitStopped;
}

// Returns `path` if it exists, or else its nearest ancestor that exists.
fs::path existing_part(const fs::path& path) {
  std::error_code error;
  fs::path part = fs::absolute(path).lexically_normal();
  while (!fs::exists(part, error) && part.has_relative_path()) part = part.parent_path();
  return part;
}

// Checks that a run can create the directory and write files to it.
void check_writable(DirectoryUse use, const fs::path& dir) {
  const fs::path there = existing_part(dir);
  std::error_code error;
  CHECK_INPUT(fs::is_directory(there, error), "{} {}: cannot be created, because {} is not a directory", use.key,
              dir.string(), there.string());
  CHECK_INPUT(::access(there.c_str(), W_OK | X_OK) == 0, "{} {}: cannot be written to, because {} is not writable",
              use.key, dir.string(), there.string());
  DirectoryLock::check_free(dir, use);
}

// Returns the target that octavo plan would use. A program without CUDA uses the CPU.
PlanTarget target_of(const TargetArguments& arguments, ProcessGroup& group) {
  Config stated = load_config(arguments.config.path, arguments.config.overrides);
  if (!kHasCuda && stated.device == DeviceChoice::kAuto) stated.device = DeviceChoice::kCpu;
  PlanTarget target = find_target(arguments, stated, group);
  if (target.place.device == Device::kCpu)
    target.place.memory_bytes = host_memory(static_cast<int>(target.place.ranks)).available_bytes / target.place.ranks;
  return target;
}

std::vector<ValidationSet::Dataset> validation_datasets(const Config& config) {
  if (config.data.validation.empty()) return {};
  const ValidationSet set(config.data, {.batches = config.validation.batches,
                                        .global_batch_size = config.training.global_batch_size,
                                        .micro_batch_size = config.training.micro_batch_size,
                                        .vocab_size = config.model.vocab_size});
  return set.datasets();
}

std::string describe_ranks(const PlanTarget& target) {
  const std::string ranks = fmt::format("{} rank{}", target.place.ranks, target.place.ranks == 1 ? "" : "s");
  if (target.place.device == Device::kCpu) return ranks + " on cpu";
  return fmt::format("{} on {}", ranks, target.machine->device);
}

// Makes the checks that a run makes before its first step, for the job with which it would begin, and prints the start
// screen.
void start(const Config& run, const Job& job, const Progress& progress, const PlanTarget& target,
           const std::optional<Checkpoint>& resumed) {
  const StageConfig& config = job.config;
  const int64_t step = progress.step;
  const std::unique_ptr<Loader> loader = open_loader(config, loader_options(config, step), progress.loader_state, true);
  const DataReport data(config.data, *loader, samples_left(config, step));
  data.check_max_epochs();
  check_fits(job);
  const bool is_finished = step >= config.training.steps;
  if (!is_finished) {
    const FolderUse use = find_use_of_folder(run, resumed ? resumed->path().parent_path() : fs::path());
    check_writable(kLoggingDirectory, config.logging.dir);
    if (use == FolderUse::kSetAside && path_exists(fs::path(config.logging.dir) / "metrics.jsonl"))
      log_info("the log and metrics of an earlier run in {} would be moved aside", config.logging.dir);
  }
  check_writable(kCheckpointDirectory, config.checkpoint.dir);
  if (!is_finished) {
    log_start_screen({.job = job,
                      .runs_on = describe_ranks(target),
                      .datasets = data.datasets(),
                      .data_notes = data.notes(),
                      .next_sample = data.next_sample(),
                      .validation = validation_datasets(config),
                      .resumes_from = resumed ? resumed->path().string() : "",
                      .step = step,
                      .tokens = progress.tokens,
                      .time = target.machine
                                  ? predicted_time(job, *target.machine, target.network, samples_left(config, step))
                                  : time_on_cpu()});
  }
  const bool may_be_in_memory = config.checkpoint.in_memory && config.checkpoint.resume == "auto";
  if (is_finished) {
    log_info("the run would have nothing to do: step {} of {} is reached in {}", step, config.training.steps,
             resumed->path().string());
  } else if (resumed) {
    log_info("the run would resume {} after step {}{}", resumed->path().string(), step,
             may_be_in_memory ? ", or a later one in the memory of its machines" : "");
  } else {
    log_info("the run would begin with step 1{}",
             may_be_in_memory ? ", or resume a checkpoint in the memory of its machines" : "");
  }
}

// Implements `octavo train --dry-run`. Checks everything that a run of the config needs, and prints its start screen
// and the checkpoint that it would resume. Writes nothing, and needs neither GPUs nor several ranks. Returns the exit
// code.
int dry_run(const TargetArguments& arguments, ProcessGroup& group) {
  check_one_process("octavo train --dry-run", group);
  const PlanTarget target = target_of(arguments, group);
  Config config = load_run_config(arguments.config, group, Purpose::kTrain, target.place.ranks);
  resolve_device(config, target.place.device);
  log_info("{}", start_title(arguments.config.path));
  log_info("dry run for {}", describe_ranks(target));
  check_data(config, group);
  if (!config.logging.prometheus.empty()) check_output(config.logging.prometheus, kPrometheusFile);
  const MeshChoice mesh = choose_mesh(config, target.place);
  const std::optional<Checkpoint> resumed = open_checkpoint_to_resume(config.checkpoint, {}, group, false);
  tokenizer_to_attach(config.data, resumed ? &*resumed : nullptr);  // Called for its warning.
  if (resumed) check_may_resume(config, *resumed, true);
  Progress progress = resumed ? progress_of(*resumed) : Progress{};
  Job job = resolve(config, target.place, mesh, progress);
  start(config, job, progress, target, resumed);
  while (job.config.training.steps < config.training.steps) {
    progress.step = job.config.training.steps;
    job = resolve(config, target.place, mesh, progress);
    check_fits(job);
  }
  log_info("dry run: no problem was found, and nothing was written");
  return kExitDone;
}

}  // namespace

void add_train(CommandLine& line) {
  auto& arguments = line.arguments<TrainArguments>();
  TargetArguments& target = arguments.target;
  const auto run = [&](ProcessGroup& group) {
    return arguments.dry_run ? dry_run(target, group) : run_train(target.config, group, line.timer(), line.console());
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
