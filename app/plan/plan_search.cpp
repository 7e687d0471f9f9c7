#include "app/plan/plan_search.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "app/config/config_check.h"
#include "app/config/config_names.h"
#include "app/predict/machine_rates.h"
#include "app/process/setting.h"
#include "app/resolve/memory_choice.h"
#include "app/resolve/mesh_choice.h"
#include "app/resolve/resolve.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"

namespace octavo {

namespace {

using Mode = ActivationCheckpointing::Mode;

bool is_valid(const StageConfig& config, int64_t gpus) {
  try {
    validate_stage(config, gpus, Purpose::kSynthetic);
  } catch (const InputError&) {
    return false;
  }
  return true;
}

// Returns the powers of two up to `most`, and `other`.
std::set<int64_t> powers_of_two(int64_t most, int64_t other) {
  std::set<int64_t> numbers = {other};
  for (int64_t power = 1; power <= most; power *= 2) numbers.insert(power);
  return numbers;
}

// A candidate of the search, which may not fit into memory.
struct Candidate {
  StageConfig config;
  MeshShape mesh;
  bool open = false;  // Whether mode block is selected and its number of blocks is not yet determined.
  // Whether the time is predicted. Otherwise the candidate is in the queue with a lower bound of its time.
  bool predicted = false;
};

// Returns the configured mesh. An axis of size -1, which gets all remaining ranks, has size 1 here.
MeshShape configured_mesh(const ParallelConfig& parallel) {
  MeshShape mesh;
  for (const MeshAxis& axis : kMeshAxes) mesh.*axis.size = std::max<int64_t>(parallel.*axis.configured, 1);
  return mesh;
}

// Finds plans in the order of their times, the fastest first. Variants of a mesh and micro-batch size (recomputation
// and sharding) are predicted, and their memory is planned, only when they reach the front of the queue.
class Search {
 public:
  Search(const StageConfig& config, const PlanTarget& target, double at_most_s)
      : config_(config),
        target_(target),
        predictor_(*target.machine, target.network, target.document_length),
        at_most_s_(at_most_s) {
    MeshShape mesh = configured_mesh(config.parallel);
    chunks_ = {2, 4, std::max<int64_t>(config.parallel.pipeline_chunks, 2)};
    const std::set<int64_t> pipelines = powers_of_two(config.model.num_layers, mesh.pipeline);
    const std::set<int64_t> contexts = powers_of_two(max_context_parallel(config), mesh.context);
    for (const int64_t pipeline : pipelines) {
      for (const int64_t context : contexts) {
        for (const int64_t tensor : {1, 2, 4, 8}) {
          mesh.pipeline = pipeline;
          mesh.context = context;
          mesh.tensor = tensor;
          add_meshes(mesh);
        }
      }
    }
  }

  // Returns the next fastest plan that fits, if any.
  std::optional<Plan> next() {
    while (!queue_.empty()) {
      Candidate candidate = std::move(queue_.extract(queue_.begin()).mapped());
      if (!can_fit(candidate.config, candidate.mesh)) continue;
      if (candidate.open) {
        find_blocks(std::move(candidate));
        continue;
      }
      if (!candidate.predicted) {
        predict(std::move(candidate));
        continue;
      }
      if (!is_worthwhile(candidate)) continue;
      Job job = resolve(candidate.config, target_.place, {candidate.mesh, ""});
      if (job.memory.fits()) return Plan{.job = job, .prediction = predictor_.predict(job)};
    }
    return std::nullopt;
  }

 private:
  // Adds all meshes that differ from `mesh` only in the number of replicas and shards.
  void add_meshes(MeshShape mesh) {
    const int64_t same_samples = mesh.ranks() / mesh.data();
    for (mesh.replicate = 1; same_samples * mesh.replicate <= target_.place.ranks; mesh.replicate *= 2) {
      mesh.shard = target_.place.ranks / mesh.replicate / same_samples;
      if (mesh.ranks() != target_.place.ranks) continue;
      add_mesh(mesh, PipelineSchedule::kOneForwardOneBackward);
      if (mesh.pipeline == 1) continue;
      add_mesh(mesh, PipelineSchedule::kZeroBubble);
      for (const int64_t chunks : chunks_) add_mesh(mesh, PipelineSchedule::kInterleaved, chunks);
    }
  }

