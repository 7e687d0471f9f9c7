#include "app/job/job.h"

#include <algorithm>

namespace octavo {

std::vector<LayerSpec> Job::layers() const {
  return layer_specs(config.model, config.precision, config.activation_checkpointing);
}

ShardingOptions Job::sharding() const {
  return {.reshard_after_forward = config.parallel.reshard_after_forward == AutoBool::kTrue,
          .accumulate_unsharded = config.parallel.accumulate_unsharded == AutoBool::kTrue};
}

const char* lifetime_name(Lifetime lifetime) {
  constexpr const char* kNames[] = {"whole run", "one step", "one block"};
  return kNames[static_cast<size_t>(lifetime)];
}

bool is_decided(const Config& config) {
  const ParallelConfig& parallel = config.parallel;
  return config.activation_checkpointing.mode != ActivationCheckpointing::Mode::kAuto &&
         parallel.reshard_after_forward != AutoBool::kAuto && parallel.accumulate_unsharded != AutoBool::kAuto &&
         std::ranges::all_of(kMeshAxes, [&](const MeshAxis& axis) { return parallel.*axis.configured > 0; });
}

bool has_precision_guard(const Config& config) {
  return config.precision_guard.every > 0 && uses_fp8(config.precision);
}

Job with_mesh(Job job, const MeshChoice& mesh) {
  job.mesh = mesh;
  for (const MeshAxis& axis : kMeshAxes) job.config.parallel.*axis.configured = mesh.shape.*axis.size;
  return job;
}

bool in_fallback(const Job& job) { return uses_fp8(job.stated.precision) && !uses_fp8(job.config.precision); }

Job in_other_precision(Job job) {
  job.config.precision = in_fallback(job) ? job.stated.precision : without_fp8(job.stated.precision);
  return job;
}

}  // namespace octavo
