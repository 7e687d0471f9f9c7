#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "app/commands/command_line.h"
#include "app/commands/run_start.h"
#include "app/config/config_check.h"
#include "app/config/stages.h"
#include "app/inputs/same_files.h"
#include "app/memory/memory_advice.h"
#include "app/memory/mesh_choice.h"
#include "app/process/exit_codes.h"
#include "app/process/host_memory.h"
#include "app/records/metrics_writer.h"
#include "app/records/run_folder.h"
#include "app/text/tokenizer.h"
#include "app/train/resume.h"
#include "build_config.h"
#include "checkpoint/directory_lock.h"
#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/output_file.h"
#include "core/log.h"
#include "data/validation_set.h"

namespace octavo {

namespace {

namespace fs = std::filesystem;

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
  if (target.device.device == Device::kCpu)
    target.device.memory_bytes = host_memory(static_cast<int>(target.gpus)).available_bytes / target.gpus;
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

MemoryPlan plan_stage(const Config& config, const MeshShape& mesh, const PlanTarget& target, ProcessGroup& group) {
  MemoryPlan plan = plan_memory(config, mesh, target.device, group);
  if (plan.fits()) return plan;
  const std::string advice = find_fitting_change(config, target.gpus, target.device, group).words(target.gpus);
  throw InputError(unfitting_message(plan, config.model.num_layers, advice));
}

std::string describe_ranks(const PlanTarget& target) {
  const std::string ranks = fmt::format("{} rank{}", target.gpus, target.gpus == 1 ? "" : "s");
  if (target.device.device == Device::kCpu) return ranks + " on cpu";
  return fmt::format("{} on {}", ranks, target.machine->device);
}

// Makes the checks of a start of the run with `config`, which is that of one stage, and prints the start screen.
void start(const Config& config, const MeshChoice& mesh, const PlanTarget& target,
           const std::optional<Checkpoint>& resumed, ProcessGroup& group) {
  if (resumed) check_may_resume(config, *resumed, true);
  const int64_t step = resumed ? resumed->step() : 0;
  const bool has_loader = resumed && resumed->meta().contains("loader");
  const std::unique_ptr<Loader> loader =
      open_loader(config, loader_options(config, step), has_loader ? &resumed->meta().at("loader") : nullptr, true);
  const DataReport data(config.data, *loader, samples_left(config, step));
  data.check_max_epochs();
  const MemoryPlan plan = plan_stage(config, mesh.mesh, target, group);
  const bool is_finished = step >= config.training.steps;
  if (!is_finished) {
    const FolderUse use = find_use_of_folder(config, resumed ? resumed->path().parent_path() : fs::path());
    check_writable(kLoggingDirectory, config.logging.dir);
    if (use == FolderUse::kSetAside && path_exists(fs::path(config.logging.dir) / "metrics.jsonl"))
      log_info("the log and metrics of an earlier run in {} would be moved aside", config.logging.dir);
  }
  check_writable(kCheckpointDirectory, config.checkpoint.dir);
  const PredictedRun run{
      .config = config, .mesh = mesh.mesh, .sharding = plan.sharding, .checkpointing = plan.checkpointing};
  if (!is_finished) {
    log_start_screen(
        {.config = config,
         .runs_on = describe_ranks(target),
         .mesh = mesh.mesh,
         .mesh_reason = mesh.reason,
         .memory = {plan.checkpointing, plan.sharding.reshard_after_forward, plan.sharding.accumulate_unsharded},
         .planned_bytes = plan.arena_bytes,
         .budget = plan.budget,
         .datasets = data.datasets(),
         .data_notes = data.notes(),
         .next_sample = data.next_sample(),
         .validation = validation_datasets(config),
         .resumes_from = resumed ? resumed->path().string() : "",
         .step = step,
         .tokens = resumed ? resumed->meta().value("tokens", int64_t{0}) : 0,
         .time = target.machine ? predicted_time(run, *target.machine, target.cluster, samples_left(config, step))
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

}  // namespace

int dry_run(const TargetArguments& arguments, ProcessGroup& group) {
  check_one_process("octavo train --dry-run", group);
  const PlanTarget target = target_of(arguments, group);
  Config config = load_run_config(arguments.config, group, Purpose::kTrain, target.gpus);
  resolve_device(config, target.device.device);
  log_info("{}", start_title(arguments.config.path));
  log_info("dry run for {}", describe_ranks(target));
  check_data(config, group);
  if (!config.logging.prometheus.empty()) check_output(config.logging.prometheus, kPrometheusFile);
  const MeshChoice mesh = choose_mesh(config, target.gpus, target.device.gpus_per_node, target.device, group);
  const std::optional<Checkpoint> resumed = open_checkpoint_to_resume(config.checkpoint, {}, group, false);
  tokenizer_to_carry(config.data, resumed);  // Called for its warning.
  const size_t first = stage_to_train(config, resumed);
  start(stage_config(config, first), mesh, target, resumed, group);
  for (size_t later = first + 1; later < num_stages(config); ++later)
    plan_stage(stage_config(config, later), mesh.mesh, target, group);
  log_info("dry run: no problem was found, and nothing was written");
  return kExitDone;
}

}  // namespace octavo
