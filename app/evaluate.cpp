#include <cmath>

#include "app/commands.h"
#include "app/memory/inference.h"
#include "app/run/same_files.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"

namespace octavo {

int evaluate_command(const ConfigArguments& arguments, ProcessGroup& group) {
  Config config = load_run_config(arguments, group, Purpose::kEvaluate);
  std::optional<Checkpoint> checkpoint = open_run_checkpoint(config.checkpoint, group);
  group.agree([&] {
    CHECK_INPUT(checkpoint || !config.init_from.empty(),
                "there is no checkpoint to evaluate in checkpoint.dir {}, and neither checkpoint.resume nor "
                "model.init_from names one",
                config.checkpoint.dir);
    if (checkpoint) check_same_model(checkpoint->model_config(), config.model, checkpoint->path().string());
  });
  Runtime runtime(config, group);
  check_same_data("data.validation", config.data.validation, group);
  InferenceModel inference(config, true, runtime);
  inference.load(config, checkpoint ? &*checkpoint : nullptr);
  const double loss = inference.state().validator->loss(inference.state().model);
  if (group.is_root()) {
    log_info("{}  validation_loss {:.6f}  perplexity {:.4f}  tokens {}",
             checkpoint ? checkpoint->path().string() : config.init_from, loss, std::exp(loss),
             with_thousands_separators(inference.state().validator->num_targets()));
  }
  return kExitDone;
}

}  // namespace octavo
