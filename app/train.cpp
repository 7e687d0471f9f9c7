#include "app/commands.h"
#include "app/config/config_check.h"
#include "app/run/same_files.h"
#include "app/train/run_folder.h"
#include "app/train/signals.h"
#include "app/train/trainer.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"

namespace octavo {

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
  RunFolder folder(config, runtime);
  if (group.is_root()) {
    const double millions = static_cast<double>(config.model.num_parameters()) / 1e6;
    log_info("octavo train {}: {:.1f}M parameters, {} tokens a step, {}", arguments.path, millions,
             with_thousands_separators(config.training.global_batch_size * config.data.seq_len), runtime.describe());
  }
  const Trainer::Outcome outcome = [&] {
    try {
      check_same_data("data.train", config.data.train, group);
      check_same_data("data.validation", config.data.validation, group);
      timer.mark("data");
      Trainer trainer(config, runtime, timer);
      folder.open();
      return run(trainer, signals, group);
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
