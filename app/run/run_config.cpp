#include "app/run/run_config.h"

#include "app/run/same_files.h"
#include "app/run/weights.h"
#include "core/log.h"

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
    if (!note.empty() && group.is_root()) log_line(LogLevel::kWarning, note);
    validate(config, group.size(), purpose);
  });
  return config;
}

}  // namespace octavo
