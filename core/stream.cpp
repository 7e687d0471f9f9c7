#include "core/stream.h"

#include <cstring>
#include <utility>

#include "build_config.h"
#include "core/cuda_backend.h"
#include "core/error.h"
#include "core/profiler.h"

namespace octavo {

namespace {

constexpr auto kNothing = [](void*) noexcept {};

}  // namespace

Stream::Stream(Device device, Native native, int device_index, int multiprocessors)
    : device_(device), native_(std::move(native)), device_index_(device_index), multiprocessors_(multiprocessors) {}

Stream Stream::cpu() { return {Device::kCpu, Native(nullptr, kNothing), 0, 0}; }

Stream Stream::cuda(int device_index) {
  const int count = cuda_device_count();
  CHECK_INPUT(kHasCuda, "device is cuda, but this octavo was built without CUDA; use device: cpu or rebuild");
  CHECK_INPUT(device_index < count, "device is cuda, but GPU {} was requested and this machine has {} GPUs",
              device_index, count);
  if constexpr (kHasCuda) {
    Native native(cuda::create_stream(device_index), cuda::destroy_stream);
    return {Device::kCuda, std::move(native), device_index, cuda::multiprocessor_count(device_index)};
  }
  throw Error("unreachable");
}

Stream Stream::planned(int multiprocessors, OpRecord* record, Device device) {
  Stream stream(device, Native(nullptr, kNothing), 0, multiprocessors);
  stream.planned_ = true;
  stream.record_ = record;
  if (record != nullptr) stream.number_ = static_cast<int>(record->streams_++);
  return stream;
}

Stream Stream::beside(const Stream& other) {
  if (other.is_planned()) return planned(other.multiprocessors_, other.record_, other.device_);
  if constexpr (kHasCuda) {
    if (other.is_cuda()) {
      other.bind_thread();
      Native native(cuda::create_urgent_stream(), cuda::destroy_stream);
      return {Device::kCuda, std::move(native), other.device_index_, other.multiprocessors_};
    }
  }
  return cpu();
}

// Destroys library handles before the stream that they were made on.
Stream::~Stream() { states_.clear(); }

void Stream::bind_thread() const {
  if constexpr (kHasCuda) {
    if (native_ != nullptr) cuda::set_device(device_index_);
  }
}

void Stream::synchronize() {
  if constexpr (kHasCuda) {
    if (native_ != nullptr) cuda::synchronize_stream(native());
  }
}

void Stream::copy(void* dst, const void* src, int64_t bytes) {
  if (bytes == 0) return;
  const OpTimer timer(*this, "copy", 2 * bytes);
  if (timer.planned()) return;
  if constexpr (kHasCuda) {
    if (is_cuda()) return cuda::copy_async(dst, src, bytes, native());
  }
  std::memmove(dst, src, static_cast<size_t>(bytes));
}

void Stream::copy(const Tensor& dst, const Tensor& src) {
  CHECK(dst.dtype() == src.dtype() && dst.numel() == src.numel(), "cannot copy {} to {}", src.describe(),
        dst.describe());
  copy(dst.raw(), src.raw(), src.bytes());
}

void Stream::copy_rows(const Rows& rows) {
  if (rows.row_bytes * rows.count == 0) return;
  const OpTimer timer(*this, "copy", 2 * rows.row_bytes * rows.count);
  if (timer.planned()) return;
  if constexpr (kHasCuda) {
    if (is_cuda()) return cuda::copy_rows_async(rows, native());
  }
#pragma omp parallel for
  for (int64_t i = 0; i < rows.count; ++i) {
    std::memcpy(static_cast<char*>(rows.dst) + i * rows.dst_stride,
                static_cast<const char*>(rows.src) + i * rows.src_stride, static_cast<size_t>(rows.row_bytes));
  }
}

void Stream::zero(const Tensor& tensor) {
  if (tensor.bytes() == 0) return;
  const OpTimer timer(*this, "zero", tensor.bytes());
  if (timer.planned()) return;
  if constexpr (kHasCuda) {
    if (is_cuda()) return cuda::zero_async(tensor.raw(), tensor.bytes(), native());
  }
  std::memset(tensor.raw(), 0, static_cast<size_t>(tensor.bytes()));
}

void Stream::record(const Op& op) const {
  CHECK(record_ != nullptr, "{} was queued on a dry-run stream without a record", op.name);
  record_->add(number_, op);
}

void* Stream::workspace(int64_t bytes) const {
  CHECK(bytes <= workspace_bytes(), "an op needs a workspace of {} bytes, but the stream has {}", bytes,
        workspace_bytes());
  return workspace_.raw();
}

Event::Event(Device device, bool timing) : device_(device), timing_(timing), native_(nullptr, kNothing) {}

void Event::record(const Stream& stream) {
  if (stream.is_planned()) {
    if (stream.record_ != nullptr) signal_ = stream.record_->signal(stream.number_);
    return;
  }
  if constexpr (kHasCuda) {
    if (device_ == Device::kCuda) {
      if (native_ == nullptr) native_ = Stream::Native(cuda::create_event(timing_), cuda::destroy_event);
      return cuda::record_event(native_.get(), stream.native());
    }
  }
  host_ms_ = host_clock_ms();
}

void Event::wait(const Stream& stream) const {
  if (stream.is_planned()) {
    if (signal_ > 0) stream.record_->wait(stream.number_, signal_);
    return;
  }
  if constexpr (kHasCuda) {
    if (native_ != nullptr) cuda::stream_wait_event(stream.native(), native_.get());
  }
}

void Event::synchronize() const {
  if constexpr (kHasCuda) {
    if (native_ != nullptr) cuda::synchronize_event(native_.get());
  }
}

bool Event::is_reached() const {
  if constexpr (kHasCuda) {
    if (native_ != nullptr) return cuda::event_is_reached(native_.get());
  }
  return true;
}

double Event::milliseconds_since(const Event& start) const {
  if constexpr (kHasCuda) {
    if (native_ != nullptr) return cuda::event_milliseconds(start.native_.get(), native_.get());
  }
  return host_ms_ - start.host_ms_;
}

int cuda_device_count() {
  if constexpr (kHasCuda) return cuda::device_count();
  return 0;
}

GpuInfo gpu_info(int device_index) {
  if constexpr (kHasCuda) return cuda::device_info(device_index);
  throw Error(fmt::format("this octavo was built without CUDA, so GPU {} is not available", device_index));
}

CudaVersions cuda_versions() {
  if constexpr (kHasCuda) return cuda::versions();
  return {};
}

bool can_access_peer(int device_index, int peer_index) {
  if constexpr (kHasCuda) return cuda::can_access_peer(device_index, peer_index);
  throw Error(
      fmt::format("this octavo was built without CUDA, so GPUs {} and {} are not available", device_index, peer_index));
}

}  // namespace octavo
