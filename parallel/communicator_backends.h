// The implementations behind make_communicator().
#pragma once

#include <memory>

#include "parallel/communicator.h"

namespace octavo {

// Over MPI_COMM_WORLD, on host memory.
std::unique_ptr<Communicator> make_mpi_communicator(ProcessGroup& group);
// Over NCCL on the stream's GPU; in CUDA builds only. The unique id travels over `group`.
std::unique_ptr<Communicator> make_nccl_communicator(ProcessGroup& group, Stream& stream);

}  // namespace octavo
