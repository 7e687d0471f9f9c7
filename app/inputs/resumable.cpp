#include "app/inputs/resumable.h"

#include <algorithm>
#include <string>

#include "core/error.h"
#include "data/loader.h"
#include "model/optimizer/optimizer_config.h"
#include "model/parameters/parameters.h"

namespace octavo {

namespace {

bool has_tensor(const Checkpoint& checkpoint, const char* state, const ParameterSpec& parameter) {
  const std::string prefix = *state == '\0' ? "" : fmt::format("{}.", state);
  const CheckpointTensorInfo* found = checkpoint.find(prefix + parameter.name);
  return found != nullptr && found->shape == parameter.whole_shape;
}

// Returns whether the checkpoint has all optimizer states of the parameter.
bool has_optimizer_states(const Checkpoint& checkpoint, const ParameterSpec& parameter) {
  return std::ranges::any_of(kOptimizers, [&](const OptimizerTraits& optimizer) {
    return std::ranges::all_of(optimizer.states, [&](const OptimizerStateTraits& state) {
      return has_tensor(checkpoint, state.name, parameter);
    });
  });
}

}  // namespace

void check_resumable(const Checkpoint& checkpoint) {
  const std::string manifest = (checkpoint.path() / kManifestName).string();
  const nlohmann::json& meta = checkpoint.meta();
  const bool is_imported = meta.contains("imported_from");
  const bool has_average = checkpoint.has_average();
  const ParameterLayout layout(checkpoint.model_config());
  for (const ParameterSpec& parameter : layout.specs()) {
    CHECK_AS(DamagedCheckpoint, has_tensor(checkpoint, "", parameter),
             "{}: lacks the tensor {} of its model, or has it in another shape", manifest, parameter.name);
    CHECK_AS(DamagedCheckpoint, is_imported || has_optimizer_states(checkpoint, parameter),
             "{}: lacks the optimizer states of {}; to start a new run from its weights, set model.init_from={} and "
             "another logging.dir and checkpoint.dir",
             manifest, parameter.name, checkpoint.path().string());
    CHECK_AS(DamagedCheckpoint, !has_average || has_tensor(checkpoint, kEmaState, parameter),
             "{}: has a moving average of other weights, but not of {}", manifest, parameter.name);
  }
  if (is_imported) return;
  const auto config = meta.find("config");
  CHECK_AS(DamagedCheckpoint, config != meta.end() && config->contains("training"),
           "{}: has neither the config of the run that saved it nor the origin of an imported model", manifest);
  CHECK_AS(DamagedCheckpoint, meta.contains("loader"),
           "{}: has no loader state, without which the data cannot continue", manifest);
  try {
    check_loader_state(meta.at("loader"));
  } catch (const InputError& error) {
    throw DamagedCheckpoint(fmt::format("{}: {}", manifest, error.what()));
  }
}

}  // namespace octavo