  // Adds candidates in the order of their micro-batch size, until one does not fit even on the largest number of
  // shards.
  void add_mesh(const MeshShape& mesh, PipelineSchedule schedule, int64_t chunks = 1) {
    MeshShape one_copy = mesh;
    one_copy.replicate = 1;
    one_copy.shard = mesh.data();
    const int64_t local_batch = config_.training.global_batch_size / mesh.data();
    for (int64_t micro_batch = 1; micro_batch <= local_batch; micro_batch *= 2) {
      Candidate candidate{.config = config_, .mesh = mesh};
      StageConfig& config = candidate.config;
      for (const MeshAxis& axis : kMeshAxes) config.parallel.*axis.configured = mesh.*axis.size;
      config.parallel.pipeline_schedule = schedule;
      config.parallel.pipeline_chunks = chunks;
      config.training.micro_batch_size = micro_batch;
      if (!is_valid(config, target_.place.ranks)) continue;
      if (mesh.shards() > 1) config.parallel.accumulate_unsharded = AutoBool::kFalse;
      config.parallel.reshard_after_forward = AutoBool::kTrue;
      if (!can_fit(config, one_copy)) return;
      config.parallel.reshard_after_forward = AutoBool::kFalse;
      config.activation_checkpointing = {.mode = Mode::kNone};
      predict(std::move(candidate));
    }
  }

  // Adds a candidate to the queue with its predicted time. If it recomputes nothing, also adds its variants.
  void predict(Candidate candidate) {
    const StepPrediction p = prediction(candidate);
    candidate.predicted = true;
    add(p.step_s, candidate);
    candidate.predicted = false;
    if (candidate.config.activation_checkpointing.mode == Mode::kNone) add_variants(candidate, p);
  }

  void add(double least_s, const Candidate& candidate) {
    if (least_s < at_most_s_) queue_.emplace(least_s, candidate);
  }

  // Adds the variants of a candidate that recomputes nothing, with lower bounds of their times.
  void add_variants(const Candidate& candidate, const StepPrediction& p) {
    const ParallelConfig& parallel = candidate.config.parallel;
    const TrainingConfig& training = candidate.config.training;
    const auto add_changed = [&](double least_s, const auto& change) {
      Candidate changed = candidate;
      change(changed);
      add(least_s, changed);
    };
    const bool sharded = candidate.mesh.shards() > 1;
    const bool several = training.micro_batch_size * candidate.mesh.data() < training.global_batch_size;
    if (sharded && several && parallel.accumulate_unsharded == AutoBool::kFalse) {
      add_changed(p.step_s - p.seconds(CostKind::kCommunication) - p.seconds(CostKind::kStages),
                  [](Candidate& c) { c.config.parallel.accumulate_unsharded = AutoBool::kTrue; });
    }
    if (sharded && parallel.accumulate_unsharded == AutoBool::kFalse &&
        parallel.reshard_after_forward == AutoBool::kFalse) {
      add_changed(p.step_s, [](Candidate& c) { c.config.parallel.reshard_after_forward = AutoBool::kTrue; });
    }
    for (const Mode mode : {Mode::kSelective, Mode::kFull}) {
      add_changed(p.step_s, [mode](Candidate& c) { c.config.activation_checkpointing = {.mode = mode}; });
    }
    if (block_choices(candidate.config, candidate.mesh).size() > 1) {
      add_changed(p.step_s, [](Candidate& c) { c.open = true; });
    }
  }

  // Returns false for candidates that reduce gradients once per step without being faster, because they take more
  // memory.
  bool is_worthwhile(const Candidate& candidate) {
    if (candidate.mesh.shards() == 1 || candidate.config.parallel.accumulate_unsharded != AutoBool::kTrue) return true;
    Candidate each = candidate;
    each.config.parallel.accumulate_unsharded = AutoBool::kFalse;
    return prediction(candidate).step_s < prediction(each).step_s;
  }

