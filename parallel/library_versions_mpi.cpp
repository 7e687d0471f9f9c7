#include <mpi.h>

#include "parallel/handles_mpi.h"
#include "parallel/library_versions.h"

namespace octavo {

// The first words of what the library says of itself: "Open MPI v4.1.4, package: ...", "MPICH Version: 4.2 ...".
std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  mpi::check(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  const std::string version(text);
  return version.substr(0, version.find_first_of(",\n"));
}

}  // namespace octavo
