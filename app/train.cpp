#include <spdlog/spdlog.h>

#include "app/commands.h"
#include "app/evaluation.h"
#include "app/same_files.h"
#include "app/signals.h"
#include "app/trainer.h"
#include "app/weights.h"
#include "kernels/core/error.h"

namespace octavo {

Config load_run_config(const ConfigArguments& arguments, ProcessGroup& group, Purpose purpose) {
  Config config;
  group.agree([&] {
    config = load_config(arguments.path, arguments.overrides);
    validate(config, group.size(), purpose);
  });
  const std::unique_ptr<WeightSource> weights = open_same_weights(config.init_from, group);
  group.agree([&] {
    if (!weights) return;
    config.init_from = weights->path().string();  // where that was a directory of checkpoints, the one that rank 0 took
    const std::string note = adopt_initial_model(config, *weights);
    if (!note.empty() && group.is_root()) spdlog::warn("{}", note);
    validate(config, group.size(), purpose);
  });
  return config;
}

namespace {

// What goes wrong from here on shows only while running, whatever its cause.
Trainer::Outcome run(Trainer& trainer, StopSignals& signals, const ProcessGroup& group) {
  try {
    return trainer.run(signals);
  } catch (const InputError& error) {
    if (group.shares(error)) throw AgreedError(error.what());
    throw Error(error.what());
  }
}

}  // namespace

int train_command(const ConfigArguments& arguments, ProcessGroup& group, StartupTimer& timer) {
  StopSignals signals(group.is_root());
  Config config = load_run_config(arguments, group, Purpose::kTrain);
  timer.mark("config");
  Runtime runtime(config, group, &timer);
  if (group.is_root()) {
    const double millions = static_cast<double>(config.model.num_parameters()) / 1e6;
    spdlog::info("octavo train {}: {:.1f}M parameters, {} tokens a step, {}", arguments.path, millions,
                 with_thousands_separators(config.training.global_batch_size * config.data.seq_len),
                 runtime.describe());
  }
  check_same_data("data.train", config.data.train, group);
  check_same_data("data.validation", config.data.validation, group);
  timer.mark("data");
  Trainer trainer(config, runtime, timer);
  const Trainer::Outcome outcome = run(trainer, signals, group);
  if (outcome == Trainer::Outcome::kDone) return kExitDone;
  if (group.is_root()) spdlog::info("stopped by a signal; a checkpoint is saved in {}", config.checkpoint.dir);
  return kExitStopped;
}

}  // namespace octavo
