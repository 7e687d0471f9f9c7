// Stream: the place where ops run. On the CPU it is the calling thread, and ops finish before they return. On a GPU it
// is a CUDA stream: ops are queued in order, and the host continues. It holds what ops of libraries need between calls:
// a scratch workspace, and the handles and plans of cuBLASLt and cuDNN, so that nothing is global.
//
// Not thread-safe: one thread issues work to a stream. Move-only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <typeindex>
#include <unordered_map>

#include "core/tensor.h"

namespace octavo {

enum class Device : uint8_t { kCpu, kCuda };

class OpRecord;
class Profiler;
struct Op;

class Stream {
 public:
  static Stream cpu();
  // Makes a non-blocking CUDA stream on GPU `device_index`, which becomes the calling thread's current device. Throws
  // an InputError if this build has no CUDA or the machine no such GPU.
  static Stream cuda(int device_index);
  // Makes a second stream on the device of `other` for concurrent work, and makes that device current. On a GPU its
  // kernels are scheduled before waiting kernels of `other`.
  static Stream beside(const Stream& other);
  // Makes a dry-run stream, which needs no GPU. Functions that return sizes work. Queued work does not run but is added
  // to `record` (borrowed). Without a record, queuing work throws. beside() makes another dry-run stream with the same
  // record.
  static Stream planned(int multiprocessors, OpRecord* record = nullptr, Device device = Device::kCuda);

  Stream(Stream&&) noexcept = default;
  Stream& operator=(Stream&&) noexcept = default;
  ~Stream();

  Device device() const { return device_; }
  bool is_cuda() const { return device_ == Device::kCuda; }
  bool is_planned() const { return planned_; }
  void* native() const { return native_.get(); }  // Returns the cudaStream_t, or null on the CPU.
  int multiprocessors() const { return multiprocessors_; }

  // Makes this stream's GPU the calling thread's current device. A new thread calls it before it uses the stream or its
  // events, because its current device is GPU 0, and any CUDA call would create a context there.
  void bind_thread() const;

  // Waits until everything queued so far is done.
  void synchronize();
  // Queues dst = src between any two places that the device can reach. The copy is asynchronous only if host memory is
  // pinned.
  void copy(void* dst, const void* src, int64_t bytes);
  void copy(const Tensor& dst, const Tensor& src);
  // Queues a copy of `count` rows of `row_bytes` each, dst_stride and src_stride bytes apart.
  // Requires: source and destination do not overlap.
  struct Rows {
    void* dst;
    int64_t dst_stride;
    const void* src;
    int64_t src_stride;
    int64_t row_bytes;
    int64_t count;
  };
  void copy_rows(const Rows& rows);
  // Queues setting all bytes to zero.
  void zero(const Tensor& tensor);

  // Sets the scratch memory shared by all ops of this stream. An op may use it from its launch to its end and finds
  // arbitrary contents. The owner sizes it from the ops' *_workspace_bytes. An op that needs more throws.
  void set_workspace(Tensor workspace) { workspace_ = workspace; }
  void* workspace(int64_t bytes) const;
  int64_t workspace_bytes() const { return workspace_.defined() ? workspace_.bytes() : 0; }

  // Makes results bitwise reproducible between runs: ops use fixed algorithms instead of timing candidates.
  void set_deterministic(bool deterministic) { deterministic_ = deterministic; }
  bool deterministic() const { return deterministic_; }

  // Adds an op to the record of a dry-run stream. Throws if there is no record.
  void record(const Op& op) const;

  // Sets the profiler that times each op. Borrowed; null by default.
  void set_profiler(Profiler* profiler) { profiler_ = profiler; }
  Profiler* profiler() const { return profiler_; }

  // Returns the state that a library op keeps between calls, one object per type. It is made at first use and destroyed
  // with the stream.
  template <typename State>
  State& state() {
    auto& slot = states_.try_emplace(typeid(State), nullptr, nullptr).first->second;
    if (!slot) slot = StatePointer(new State(*this), [](void* p) { delete static_cast<State*>(p); });
    return *static_cast<State*>(slot.get());
  }

 private:
  using StatePointer = std::unique_ptr<void, void (*)(void*)>;

  using Native = std::unique_ptr<void, void (*)(void*) noexcept>;
  Stream(Device device, Native native, int device_index, int multiprocessors);

  // Declared before native_, so that a move assignment destroys the old states before the old stream.
  std::unordered_map<std::type_index, StatePointer> states_;
  Device device_;
  Native native_;
  int device_index_;
  int multiprocessors_;
  bool deterministic_ = false;
  Tensor workspace_;
  Profiler* profiler_ = nullptr;
  bool planned_ = false;
  OpRecord* record_ = nullptr;  // Record of a dry-run stream.
  int number_ = 0;              // Number of the stream in the record.

  friend class Event;
};

// A point in a stream that another stream or the host can wait for. Move-only. An event on the CPU, or one that was
// never recorded, counts as reached.
class Event {
 public:
  // `timing` allows milliseconds_since() between two such events.
  explicit Event(Device device, bool timing = false);

  void record(const Stream& stream);
  void wait(const Stream& stream) const;  // Makes later work on `stream` start after this event.
  void synchronize() const;               // Makes the host wait.
  // Returns whether the event is reached, without waiting. Also returns false if the GPU has failed.
  bool is_reached() const;
  // Returns the milliseconds from `start` to this event.
  // Requires: both are timing events that are reached.
  double milliseconds_since(const Event& start) const;

 private:
  Device device_;
  bool timing_;
  Stream::Native native_;  // Created when first recorded, so that plans need no GPU.
  double host_ms_ = 0;
  size_t signal_ = 0;  // Number of the event in the record of a dry-run stream; 0 means none.
};

// Returns the number of GPUs that this process can use. 0 without CUDA in the build, a driver or a GPU.
int cuda_device_count();

struct GpuInfo {
  std::string name;
  std::string pci_bus_id;  // PCI address in the machine, "0000:1b:00.0".
  std::string uuid;        // Hexadecimal id of this GPU, independent of the process.
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};
// Returns the properties of a GPU, which becomes the calling thread's current device.
GpuInfo gpu_info(int device_index);

// CUDA versions as 1000 * major + 10 * minor.
struct CudaVersions {
  int driver = 0;   // Newest version that the driver supports; 0 without a driver.
  int runtime = 0;  // Version that this program was linked with; 0 in a build without CUDA.
};
CudaVersions cuda_versions();

// Returns whether GPU `device_index` can access the memory of GPU `peer_index` directly.
bool can_access_peer(int device_index, int peer_index);

}  // namespace octavo
