// Functions of CUDA that core/ needs, declared without CUDA types. cuda_backend_cuda.cpp implements them in CUDA
// builds. Other builds never call them (`if constexpr (kHasCuda)`).
#pragma once

#include <cstdint>

#include "core/stream.h"

namespace octavo::cuda {

int device_count() noexcept;
GpuInfo device_info(int device_index);
CudaVersions versions();
bool can_access_peer(int device_index, int peer_index);
int multiprocessor_count(int device_index);
void set_device(int device_index);  // Sets the current device of the calling thread.

void* create_stream(int device_index);
void* create_urgent_stream();  // Creates a stream of the highest priority on the current device.
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

// Begin and end an NVTX range of the calling thread, which Nsight Systems shows.
void push_range(const char* name) noexcept;
void pop_range() noexcept;

// Throws an Error with the sizes unless the current GPU has this much memory free.
void check_free_memory(int64_t bytes);
void* allocate_device(int64_t bytes);
void free_device(void* pointer) noexcept;
void* allocate_pinned(int64_t bytes);
void free_pinned(void* pointer) noexcept;
// Page-locks memory that was allocated elsewhere. Returns false if the system refuses. unlock_pages() also accepts
// memory that is not locked.
bool lock_pages(void* pointer, int64_t bytes) noexcept;
void unlock_pages(void* pointer) noexcept;

}  // namespace octavo::cuda
