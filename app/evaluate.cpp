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
  Validator& validator = *inference.state().validator;
  const ValidationLoss result = validator.loss(inference.state().model);
  if (!group.is_root()) return kExitDone;
  const auto line = [](const std::string& what, double loss, int64_t targets) {
    log_info("{}  validation_loss {:.6f}  perplexity {:.4f}  tokens {}", what, loss, std::exp(loss),
             with_thousands_separators(targets));
  };
  int64_t targets = 0;
  for (size_t d = 0; d < validator.datasets().size(); ++d) {
    const DatasetLoss& dataset = result.by_dataset[d];
    targets += dataset.targets;
    if (validator.datasets().size() > 1) line(validator.datasets()[d].name, dataset.loss, dataset.targets);
  }
  line(checkpoint ? checkpoint->path().string() : config.init_from, result.loss, targets);
  return kExitDone;
}

}  // namespace octavo
