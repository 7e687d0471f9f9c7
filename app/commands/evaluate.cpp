#include <algorithm>
#include <cmath>

#include "app/commands/commands.h"
#include "app/config/stages.h"
#include "app/inputs/same_files.h"
#include "app/resolve/inference.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"

namespace octavo {

namespace {

struct EvaluateArguments {
  ConfigArguments config;
  bool ema = false;  // Use the moving average of the weights.
};

int run_evaluate(const EvaluateArguments& arguments, ProcessGroup& group) {
  const SavedWeights which = arguments.ema ? SavedWeights::kEma : SavedWeights::kMaster;
  Config config = load_run_config(arguments.config, group, Purpose::kEvaluate);
  std::optional<Checkpoint> checkpoint = open_run_checkpoint(config.checkpoint, group);
  group.throw_on_all_ranks([&] {
    CHECK_INPUT(checkpoint || !config.init_from.empty(),
                "there is no checkpoint to evaluate in checkpoint.dir {}, and neither checkpoint.resume nor "
                "model.init_from names one",
                config.checkpoint.dir);
    CHECK_INPUT(checkpoint || !arguments.ema, "--ema needs a checkpoint, but the weights are those of {}",
                config.init_from);
    if (!checkpoint) return;
    check_same_model(checkpoint->model_config(), config.model, checkpoint->path().string());
    (void)checkpoint->prefix(which);  // Throws if the checkpoint lacks these weights, before the model is built.
  });
  const std::string name = checkpoint ? checkpoint->path().string() : config.init_from;
  const std::string step = checkpoint ? fmt::format(", step {}", checkpoint->step()) : "";
  if (group.is_root()) log_info("weights of {}{}", name, step);
  const Setting setting =
      observe_setting(config_of_step(config, checkpoint ? std::max<int64_t>(checkpoint->step(), 1) : 1), group);
  config = setting.run;
  Runtime runtime(setting, group);
  check_same_data("data.validation", config.data.validation, group);
  InferenceModel inference(config, {}, runtime);
  inference.load(config, checkpoint ? &*checkpoint : nullptr, which);
  Validator& validator = *inference.state().validator;
  const ValidationLoss result = validator.loss(*inference.state().model, [] { return false; }).value();
  group.throw_on_all_ranks([&] {
    CHECK_INPUT(result.loss,
                "data.document_mask masks every target of data.validation, so there is no loss to compute; expected "
                "documents of at least two tokens");
  });
  if (!group.is_root()) return kExitDone;
  const auto line = [](const std::string& what, double loss, int64_t targets) {
    log_info("{}  validation_loss {:.6f}  perplexity {:.4f}  tokens {}", what, unsigned_nan(loss),
             unsigned_nan(std::exp(loss)), with_thousands_separators(targets));
  };
  int64_t targets = 0;
  for (size_t d = 0; d < validator.datasets().size(); ++d) {
    const DatasetLoss& dataset = result.by_dataset[d];
    targets += dataset.targets;
    if (validator.datasets().size() > 1 && dataset.targets > 0)
      line(validator.datasets()[d].name, dataset.loss, dataset.targets);
  }
  line(name + (arguments.ema ? ", averaged weights" : ""), *result.loss, targets);
  return kExitDone;
}

}  // namespace

void add_evaluate(CommandLine& line) {
  const auto [evaluate, arguments] =
      line.add<EvaluateArguments>("evaluate", "compute the validation loss and perplexity of a model", run_evaluate,
                                  "octavo evaluate runs/quickstart validation.batches=10");
  add_config_arguments(
      evaluate, arguments.config,
      "CONFIG.yaml, or MODEL: a checkpoint, a directory of checkpoints, a run folder (each with its own config) or a "
      "Hugging Face directory");
  evaluate->add_flag("--ema", arguments.ema, kEmaHelp);
}

}  // namespace octavo
