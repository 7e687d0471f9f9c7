#include "parallel/config.h"

#include "core/error.h"

namespace octavo {

MeshShape ParallelConfig::mesh_shape(int64_t ranks) const {
  CHECK_INPUT(data_parallel_shard == -1 || data_parallel_shard >= 1,
              "parallel.data_parallel_shard is {}, expected a positive number or -1 for all that is left",
              data_parallel_shard);
  CHECK_INPUT(data_parallel_replicate >= 1, "parallel.data_parallel_replicate is {}, expected a positive number",
              data_parallel_replicate);
  CHECK_INPUT(tensor_parallel >= 1, "parallel.tensor_parallel is {}, expected a positive number", tensor_parallel);
  const int64_t fixed = data_parallel_replicate * tensor_parallel;
  CHECK_INPUT(
      data_parallel_shard != -1 || ranks % fixed == 0,
      "parallel.data_parallel_replicate {} times parallel.tensor_parallel {} is {}, which does not divide the {} "
      "ranks of this run",
      data_parallel_replicate, tensor_parallel, fixed, ranks);
  const int64_t shard = data_parallel_shard == -1 ? ranks / fixed : data_parallel_shard;
  CHECK_INPUT(
      shard * fixed == ranks,
      "parallel.data_parallel_shard {} times data_parallel_replicate {} times tensor_parallel {} is {}, but this "
      "run has {} ranks",
      shard, data_parallel_replicate, tensor_parallel, shard * fixed, ranks);
  return {data_parallel_replicate, shard, tensor_parallel};
}

// Registered gathers and reductions of shards are faster, 2% of a step of 8B; those of tensor parallelism are slower.
// Between machines neither was measured.
bool ParallelConfig::registers_memory(const MeshShape& mesh, bool one_machine) const {
  if (nccl_memory == NcclMemory::kAuto) return one_machine && mesh.shard > 1;
  return nccl_memory != NcclMemory::kPlain && mesh.ranks() > 1;
}

}  // namespace octavo