  // Properties that the memory depends on, apart from activation checkpointing.
  struct Needs {
    int64_t tensor, context, pipeline, chunks, replicate, micro_batch_size;
    bool keeps_weights, keeps_gradients, zero_bubble;
    bool at_most(const Needs& o) const {
      return tensor == o.tensor && context == o.context && pipeline == o.pipeline && chunks == o.chunks &&
             replicate <= o.replicate && micro_batch_size <= o.micro_batch_size && keeps_weights <= o.keeps_weights &&
             keeps_gradients <= o.keeps_gradients && zero_bubble <= o.zero_bubble;
    }
  };

  // Returns whether the config fits if all blocks are recomputed, which takes the least memory.
  bool can_fit(StageConfig config, const MeshShape& mesh) {
    const Needs needs{.tensor = mesh.tensor,
                      .context = mesh.context,
                      .pipeline = mesh.pipeline,
                      .chunks = config.parallel.pipeline_chunks,
                      .replicate = mesh.replicate,
                      .micro_batch_size = config.training.micro_batch_size,
                      .keeps_weights = config.parallel.reshard_after_forward != AutoBool::kTrue,
                      .keeps_gradients = config.parallel.accumulate_unsharded == AutoBool::kTrue,
                      .zero_bubble = config.parallel.pipeline_schedule == PipelineSchedule::kZeroBubble};
    const auto less = [&](const Needs& other) { return other.at_most(needs); };
    const auto more = [&](const Needs& other) { return needs.at_most(other); };
    if (std::ranges::any_of(fitting_, more)) return true;
    if (std::ranges::any_of(unfitting_, less)) return false;
    config.activation_checkpointing = {.mode = Mode::kFull};
    const bool fits_full = octavo::can_fit(config, target_.place, mesh);
    (fits_full ? fitting_ : unfitting_).push_back(needs);
    return fits_full;
  }

  // Sets the smallest number of recomputed blocks that fits. Drops the candidate if none fits, or if it fits without
  // recomputing any block.
  void find_blocks(Candidate candidate) {
    const std::vector<MemoryChoice> choices = block_choices(candidate.config, candidate.mesh);
    ActivationCheckpointing& checkpointing = candidate.config.activation_checkpointing;
    candidate.open = false;
    const size_t found = first_fitting(choices, [&](const MemoryChoice& choice) {
      checkpointing = choice.checkpointing;
      return octavo::can_fit(candidate.config, target_.place, candidate.mesh);
    });
    if (found == 0 || found == choices.size()) return;
    checkpointing = choices[found].checkpointing;
    predict(std::move(candidate));
  }

  // Returns the choices of mode auto that recompute no blocks, or some of them.
  static std::vector<MemoryChoice> block_choices(Config config, const MeshShape& mesh) {
    config.activation_checkpointing = {};
    std::vector<MemoryChoice> choices = memory_choices(config, mesh);
    std::erase_if(choices, [](const MemoryChoice& choice) {
      const Mode mode = choice.checkpointing.mode;
      return mode != Mode::kNone && mode != Mode::kBlock;
    });
    return choices;
  }

  StepPrediction prediction(const Candidate& candidate) {
    return predictor_.predict(draft(candidate.config, target_.place, {candidate.mesh, ""}));
  }

