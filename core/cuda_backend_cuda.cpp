#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include "core/cuda_backend.h"
#include "core/cuda_check.h"
#include "core/error.h"
#include "core/format.h"

namespace octavo::cuda {

void check(cudaError_t status, const char* what) {
  CHECK(status == cudaSuccess, "CUDA: {} failed: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // Clears the error: "no driver" is a valid answer here.
    return 0;
  }
  return count;
}

GpuInfo device_info(int device_index) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device_index), "cudaGetDeviceProperties");
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  check(cudaSetDevice(device_index), "cudaSetDevice");
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  char pci_bus_id[32] = {};
  check(cudaDeviceGetPCIBusId(pci_bus_id, sizeof(pci_bus_id), device_index), "cudaDeviceGetPCIBusId");
  std::string uuid;
  for (const char byte : properties.uuid.bytes) uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return {properties.name,
          pci_bus_id,
          uuid,
          properties.major,
          properties.minor,
          properties.multiProcessorCount,
          static_cast<int64_t>(total_bytes),
          static_cast<int64_t>(free_bytes)};
}

CudaVersions versions() {
  CudaVersions found;
  if (cudaDriverGetVersion(&found.driver) != cudaSuccess) {
    cudaGetLastError();  // Clears the error: no driver is a valid answer here.
    found.driver = 0;
  }
  check(cudaRuntimeGetVersion(&found.runtime), "cudaRuntimeGetVersion");
  return found;
}

bool can_access_peer(int device_index, int peer_index) {
  int can_access = 0;
  check(cudaDeviceCanAccessPeer(&can_access, device_index, peer_index), "cudaDeviceCanAccessPeer");
  return can_access != 0;
}

int multiprocessor_count(int device_index) {
  int count = 0;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device_index), "cudaDeviceGetAttribute");
  return count;
}

void set_device(int device_index) { check(cudaSetDevice(device_index), "cudaSetDevice"); }

void* create_stream(int device_index) {
  set_device(device_index);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  return stream;
}

void* create_urgent_stream() {
  int least = 0;
  int greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest), "cudaStreamCreate");
  return stream;
}

void destroy_stream(void* stream) noexcept { cudaStreamDestroy(static_cast<cudaStream_t>(stream)); }

void synchronize_stream(void* stream) {
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "cudaStreamSynchronize");
}

void copy_async(void* dst, const void* src, int64_t bytes, void* stream) {
  check(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDefault, static_cast<cudaStream_t>(stream)),
        "cudaMemcpyAsync");
}

// Limit of the pitch of a copy (cudaDevAttrMaxPitch, 2 GiB minus one byte). Rows that are further apart are copied one
// by one.
void copy_rows_async(const Stream::Rows& rows, void* stream) {
  constexpr int64_t kMaxPitch = (int64_t{1} << 31) - 1;
  if (std::max(rows.dst_stride, rows.src_stride) > kMaxPitch) {
    for (int64_t i = 0; i < rows.count; ++i) {
      copy_async(static_cast<char*>(rows.dst) + i * rows.dst_stride,
                 static_cast<const char*>(rows.src) + i * rows.src_stride, rows.row_bytes, stream);
    }
    return;
  }
  check(cudaMemcpy2DAsync(rows.dst, static_cast<size_t>(rows.dst_stride), rows.src,
                          static_cast<size_t>(rows.src_stride), static_cast<size_t>(rows.row_bytes),
                          static_cast<size_t>(rows.count), cudaMemcpyDefault, static_cast<cudaStream_t>(stream)),
        "cudaMemcpy2DAsync");
}

void zero_async(void* dst, int64_t bytes, void* stream) {
  check(cudaMemsetAsync(dst, 0, static_cast<size_t>(bytes), static_cast<cudaStream_t>(stream)), "cudaMemsetAsync");
}

void* create_event(bool timing) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, timing ? cudaEventDefault : cudaEventDisableTiming), "cudaEventCreate");
  return event;
}

void destroy_event(void* event) noexcept { cudaEventDestroy(static_cast<cudaEvent_t>(event)); }

void record_event(void* event, void* stream) {
  check(cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream)), "cudaEventRecord");
}

void stream_wait_event(void* stream, void* event) {
  check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event), 0),
        "cudaStreamWaitEvent");
}

void synchronize_event(void* event) {
  check(cudaEventSynchronize(static_cast<cudaEvent_t>(event)), "cudaEventSynchronize");
}

bool event_is_reached(void* event) noexcept {
  const cudaError_t status = cudaEventQuery(static_cast<cudaEvent_t>(event));
  if (status == cudaErrorNotReady) cudaGetLastError();  // Clears the error, so that the next check does not report it.
  return status == cudaSuccess;
}

double event_milliseconds(void* start, void* end) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(start), static_cast<cudaEvent_t>(end)),
        "cudaEventElapsedTime");
  return milliseconds;
}

void check_free_memory(int64_t bytes) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  if (bytes <= static_cast<int64_t>(free_bytes)) return;
  int device_index = 0;
  check(cudaGetDevice(&device_index), "cudaGetDevice");
  throw Error(fmt::format("out of GPU memory: {:.2f} GiB needed, {:.2f} of {:.2f} GiB free on GPU {}", gib(bytes),
                          gib(static_cast<double>(free_bytes)), gib(static_cast<double>(total_bytes)),
                          device_info(device_index).pci_bus_id));
}

void* allocate_device(int64_t bytes) {
  check_free_memory(bytes);
  void* pointer = nullptr;
  const cudaError_t status = cudaMalloc(&pointer, static_cast<size_t>(bytes));
  check(status, "cudaMalloc");
  check(cudaMemset(pointer, 0, static_cast<size_t>(bytes)), "cudaMemset");
  // cudaMemset is asynchronous to the host and runs on the default stream, which our streams do not wait for. Without
  // this wait, later copies could be overwritten with zeros.
  check(cudaDeviceSynchronize(), "cudaMemset");
  return pointer;
}

void free_device(void* pointer) noexcept { cudaFree(pointer); }

void* allocate_pinned(int64_t bytes) {
  void* pointer = nullptr;
  check(cudaMallocHost(&pointer, static_cast<size_t>(bytes)), "cudaMallocHost");
  return pointer;
}

void free_pinned(void* pointer) noexcept { cudaFreeHost(pointer); }

bool lock_pages(void* pointer, int64_t bytes) noexcept {
  const cudaError_t status = cudaHostRegister(pointer, static_cast<size_t>(bytes), cudaHostRegisterDefault);
  if (status != cudaSuccess) cudaGetLastError();  // Clears the error, so that the next check does not report it.
  return status == cudaSuccess;
}

void unlock_pages(void* pointer) noexcept {
  if (cudaHostUnregister(pointer) != cudaSuccess) cudaGetLastError();  // Clears the error if the pages were not locked.
}

void push_range(const char* name) noexcept { nvtxRangePushA(name); }
void pop_range() noexcept { nvtxRangePop(); }

}  // namespace octavo::cuda
