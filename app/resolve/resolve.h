// Makes the job of a config. Chooses the values that the config leaves open by what fits (app/resolve/memory_choice.h).
#pragma once

#include <utility>

#include "app/job/job.h"
#include "app/job/progress.h"
#include "app/process/runtime.h"

namespace octavo {

// A place with its mesh, which says whether jobs fit there.
class Site {
 public:
  virtual ~Site() = default;
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  const Place& place() const { return place_; }
  const MeshChoice& mesh() const { return mesh_; }
  // Returns whether every rank has enough memory for the job. The result is the same on all ranks.
  virtual bool fits(const Job& job) const = 0;
  // Returns the memory plan of the rank that needs the most, or of this rank in a run.
  virtual MemoryPlan plan(const Job& job) const = 0;

 protected:
  Site(const Place& place, MeshChoice mesh, MemoryBudget budget)
      : place_(place), mesh_(std::move(mesh)), budget_(budget) {}

  const Place place_;
  const MeshChoice mesh_;
  const MemoryBudget budget_;
};

// The ranks of this run, with the memory that is free at construction. Its methods are collectives.
class LiveSite : public Site {
 public:
  // A collective.
  // Requires: `runtime` outlives the object.
  explicit LiveSite(Runtime& runtime);
  bool fits(const Job& job) const override;
  MemoryPlan plan(const Job& job) const override;

 private:
  LiveSite(const Place& place, Runtime& runtime);

  Runtime& runtime_;
};

// Returns the job of a stage with the first of memory_choices(), and without a memory plan.
// Requires: `stage` has been resolved for the device (resolve_device) and is valid for the mesh.
Job draft(const StageConfig& stage, const Place& place, const MeshChoice& mesh);

// Returns the job of a stage. Takes the first of memory_choices() that fits, or the last one if none fits. A collective
// on a LiveSite.
Job resolve(const StageConfig& stage, const Site& site);

// Returns the job with which a run resumes from its progress: the job of the stage of the next step, without the
// samples that rollbacks skip, and in bfloat16 during a fallback. A collective on a LiveSite.
Job resolve(const Config& run, const Site& site, const Progress& progress);
// Returns the job of resolve(run, site, progress), made from an earlier job of its stage without choosing again.
Job later_job(Job job, const Config& run, const Progress& progress);

// Return the jobs of a run and of a stage at a planned place, with the memory of the rank that needs the most.
Job resolve(const Config& run, const Place& place, const MeshChoice& mesh, const Progress& progress);
Job resolve(const StageConfig& stage, const Place& place, const MeshChoice& mesh);

// Returns whether the stage fits with the choice that takes the least memory. Makes only one memory plan, while
// resolve() makes up to a dozen.
bool can_fit(const StageConfig& stage, const Place& place, const MeshShape& mesh);

}  // namespace octavo
