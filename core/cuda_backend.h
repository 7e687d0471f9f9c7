// What core/ needs of CUDA, so that its other files name no CUDA type. Implemented in cuda_backend_cuda.cpp, in CUDA
// builds; never called otherwise (`if constexpr (kHasCuda)`).
#pragma once

#include <cstdint>

#include "core/stream.h"

namespace octavo::cuda {

int device_count() noexcept;
GpuInfo device_info(int device_index);
CudaVersions versions();
bool can_access_peer(int device_index, int peer_index);
int multiprocessor_count(int device_index);
void set_device(int device_index);  // the calling thread's current device

void* create_stream(int device_index);
void* create_urgent_stream();  // of the highest priority, on the current device
void destroy_stream(void* stream) noexcept;
void synchronize_stream(void* stream);
void copy_async(void* dst, const void* src, int64_t bytes, void* stream);
void copy_rows_async(const Stream::Rows& rows, void* stream);
void zero_async(void* dst, int64_t bytes, void* stream);

void* create_event(bool timing);
void destroy_event(void* event) noexcept;
void record_event(void* event, void* stream);
void stream_wait_event(void* stream, void* event);
void synchronize_event(void* event);
bool event_is_reached(void* event) noexcept;
double event_milliseconds(void* start, void* end);

// NVTX, of the calling thread: ranges that Nsight Systems shows.
void push_range(const char* name) noexcept;
void pop_range() noexcept;

// Throws Error, with the numbers, unless the current GPU has so much memory free.
void check_free_memory(int64_t bytes);
void* allocate_device(int64_t bytes);
void free_device(void* pointer) noexcept;
void* allocate_pinned(int64_t bytes);
void free_pinned(void* pointer) noexcept;
// Of memory that was allocated elsewhere, until it is unlocked; false where the system does not let this be done. Pages
// that are not locked may be unlocked.
bool lock_pages(void* pointer, int64_t bytes) noexcept;
void unlock_pages(void* pointer) noexcept;

}  // namespace octavo::cuda
