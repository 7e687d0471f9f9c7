// Implementations that make_communicator() (parallel/communicator.h) chooses from.
#pragma once

#include <memory>

#include "parallel/communicator.h"

namespace octavo {

inline constexpr const char* kWorld = "world";  // Name of the communicator of all ranks.

// Returns a communicator of all ranks for tensors in host memory.
std::unique_ptr<Communicator> make_mpi_communicator(ProcessGroup& group);

// Returns a communicator of all ranks for tensors on the current GPU. NCCL's unique ids are exchanged through `group`.
// Only in CUDA builds.
std::unique_ptr<Communicator> make_nccl_communicator(ProcessGroup& group);
// Implements allocate_for_collectives(). Only in CUDA builds.
Buffer allocate_nccl_memory(int64_t bytes);

std::string loaded_nccl_version();

}  // namespace octavo
