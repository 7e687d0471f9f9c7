// Status checks and handle classes for MPI. Only files that call MPI include this header.
#pragma once

#include <mpi.h>

#include <utility>

#include "core/error.h"

namespace octavo::mpi {

// Throws Error naming `what` unless status is MPI_SUCCESS.
inline void check(int status, const char* what) {
  CHECK(status == MPI_SUCCESS, "MPI: {} failed with {}", what, status);
}

// A communicator of some of the ranks. Move-only.
class Comm {
 public:
  // Splits `parent`. A collective of all its ranks. Ranks with the same color get one communicator, ordered by their
  // keys.
  static Comm split(MPI_Comm parent, int color, int key) {
    Comm comm;
    check(MPI_Comm_split(parent, color, key, &comm.handle_), "MPI_Comm_split");
    return comm;
  }
  // Returns the communicator of the ranks of this machine, ordered by their keys.
  static Comm of_this_machine(int key) {
    Comm comm;
    check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, key, MPI_INFO_NULL, &comm.handle_),
          "MPI_Comm_split_type");
    return comm;
  }
  Comm(Comm&& other) noexcept : handle_(std::exchange(other.handle_, MPI_COMM_NULL)) {}
  Comm& operator=(Comm&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Comm() {
    if (handle_ != MPI_COMM_NULL) MPI_Comm_free(&handle_);
  }

  MPI_Comm get() const { return handle_; }

 private:
  Comm() = default;
  MPI_Comm handle_ = MPI_COMM_NULL;
};

// MPI datatype of `bytes` contiguous bytes. Successive elements start `stride` bytes apart. Not copyable or movable.
class StridedBytes {
 public:
  StridedBytes(int bytes, MPI_Aint stride) {
    MPI_Datatype block = MPI_DATATYPE_NULL;
    check(MPI_Type_contiguous(bytes, MPI_BYTE, &block), "MPI_Type_contiguous");
    const int status = MPI_Type_create_resized(block, 0, stride, &handle_);
    MPI_Type_free(&block);
    check(status, "MPI_Type_create_resized");
    check(MPI_Type_commit(&handle_), "MPI_Type_commit");
  }
  StridedBytes(const StridedBytes&) = delete;
  StridedBytes& operator=(const StridedBytes&) = delete;
  ~StridedBytes() { MPI_Type_free(&handle_); }

  MPI_Datatype get() const { return handle_; }

 private:
  MPI_Datatype handle_ = MPI_DATATYPE_NULL;
};

}  // namespace octavo::mpi