  const StageConfig& config_;
  const PlanTarget& target_;
  Predictor predictor_;
  double at_most_s_;
  std::set<int64_t> chunks_;                // Numbers of chunks of pipeline stages to try.
  std::multimap<double, Candidate> queue_;  // Candidates by the predicted time of a step in seconds.
  std::vector<Needs> fitting_, unfitting_;  // Known results of can_fit().
};

}  // namespace

PlanTarget find_target(const TargetArguments& arguments, const Config& config, ProcessGroup& group) {
  CHECK_INPUT(arguments.document_length == 0 || config.data.document_mask,
              "--document-length needs documents, and data.document_mask is false");
  PlanTarget target;
  target.document_length = arguments.document_length;
  target.network = arguments.network;
  target.place.ranks = arguments.gpus > 0     ? arguments.gpus
                       : config.plan.gpus > 0 ? config.plan.gpus
                                              : configured_mesh(config.parallel).ranks();
  target.place.ranks_per_node = arguments.gpus_per_node;
  const bool on_cpu = config.device == DeviceChoice::kCpu;
  const bool is_given = !arguments.machine.empty();
  const std::string& name = is_given ? arguments.machine : config.plan.machine;
  const char* const option = is_given ? "--machine" : "plan.machine";
  const MachineRates machine = find_machine(name, option);
  if (!on_cpu || machine.device == "cpu") target.machine = machine;
  target.place.device = on_cpu ? Device::kCpu : Device::kCuda;
  CHECK_INPUT(
      on_cpu || machine.device != "cpu",
      "{} {} describes a CPU, but the plan is for GPUs, expected the file of a machine with GPUs, or device=cpu",
      option, name);
  if (on_cpu) {
    // Ranks on the CPU share its cores, as in a run, and the size of workspaces depends on the threads.
    const int threads = std::max(1, choose_threads(group) / static_cast<int>(target.place.ranks));
    if (std::getenv("OMP_NUM_THREADS") == nullptr) omp_set_num_threads(threads);
  } else {
    target.place.multiprocessors = static_cast<int>(machine.multiprocessors);
    target.place.memory_bytes = machine.gpu_memory_bytes;
  }
  if (!arguments.gpu_memory.empty()) target.place.memory_bytes = parse_bytes(arguments.gpu_memory, "--gpu-memory");
  return target;
}

Config load_planned_config(const ConfigArguments& arguments, const PlanTarget& target) {
  Config config = load_config_or_shape(arguments);
  validate(config, target.place.ranks, Purpose::kSynthetic);
  if (!config.init_from.empty()) {
    for (const std::string& note : adopt_initial_model(config, *open_planned_weights(config.init_from)))
      log_line(LogLevel::kWarning, note);
  }
  validate(config, target.place.ranks, Purpose::kSynthetic);
  resolve_device(config, target.place.device);
  return config;
}

Plan make_plan(const StageConfig& stage, const MeshChoice& mesh, const PlanTarget& target) {
  Plan plan{.job = resolve(stage, target.place, mesh), .prediction = {}};
  if (target.machine) plan.prediction = predict_step(plan.job, *target.machine, target.network, target.document_length);
  return plan;
}

std::vector<Plan> search_plans(const StageConfig& stage, const PlanTarget& target, size_t count, double at_most_s) {
  Search search(stage, target, at_most_s);
  std::vector<Plan> plans;
  for (std::optional<Plan> plan; plans.size() < count && (plan = search.next());) plans.push_back(std::move(*plan));
  // The prediction of a plan may differ in the last digits from the time that ordered the queue.
  std::ranges::stable_sort(plans, {}, [](const Plan& found) { return found.prediction.value().step_s; });
  return plans;
}

std::string differences(const Plan& plan, const Plan& found) {
  std::string text;
  const auto add = [&](const std::string& key, const auto& from, const auto& to) {
    if (from != to) text += fmt::format("{}{}={}", text.empty() ? "" : " ", key, to);
  };
  const Config& a = plan.job.stated;
  const Config& b = found.job.stated;
  const MeshShape& mesh = plan.job.mesh.shape;
  const MeshShape& found_mesh = found.job.mesh.shape;
  for (const MeshAxis& axis : kMeshAxes) {
    if (&axis == filling_axis(a.parallel)) continue;  // This axis gets the ranks that the other axes leave.
    add(fmt::format("parallel.{}", axis.key), mesh.*axis.size, found_mesh.*axis.size);
  }
  const auto schedule = [](const Config& config) {
    return std::string(name_of(config_names::kPipelineSchedule, config.parallel.pipeline_schedule));
  };
  add("parallel.pipeline_schedule", schedule(a), schedule(b));
  add("parallel.pipeline_chunks", a.parallel.pipeline_chunks, b.parallel.pipeline_chunks);
  // auto keeps all gathered weights if they fit.
  add("parallel.reshard_after_forward", a.parallel.reshard_after_forward == AutoBool::kTrue,
      found.job.sharding().reshard_after_forward);
  // auto keeps full gradients if they fit. The config of `found` has the mesh and micro-batches of the search.
  const AutoBool accumulates = a.parallel.accumulate_unsharded;
  const bool accumulates_if_possible =
      accumulates == AutoBool::kAuto ? may_accumulate_unsharded(b, found_mesh) : accumulates == AutoBool::kTrue;
  add("parallel.accumulate_unsharded", accumulates_if_possible, found.job.sharding().accumulate_unsharded);
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
