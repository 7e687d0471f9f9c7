// Runtime owns this rank's stream and communicators.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/process/setting.h"
#include "app/process/startup_timer.h"
#include "app/process/tuning_file.h"
#include "core/stream.h"
#include "parallel/mesh.h"

namespace octavo {

// Memory of a run: one arena, which is registered with the mesh's communicators if parallel.nccl_memory requires it.
struct RunMemory {
  Arena arena;
  std::vector<Registration> registrations;
};

class Runtime {
 public:
  // Connects the ranks of the setting. `timer`, which may be null, measures how long that takes. A collective.
  Runtime(const Setting& setting, ProcessGroup& group, StartupTimer* timer = nullptr);

  ProcessGroup& group() { return group_; }
  const ProcessGroup& group() const { return group_; }
  Stream& stream() { return stream_; }
  const Stream& stream() const { return stream_; }
  const ParallelConfig& parallel() const { return parallel_; }
  const MeshChoice& mesh_choice() const { return mesh_choice_; }
  // Returns the ranks and devices of the run, with the memory that is free on this rank now.
  Place place() const;
  Mesh& mesh() { return *mesh_; }
  const Mesh& mesh() const { return *mesh_; }

  // Returns the sum of `value` over the ranks of the last pipeline stage, which have the losses. Counts only one rank
  // of each group of tensor-parallel ranks, which process the same tokens. A collective.
  double sum_over_tokens(double value);

  // Allocates memory on this rank's device. `planned` returns the size in bytes. If `planned` or the allocation throws
  // on one rank, all ranks throw. A collective.
  // Requires: the runtime outlives the memory.
  RunMemory allocate(const std::function<int64_t()>& planned);

  // On a GPU, calls `work`, which queues every kind of matmul, and makes all ranks use the same algorithms for them
  // (TuningFile::tune). A collective.
  void tune(const std::function<void()>& work);

  // Describes ranks and device: "2 ranks on cpu, 1 thread each" or "8 ranks on NVIDIA H200".
  std::string describe() const;
  int gpu() const { return gpu_; }  // Returns CUDA's number of this rank's GPU. Only valid if the stream is on a GPU.
  // Returns the used memory of this rank's device in GiB: on a GPU the memory that all processes have allocated now, on
  // the CPU the maximum resident size of this process so far.
  double memory_gib() const;

 private:
  ProcessGroup& group_;
  ParallelConfig parallel_;  // Config in which the actual sizes of the mesh's axes replace -1.
  const Place place_;
  const MeshChoice mesh_choice_;
  const int gpu_;
  Stream stream_;
  std::unique_ptr<TuningFile> tuning_;  // Null on the CPU, which needs no tuning.
  std::unique_ptr<Mesh> mesh_;
  std::string description_;
};

}  // namespace octavo
