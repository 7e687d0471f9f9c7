#include "app/plan/plan_search.h"

#include <array>
#include <map>
#include <utility>

#include "app/config/config_check.h"
#include "app/config/config_names.h"
#include "app/memory/memory_choice.h"
#include "app/run/weights.h"
#include "core/error.h"

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
  bool open = false;  // of block mode, whose number of blocks is not found yet; the config has the fewest
};

// Plans, the fastest first; memory is planned only for those whose turn comes.
class Search {
 public:
  Search(const Config& config, const PlanTarget& target, ProcessGroup& group)
      : config_(config), target_(target), group_(group) {
    for (const int64_t tensor : {1, 2, 4, 8}) {
      for (int64_t replicate = 1; tensor * replicate <= target_.gpus; replicate *= 2) {
        if (target_.gpus % (tensor * replicate) == 0) add_mesh({replicate, target_.gpus / replicate / tensor, tensor});
      }
    }
  }

  // The next that fits, if any.
  std::optional<Plan> next() {
    while (!queue_.empty()) {
      Candidate candidate = std::move(queue_.extract(queue_.begin()).mapped());
      if (!can_fit(candidate)) continue;
      if (candidate.open) {
        find_blocks(std::move(candidate));
        continue;
      }
      Plan plan = make_plan(candidate.config, target_, group_);
      if (plan.memory.fits()) return plan;
    }
    return std::nullopt;
  }

 private:
  void add_mesh(const MeshShape& mesh) {
    const int64_t local_batch = config_.training.global_batch_size / mesh.data();
    for (int64_t micro_batch = 1; micro_batch <= local_batch; micro_batch *= 2) {
      Candidate candidate{.config = config_, .mesh = mesh};
      Config& config = candidate.config;
      for (const MeshAxis& axis : kMeshAxes) config.parallel.*axis.configured = mesh.*axis.size;
      config.training.micro_batch_size = micro_batch;
      if (!is_valid(config, target_.gpus)) continue;
      for (const Reshard reshard : {Reshard::kFalse, Reshard::kTrue}) {
        if (reshard == Reshard::kTrue && mesh.shard == 1) continue;
        config.parallel.reshard_after_forward = reshard;
        add_modes(candidate);
      }
    }
  }

  void add_modes(Candidate candidate) {
    Config& config = candidate.config;
    for (const Mode mode : {Mode::kNone, Mode::kSelective, Mode::kFull}) {
      config.activation_checkpointing = {.mode = mode};
      add_reductions(candidate);
    }
    const std::vector<MemoryChoice> choices = block_choices(config);
    if (choices.size() == 1) return;
    config.activation_checkpointing = choices[1].checkpointing;
    candidate.open = true;
    add_reductions(candidate);
  }

  // Gradients reduced with every micro-batch; and once a step, where that is faster for the memory it takes.
  void add_reductions(Candidate candidate) {
    bool& once = candidate.config.parallel.accumulate_unsharded;
    const TrainingConfig& training = candidate.config.training;
    const bool matters = candidate.mesh.shard > 1;
    if (matters) once = false;
    const double each_s = step_s(candidate);
    queue_.emplace(each_s, candidate);
    if (!matters || training.micro_batch_size * candidate.mesh.data() == training.global_batch_size) return;
    once = true;
    if (const double once_s = step_s(candidate); once_s < each_s) queue_.emplace(once_s, std::move(candidate));
  }

  // Whether the candidate fits with all blocks recomputed, which takes the least memory. Where one that takes less does
  // not, no memory is planned.
  bool can_fit(Candidate candidate) {
    Config& config = candidate.config;
    const ParallelConfig& parallel = config.parallel;
    const auto [known, is_new] = can_fit_.try_emplace(
        {candidate.mesh.replicate, candidate.mesh.tensor, config.training.micro_batch_size,
         parallel.reshard_after_forward == Reshard::kTrue ? 1 : 0, parallel.accumulate_unsharded ? 1 : 0});
    if (!is_new) return known->second;
    bool& fits_full = known->second;
    config.activation_checkpointing = {.mode = Mode::kFull};
    for (Candidate& less : candidates_with_less(candidate)) {
      if (!can_fit(std::move(less))) return fits_full = false;
    }
    return fits_full = fits(config, candidate.mesh);
  }

