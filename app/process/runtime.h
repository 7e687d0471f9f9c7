// Runtime owns this rank's device, stream, CPU threads and communicators.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/job/job.h"
#include "app/process/host_memory.h"
#include "app/process/startup_timer.h"
#include "app/process/tuning_file.h"
#include "core/stream.h"
#include "parallel/mesh.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

// Memory of a run: one arena, which is registered with the mesh's communicators if parallel.nccl_memory requires it.
struct RunMemory {
  Arena arena;
  std::vector<Registration> registrations;
};

class Runtime {
 public:
  // Picks the device: config.device, or with auto the GPU if there is one that has kernels. Completes the config with
  // the defaults of the device, sets the number of CPU threads, and connects the ranks as config.parallel arranges
  // them. If the config leaves the number of replicas open, `choose_mesh`, a collective, decides it once the device is
  // known; without that function there is one replica. `timer`, which may be null, measures finding the device and
  // connecting the ranks. A collective. Throws the same InputError on every rank if a rank has no GPU of its own or has
  // another config than rank 0.
  using ChooseMesh = std::function<MeshChoice(const Runtime&)>;
  Runtime(Config& config, ProcessGroup& group, StartupTimer* timer = nullptr, const ChooseMesh& choose_mesh = {});

  ProcessGroup& group() { return group_; }
  const ProcessGroup& group() const { return group_; }
  Stream& stream() { return stream_; }
  const Stream& stream() const { return stream_; }
  MeshChoice mesh_choice() const { return {mesh_->shape(), mesh_reason_}; }
  Mesh& mesh() { return *mesh_; }
  const Mesh& mesh() const { return *mesh_; }
  // Returns the largest number of ranks on one machine. All ranks return the same number, so that their decisions
  // agree.
  int64_t ranks_per_machine() const { return ranks_per_machine_; }

  // Returns the sum of `value` over the ranks. Of the ranks that work on the same tokens, counts only one of the last
  // pipeline stage, which has the losses. A collective.
  double sum_over_tokens(double value);

  // Allocates memory on this rank's device. `planned` returns the size in bytes. `planned` and the allocation may throw
  // on any rank; all ranks then throw. A collective. The runtime must outlive the memory.
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
  // Returns the number of bytes that this rank can still allocate on its device.
  int64_t available_bytes() const;
  // Returns this rank's share of the machine's host memory, also if the device is a GPU.
  HostMemory share_of_host_memory() const;

 private:
  ProcessGroup& group_;
  ParallelConfig parallel_;
  int gpu_ = 0;
  int64_t ranks_per_machine_ = 1;
  Stream stream_;
  std::unique_ptr<TuningFile> tuning_;  // Null on the CPU, which needs no tuning.
  std::unique_ptr<Mesh> mesh_;
  std::string mesh_reason_;
  std::string description_;
};

// Returns the name of this machine, or "localhost" if it has none.
std::string host_name();
// Returns CUDA's number of the GPU that this rank uses. Throws an InputError if there is none.
int choose_gpu(const ProcessGroup& group);
// Returns the number of CPU threads of this rank. Widens a binding to cores that the launcher made by default
// (app/process/cores.h), which rank 0 logs. Ranks that are bound to the same cores share them. OMP_NUM_THREADS takes
// precedence. A collective.
int choose_threads(ProcessGroup& group);

}  // namespace octavo
