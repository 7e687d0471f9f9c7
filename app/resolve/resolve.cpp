#include "app/resolve/resolve.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "app/config/stages.h"
#include "app/resolve/memory_budget.h"
#include "app/resolve/memory_choice.h"
#include "app/resolve/plan_memory.h"
#include "model/parameters/pipeline_stages.h"

namespace octavo {

namespace {

Stream planned_stream(const Config& config, const Place& place) {
  Stream stream = place.device == Device::kCuda ? Stream::planned(place.multiprocessors) : Stream::cpu();
  stream.set_deterministic(config.training.deterministic);
  return stream;
}

// A planned place, for jobs with the model and mesh of one config. Plans one rank of each pipeline stage, because all
// ranks of a stage are alike.
class PlannedSite : public Site {
 public:
  PlannedSite(const Config& config, const Place& place, const MeshChoice& mesh);
  bool fits(const Job& job) const override;
  MemoryPlan plan(const Job& job) const override;

 private:
  Stream stream_;
  Watchdog watchdog_;
  std::vector<StageLayers> stages_;
  std::vector<std::unique_ptr<Mesh>> meshes_;
};

PlannedSite::PlannedSite(const Config& config, const Place& place, const MeshChoice& mesh)
    : Site(place, mesh, memory_budget(config.parallel, mesh.shape, place)),
      stream_(planned_stream(config, place)),
      watchdog_(0, RankBoard(), [] {}),
      stages_(pipeline_stages(config.model, config.parallel, mesh.shape.pipeline)) {
  const int64_t load = mesh.shape.all_to_all_load(place.ranks_per_node);
  for (int64_t stage = 0; stage < mesh.shape.pipeline; ++stage) {
    const int64_t rank = stage * mesh.shape.ranks() / mesh.shape.pipeline;
    meshes_.push_back(std::make_unique<Mesh>(mesh.shape, load, stream_, watchdog_, rank));
  }
}

bool PlannedSite::fits(const Job& job) const {
  const std::vector<size_t> equal = first_equal_stages(stages_, job.layers());
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    if (equal[stage] == stage && !budget_.fits(planned_bytes(job, *meshes_[stage]))) return false;
  }
  return true;
}

MemoryPlan PlannedSite::plan(const Job& job) const {
  MemoryPlan largest;
  std::vector<int64_t> bytes;
  for (const std::unique_ptr<Mesh>& mesh : meshes_) {
    MemoryPlan plan = plan_memory(job, *mesh, budget_);
    bytes.push_back(plan.arena_bytes);
    if (bytes.size() == 1 || plan.arena_bytes > largest.arena_bytes) largest = std::move(plan);
  }
  if (bytes.size() > 1) largest.stage_bytes = std::move(bytes);
  return largest;
}

Place place_on_all_ranks(Runtime& runtime) {
  Place place;
  runtime.group().throw_on_all_ranks([&] { place = runtime.place(); });
  return place;
}

}  // namespace

LiveSite::LiveSite(Runtime& runtime) : LiveSite(place_on_all_ranks(runtime), runtime) {}

LiveSite::LiveSite(const Place& place, Runtime& runtime)
    : Site(place, runtime.mesh_choice(), memory_budget(runtime.parallel(), runtime.mesh().shape(), place)),
      runtime_(runtime) {}

bool LiveSite::fits(const Job& job) const {
  bool fits = true;
  runtime_.group().throw_file_errors_on_all_ranks("planning the memory",
                                                  [&] { fits = budget_.fits(planned_bytes(job, runtime_.mesh())); });
  return runtime_.group().all_reduce_max(fits ? 0 : 1) == 0;
}

MemoryPlan LiveSite::plan(const Job& job) const {
  MemoryPlan plan;
  runtime_.group().throw_file_errors_on_all_ranks("planning the memory",
                                                  [&] { plan = plan_memory(job, runtime_.mesh(), budget_); });
  return plan;
}

Job draft(const StageConfig& stage, const Place& place, const MeshChoice& mesh) {
  Job job = with_mesh({.stated = stage, .config = stage, .place = place}, mesh);
  return with_choice(std::move(job), memory_choices(stage, mesh.shape).front());
}

Job resolve(const StageConfig& stage, const Site& site) {
  const std::vector<MemoryChoice> choices = memory_choices(stage, site.mesh().shape);
  Job job = draft(stage, site.place(), site.mesh());
  if (choices.size() > 1) {
    const size_t chosen =
        first_fitting(choices, [&](const MemoryChoice& choice) { return site.fits(with_choice(job, choice)); });
    job = with_choice(std::move(job), choices[std::min(chosen, choices.size() - 1)]);
  }
  job.memory = site.plan(job);
  return job;
}

Job resolve(const Config& run, const Site& site, const Progress& progress) {
  return later_job(resolve(config_of_step(run, progress.step + 1), site), run, progress);
}

Job later_job(Job job, const Config& run, const Progress& progress) {
  const std::vector<SampleRange>& rolled_back = progress.rolled_back;
  const StageConfig stage = std::move(stage_configs(run, rolled_back)[stage_of_step(run, progress.step + 1)]);
  job.stated.data.origin = job.config.data.origin = stage.data.origin;
  job.config.data.skip = skipped_samples(stage.data, rolled_back);
  job.config.precision = stage.precision;
  const bool falls_back = has_precision_guard(stage) && progress.step < progress.bfloat16_until;
  return falls_back ? in_other_precision(std::move(job)) : job;
}

Job resolve(const Config& run, const Place& place, const MeshChoice& mesh, const Progress& progress) {
  return resolve(run, PlannedSite(run, place, mesh), progress);
}

Job resolve(const StageConfig& stage, const Place& place, const MeshChoice& mesh) {
  return resolve(stage, PlannedSite(stage, place, mesh));
}

bool can_fit(const StageConfig& stage, const Place& place, const MeshShape& mesh) {
  const PlannedSite site(stage, place, {mesh, ""});
  return site.fits(with_choice(draft(stage, place, site.mesh()), memory_choices(stage, mesh).back()));
}

}  // namespace octavo