  // The neighbours that need less memory.
  static std::vector<Candidate> candidates_with_less(const Candidate& candidate) {
    std::vector<Candidate> found;
    const auto add = [&](const auto& change) { change(found.emplace_back(candidate)); };
    const ParallelConfig& parallel = candidate.config.parallel;
    if (candidate.config.training.micro_batch_size > 1)
      add([](Candidate& c) { c.config.training.micro_batch_size /= 2; });
    if (candidate.mesh.replicate > 1) {
      add([](Candidate& c) {
        c.config.parallel.data_parallel_replicate = c.mesh.replicate /= 2;
        c.config.parallel.data_parallel_shard = c.mesh.shard *= 2;
      });
    }
    if (parallel.accumulate_unsharded) add([](Candidate& c) { c.config.parallel.accumulate_unsharded = false; });
    if (candidate.mesh.shard > 1 && parallel.reshard_after_forward != Reshard::kTrue) {
      add([](Candidate& c) { c.config.parallel.reshard_after_forward = Reshard::kTrue; });
    }
    return found;
  }

  bool fits(const Config& config, const MeshShape& mesh) const {
    return plan_memory(config, mesh, target_.device, group_).fits();
  }

  // Sets the least number of blocks that fits, if one does and none at all does not.
  void find_blocks(Candidate candidate) {
    const std::vector<MemoryChoice> choices = block_choices(candidate.config);
    ActivationCheckpointing& checkpointing = candidate.config.activation_checkpointing;
    const size_t found = first_fitting(choices, [&](const MemoryChoice& choice) {
      checkpointing = choice.checkpointing;
      return fits(candidate.config, candidate.mesh);
    });
    if (found == 0 || found == choices.size()) return;
    checkpointing = choices[found].checkpointing;
    candidate.open = false;
    const double seconds = step_s(candidate);
    queue_.emplace(seconds, std::move(candidate));
  }

  // Those of mode auto that recompute none of the blocks, or some of them.
  static std::vector<MemoryChoice> block_choices(Config config) {
    config.activation_checkpointing = {};
    std::vector<MemoryChoice> choices = memory_choices(config, true);
    std::erase_if(choices, [](const MemoryChoice& choice) {
      const Mode mode = choice.checkpointing.mode;
      return mode != Mode::kNone && mode != Mode::kBlock;
    });
    return choices;
  }

  double step_s(const Candidate& candidate) const {
    const ParallelConfig& parallel = candidate.config.parallel;
    const ShardingOptions sharding{.reshard_after_forward = parallel.reshard_after_forward == Reshard::kTrue,
                                   .accumulate_unsharded = parallel.accumulate_unsharded};
    const PredictedRun run{candidate.config, candidate.mesh, sharding, candidate.config.activation_checkpointing};
    return predict_step(run, *target_.machine, target_.cluster).step_s;
  }

  const Config& config_;
  const PlanTarget& target_;
  ProcessGroup& group_;
  std::multimap<double, Candidate> queue_;          // by the predicted seconds of a step
  std::map<std::array<int64_t, 5>, bool> can_fit_;  // by all of a candidate but its checkpointing
};

}  // namespace

Config load_planned_config(const ConfigArguments& arguments, const PlanTarget& target) {
  Config config = load_config(arguments.path, arguments.overrides);
  validate(config, target.gpus, Purpose::kSynthetic);
  if (!config.init_from.empty()) adopt_initial_model(config, *open_weights(config.init_from));
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
  Search search(config, target, group);
  std::vector<Plan> plans;
  while (plans.size() < count) {
    std::optional<Plan> plan = search.next();
    if (!plan) break;
    plans.push_back(std::move(*plan));
  }
  return plans;
}

std::string differences(const Plan& plan, const Plan& found) {
  std::string text;
  const auto add = [&](const std::string& key, const auto& from, const auto& to) {
    if (from != to) text += fmt::format("{}{}={}", text.empty() ? "" : " ", key, to);
  };
  const Config& a = plan.config;
  const Config& b = found.config;
  for (const MeshAxis& axis : kMeshAxes) {
    if (a.parallel.*axis.configured == -1) continue;  // what the other axes leave
    add(fmt::format("parallel.{}", axis.key), plan.mesh.*axis.size, found.mesh.*axis.size);
  }
  // auto keeps all where it fits.
  add("parallel.reshard_after_forward", a.parallel.reshard_after_forward == Reshard::kTrue,
      found.memory.sharding.reshard_after_forward);
  add("parallel.accumulate_unsharded", a.parallel.accumulate_unsharded, b.parallel.accumulate_unsharded);
  add("training.micro_batch_size", a.training.micro_batch_size, b.training.micro_batch_size);
  const auto mode = [](const Config& config) {
    const Mode m = config.activation_checkpointing.mode;
    return std::string(name_of(config_names::kMode, m == Mode::kAuto ? Mode::kNone : m));
  };
  add("activation_checkpointing.mode", mode(a), mode(b));
  if (b.activation_checkpointing.mode == Mode::kBlock) {
    add("activation_checkpointing.ratio", a.activation_checkpointing.ratio, b.activation_checkpointing.ratio);
  }
  return text;
}

}  // namespace octavo
