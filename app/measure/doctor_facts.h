// Collects the facts about each rank that `octavo doctor` reports and checks.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "app/measure/doctor_checks.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

// Returns the facts of all ranks, in rank order, on every rank. Creates a CUDA context on the GPUs that it examines.
// `planned_ranks` is RankFacts::planned_ranks. `disk` is the checkpoint directory, which need not exist; empty if there
// is none. A collective.
std::vector<RankFacts> gather_facts(int planned_ranks, const std::string& disk, ProcessGroup& group);

// Conversions of the facts to and from JSON. The keys are the names of the members.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuInfo, name, pci_bus_id, uuid, compute_major, compute_minor, total_bytes,
                                   free_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuHealth, setting, uncorrected_errors, remapping_pending, remapping_failed,
                                   slowdowns)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DiskFacts, dir, error, free_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankFacts, rank, local_rank, local_size, host, processor, cores, threads,
                                   omp_num_threads_is_set, product_kernels, memory_bytes, memory_available_bytes,
                                   shared_memory_bytes, open_files_limit, locked_memory_limit, has_cuda, driver_cuda,
                                   runtime_cuda, gpus_visible, gpus, gpu_health, planned_ranks, memory_errors, disk,
                                   pairs_without_peer_access, versions)

}  // namespace octavo
