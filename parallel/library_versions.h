// Versions of the libraries that connect the ranks, as text.
#pragma once

#include <string>

namespace octavo {

std::string mpi_version();   // "Open MPI v4.1.4"; needs no MPI_Init
std::string nccl_version();  // "2.28.9"; empty in a build without CUDA

// Behind the latter, in CUDA builds only.
std::string loaded_nccl_version();

}  // namespace octavo
