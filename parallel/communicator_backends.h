// The implementations behind make_communicator().
#pragma once

#include <memory>

#include "parallel/communicator.h"

namespace octavo {

inline constexpr const char* kWorld = "world";  // the communicator of all ranks

// On host memory.
std::unique_ptr<Communicator> make_mpi_communicator(ProcessGroup& group);

// On the current GPU; in CUDA builds only. The unique ids travel over `group`.
std::unique_ptr<Communicator> make_nccl_communicator(ProcessGroup& group);
// allocate_for_collectives(), in CUDA builds only.
Buffer allocate_nccl_memory(int64_t bytes);

std::string loaded_nccl_version();

}  // namespace octavo
