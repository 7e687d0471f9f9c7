// Runtime: the device, its stream, the threads and the communicators of this rank.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/process/host_memory.h"
#include "app/process/startup_timer.h"
#include "app/process/tuning_file.h"
#include "core/stream.h"
#include "model/architecture/tensor_parallel.h"
#include "parallel/mesh.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

// The memory of a run: one arena, registered with the mesh where parallel.nccl_memory says so.
struct RunMemory {
  Arena arena;
  std::vector<std::unique_ptr<Registration>> registrations;
};

// The mesh of a run.
struct MeshChoice {
  MeshShape mesh = {};
  std::string reason =
      {};  // Why it is this mesh, a sentence without its subject. Empty if there was nothing to choose.
};

class Runtime {
 public:
  // Picks the device (config.device; auto: the GPU if there is one with kernels here), resolves what the config leaves
  // to it, sets the number of CPU threads, and connects the ranks as config.parallel arranges them. A collective;
  // throws InputError on every rank alike when a rank has no GPU of its own or another config than rank 0.
  // `choose_mesh`, a collective, is asked for the number of replicas once the device is known, if the config leaves it
  // open (leaves_copies()). Without it there is one replica. `timer`, which may be null, gets the time that finding the
  // device and connecting the ranks take.
  using ChooseMesh = std::function<MeshChoice(const Runtime&)>;
  Runtime(Config& config, ProcessGroup& group, StartupTimer* timer = nullptr, const ChooseMesh& choose_mesh = {});

  ProcessGroup& group() { return group_; }
  const ProcessGroup& group() const { return group_; }
  Stream& stream() { return stream_; }
  const Stream& stream() const { return stream_; }
  const std::string& mesh_reason() const { return mesh_reason_; }
  Mesh& mesh() { return *mesh_; }
  const Mesh& mesh() const { return *mesh_; }
  // The most that a machine has: the same on every rank, as what is decided by it must be.
  int64_t ranks_per_machine() const { return ranks_per_machine_; }
  // This rank's place among those that divide each layer.
  TensorRank tensor_rank() const { return {mesh_->rank(Axis::kTensor), mesh_->shape().tensor}; }

  // Returns the sum of what ranks have of their own tokens. Ranks that work on the same tokens count once. A
  // collective.
  double sum_over_tokens(double value);

  // Memory of this rank's device. `planned` is called for its size, and may throw, as allocating may, on any rank. A
  // collective; the runtime must outlive the memory.
  RunMemory allocate(const std::function<int64_t()>& planned);

  // On a GPU: does `work`, which queues every kind of product, and has all ranks choose the same algorithms for them
  // (TuningFile::tune). A collective.
  void tune(const std::function<void()>& work);

  // "2 ranks on cpu, 1 thread each" or "8 ranks on NVIDIA H200".
  std::string describe() const;
  int gpu() const { return gpu_; }  // this rank's, as CUDA numbers them; only when the stream is on one
  // GiB of this rank's device: allocated on the GPU by anyone at this moment, or the most that was resident in this
  // process so far.
  double memory_gib() const;
  // Bytes that this rank can still allocate on its device.
  int64_t available_bytes() const;
  // This rank's share of the machine's memory, whichever its device is.
  HostMemory share_of_host_memory() const;

 private:
  ProcessGroup& group_;
  ParallelConfig parallel_;
  int gpu_ = 0;
  int64_t ranks_per_machine_ = 1;
  Stream stream_;
  std::unique_ptr<TuningFile> tuning_;  // on a GPU
  std::unique_ptr<Mesh> mesh_;
  std::string mesh_reason_;
  std::string description_;
};

// Returns the name of this machine, or localhost where it has none.
std::string host_name();
// The GPU this rank uses, as CUDA numbers them; throws InputError where there is none.
int choose_gpu(const ProcessGroup& group);
// The CPU threads of this rank, whose binding is widened where it is the launcher's default (app/process/cores.h; rank
// 0 says so): ranks bound to the same cores share them; OMP_NUM_THREADS overrides. A collective.
int choose_threads(ProcessGroup& group);

// Model FLOPs utilization: the share of a Hopper GPU's dense bfloat16 rate, 989 TFLOP/s.
inline double mfu(double flops_per_s) { return flops_per_s / 989e12; }

}  // namespace octavo
