// Stream: where ops run. On the CPU it is the calling thread (ops finish before they return); on a GPU it is a CUDA
// stream (ops are queued in order and the host goes on). It carries what library-backed ops need between calls: a
// scratch workspace, and the handles and plans of cuBLASLt and cuDNN, kept here so that nothing is global.
//
// Not thread-safe: one thread issues work to a stream. Move-only.
#pragma once

#include <cstdint>
#include <functional>
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
  // A non-blocking CUDA stream on GPU `device_index`, which becomes the calling thread's current device. Throws
  // InputError when this build has no CUDA or the machine no such GPU.
  static Stream cuda(int device_index);
  // A second stream on the device of `other`, which becomes the calling thread's current one, for work beside it; on a
  // GPU its kernels are placed before those of `other` that wait as well.
  static Stream beside(const Stream& other);
  // A stream as far as planning goes, on a machine with or without a GPU: what asks for sizes works, and what is queued
  // on it does not run but goes into `record` (borrowed); without one nothing may be queued. A stream beside it is of
  // the same kind and has the same record.
  static Stream planned(int multiprocessors, OpRecord* record = nullptr, Device device = Device::kCuda);

  Stream(Stream&&) noexcept = default;
  Stream& operator=(Stream&&) noexcept = default;
  ~Stream();

  Device device() const { return device_; }
  bool is_cuda() const { return device_ == Device::kCuda; }
  bool is_planned() const { return planned_; }
  void* native() const { return native_.get(); }  // cudaStream_t, null on the CPU
  int multiprocessors() const { return multiprocessors_; }

  // Makes this stream's GPU the calling thread's current device, before anything else that the thread does with it or
  // its events: a new thread's is GPU 0, and whatever it asked of CUDA would make a context there.
  void bind_thread() const;

  // Waits until everything queued so far is done.
  void synchronize();
  // Queued: dst = src, between any two places the device can reach. Host memory must be pinned for it to be
  // asynchronous.
  void copy(void* dst, const void* src, int64_t bytes);
  void copy(const Tensor& dst, const Tensor& src);
  // Queued: `count` rows of `row_bytes` each, dst_stride and src_stride bytes apart; the two may not overlap.
  struct Rows {
    void* dst;
    int64_t dst_stride;
    const void* src;
    int64_t src_stride;
    int64_t row_bytes;
    int64_t count;
  };
  void copy_rows(const Rows& rows);
  // Queued: all bytes zero.
  void zero(const Tensor& tensor);

  // Scratch memory shared by all ops of this stream: an op may use it from its launch to its end and expects nothing of
  // its contents. The owner sizes it once from the ops' *_workspace_bytes; an op that needs more throws.
  void set_workspace(Tensor workspace) { workspace_ = workspace; }
  void* workspace(int64_t bytes) const;
  int64_t workspace_bytes() const { return workspace_.defined() ? workspace_.bytes() : 0; }

  // Multiprocessors that the matrix products from now on are to take, so that what runs beside them finds some free; 0:
  // all.
  void set_product_multiprocessors(int count) { product_multiprocessors_ = count; }
  int product_multiprocessors() const { return product_multiprocessors_; }

  // Bitwise reproducible results from run to run: ops then choose fixed algorithms instead of timing candidates.
  void set_deterministic(bool deterministic) { deterministic_ = deterministic; }
  bool deterministic() const { return deterministic_; }

  // On a planned stream: adds an op to its record. Throws where it has none.
  void record(const Op& op) const;

  // Times each op when set; borrowed, null by default.
  void set_profiler(Profiler* profiler) { profiler_ = profiler; }
  Profiler* profiler() const { return profiler_; }

  // State a library-backed op keeps between calls, one object a type, made on first use and destroyed with the stream.
  template <typename State>
  State& state() {
    auto& slot = states_[std::type_index(typeid(State))];
    if (!slot) slot = StatePointer(new State(*this), [](void* p) { delete static_cast<State*>(p); });
    return *static_cast<State*>(slot.get());
  }

 private:
  using StatePointer = std::unique_ptr<void, void (*)(void*)>;
  struct NullState : StatePointer {
    NullState() : StatePointer(nullptr, [](void*) {}) {}
    using StatePointer::operator=;
  };

  using Native = std::unique_ptr<void, void (*)(void*) noexcept>;
  Stream(Device device, Native native, int device_index, int multiprocessors);

  std::unordered_map<std::type_index, NullState> states_;  // first, so that a move replaces them before native_
  Device device_;
  Native native_;
  int device_index_;
  int multiprocessors_;
  int product_multiprocessors_ = 0;
  bool deterministic_ = false;
  Tensor workspace_;
  Profiler* profiler_ = nullptr;
  bool planned_ = false;
  OpRecord* record_ = nullptr;  // of a planned stream
  int number_ = 0;              // in that

  friend class Event;
};

// A point in a stream that another stream, or the host, can wait for. Move-only. On the CPU, and before it is recorded,
// it is always reached.
class Event {
 public:
  // timing: elapsed times can be asked of two such events.
  explicit Event(Device device, bool timing = false);
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  void record(const Stream& stream);
  void wait(const Stream& stream) const;  // work queued on `stream` from now on starts after this event
  void synchronize() const;               // the host waits
  bool is_reached() const;                // never waits; false too when the GPU has failed
  // Milliseconds from `start` to this event; both timing events, both reached.
  double milliseconds_since(const Event& start) const;

 private:
  Device device_;
  bool timing_;
  void* native_ = nullptr;  // made when first recorded, so that plans need no GPU
  double host_ms_ = 0;
  size_t signal_ = 0;  // in the record of a planned stream; 0: none
};

// GPUs this process can use; 0 without CUDA in the build, without a driver or without a GPU.
int cuda_device_count();

struct GpuInfo {
  std::string name;
  std::string pci_bus_id;  // "0000:1b:00.0", where it is in its machine
  std::string uuid;        // hexadecimal; of this GPU alone, whatever the process calls it
  int compute_major = 0;
  int compute_minor = 0;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};
// Of a GPU, which becomes the calling thread's current device.
GpuInfo gpu_info(int device_index);

// As CUDA numbers them, 1000 * major + 10 * minor.
struct CudaVersions {
  int driver = 0;   // the newest that the driver can do; 0 without a driver
  int runtime = 0;  // what this program was linked with; 0 in a build without CUDA
};
CudaVersions cuda_versions();

// Whether GPU `device_index` can reach the memory of GPU `peer_index` directly.
bool can_access_peer(int device_index, int peer_index);

}  // namespace octavo
