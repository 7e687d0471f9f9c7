#include "app/plan_search.h"

#include <algorithm>

#include "app/config_names.h"
#include "app/weight_source.h"
#include "kernels/core/error.h"

namespace octavo {

namespace {

using Mode = ActivationCheckpointing::Mode;

bool is_valid(const Config& config, int64_t gpus) {
  try {
    validate(config, gpus, Purpose::kSynthetic);
  } catch (const InputError&) {
    return false;
  }
  return true;
}

// One of a search, not yet known to fit.
struct Candidate {
  Config config;
  MeshShape mesh;
  double step_s = 0;
};

class Search {
 public:
  Search(const Config& config, const PlanTarget& target) : config_(config), target_(target) {}

  std::vector<Candidate> candidates() {
    for (const int64_t tensor : {1, 2, 4, 8}) {
      for (int64_t replicate = 1; tensor * replicate <= target_.gpus; replicate *= 2) {
        if (target_.gpus % (tensor * replicate) == 0) add_meshes(replicate, tensor);
      }
    }
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Candidate& a, const Candidate& b) { return a.step_s < b.step_s; });
    return std::move(found_);
  }

 private:
  void add_meshes(int64_t replicate, int64_t tensor) {
    const MeshShape mesh{replicate, target_.gpus / replicate / tensor, tensor};
    const int64_t local_batch = config_.training.global_batch_size / mesh.data();
    for (int64_t micro_batch = 1; micro_batch <= local_batch; micro_batch *= 2) {
      for (const Mode mode : {Mode::kNone, Mode::kSelective, Mode::kBlock, Mode::kFull}) {
        for (const Reshard reshard : {Reshard::kFalse, Reshard::kTrue}) {
          if (reshard == Reshard::kTrue && mesh.shard == 1) continue;
          add(mesh, micro_batch, mode, reshard);
        }
      }
    }
  }

  void add(const MeshShape& mesh, int64_t micro_batch, Mode mode, Reshard reshard) {
    Config config = config_;
    config.parallel.data_parallel_replicate = mesh.replicate;
    config.parallel.data_parallel_shard = mesh.shard;
    config.parallel.tensor_parallel = mesh.tensor;
    config.parallel.reshard_after_forward = reshard;
    config.training.micro_batch_size = micro_batch;
    config.activation_checkpointing.mode = mode;
    if (mode == Mode::kBlock) config.activation_checkpointing.ratio = 0.5;
    if (!is_valid(config, target_.gpus)) return;
    const ShardingOptions sharding{.reshard_after_forward = reshard == Reshard::kTrue,
                                   .accumulate_unsharded = config.parallel.accumulate_unsharded};
    const double step_s =
        predict_step({config, mesh, sharding, config.activation_checkpointing}, *target_.machine, target_.cluster)
            .step_s;
    found_.push_back({std::move(config), mesh, step_s});
  }

  const Config& config_;
  const PlanTarget& target_;
  std::vector<Candidate> found_;
};

}  // namespace

Config load_planned_config(const ConfigArguments& arguments, const PlanTarget& target) {
  Config config = load_config(arguments.path, arguments.overrides);
  validate(config, target.gpus, Purpose::kSynthetic);
  if (!config.init_from.empty()) adopt_model(config, open_weights(config.init_from)->model_config());
  validate(config, target.gpus, Purpose::kSynthetic);
  resolve_device(config, target.device.device);
  return config;
}

Plan make_plan(const Config& config, const PlanTarget& target, ProcessGroup& group) {
  Plan plan{.config = config, .mesh = config.parallel.mesh_shape(target.gpus), .memory = {}, .prediction = {}};
  plan.memory = plan_memory(config, plan.mesh, target.device, group);
  if (target.machine) {
    plan.prediction = predict_step({config, plan.mesh, plan.memory.sharding, plan.memory.checkpointing},
                                   *target.machine, target.cluster);
  }
  return plan;
}

std::vector<Plan> search_plans(const Config& config, const PlanTarget& target, size_t count, ProcessGroup& group) {
  std::vector<Plan> plans;
  for (const Candidate& candidate : Search(config, target).candidates()) {
    if (plans.size() >= count) break;
    Plan plan = make_plan(candidate.config, target, group);
    if (plan.memory.fits()) plans.push_back(std::move(plan));
  }
  return plans;
}

std::string differences(const Plan& plan, const Plan& found) {
  std::string text;
  const auto add = [&](const char* key, const auto& from, const auto& to) {
    if (from != to) text += fmt::format("{}{}={}", text.empty() ? "" : " ", key, to);
  };
  const Config& a = plan.config;
  const Config& b = found.config;
  add("parallel.data_parallel_replicate", plan.mesh.replicate, found.mesh.replicate);
  if (a.parallel.data_parallel_shard != -1) {  // otherwise what the other axes leave
    add("parallel.data_parallel_shard", plan.mesh.shard, found.mesh.shard);
  }
  add("parallel.tensor_parallel", plan.mesh.tensor, found.mesh.tensor);
  add("parallel.reshard_after_forward", plan.memory.sharding.reshard_after_forward,
      found.memory.sharding.reshard_after_forward);
  add("training.micro_batch_size", a.training.micro_batch_size, b.training.micro_batch_size);
  // auto, too, recomputes nothing where all fits.
  const auto mode = [](const Config& config) {
    const Mode m = config.activation_checkpointing.mode;
    return std::string(config_names::name_of(config_names::kMode, m == Mode::kAuto ? Mode::kNone : m));
  };
  add("activation_checkpointing.mode", mode(a), mode(b));
  if (b.activation_checkpointing.mode == Mode::kBlock) {
    add("activation_checkpointing.ratio", a.activation_checkpointing.ratio, b.activation_checkpointing.ratio);
  }
  return text;
}

}  // namespace octavo
