// A library for LD_PRELOAD that delays the work on GPUs at random, to test that streams wait for each other.
//
//   OCTAVO_DELAY_SEED=N     seed of the delays. Each rank has other delays. 0, the default, disables them.
//   OCTAVO_DELAY_RATE=P     probability of a delay before a call, and of one after it (default 0.02)
//
// A call launches a kernel, copies, sets memory, starts a collective, records an event or makes a stream wait for one.
// A delay is a kernel that spins on the stream of the call: for 1 us to 4 ms, and at copies to 66 ms, because a copy
// may last longer than a step. After every 1024 calls the streams are chosen again: a quarter is delayed eight times as
// often, and another quarter is not delayed, so that any stream can run ahead of any other. The matmuls of cuBLASLt and
// cuDNN are not intercepted, but the calls before and after them delay their streams. A process that had delays prints
// their number to standard error when it ends.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "core/mix_bits.h"

// Kernel of tests/fault_injection/spin.cu. The address of this name is its handle on the host.
void spin(uint64_t nanoseconds);

namespace {

double number_of(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atof(text) : otherwise;
}

// Combines a seed with the rank of this process. Returns 0 for the seed 0.
uint64_t seed_of_rank(uint64_t seed) {
  return seed == 0 ? 0 : octavo::mix_bits(seed * 1000003 + static_cast<uint64_t>(number_of("OMPI_COMM_WORLD_RANK", 0)));
}

std::atomic<uint64_t> current_seed{seed_of_rank(static_cast<uint64_t>(number_of("OCTAVO_DELAY_SEED", 0)))};
std::atomic<uint64_t> calls{0};
std::atomic<uint64_t> delays{0};

struct Report {
  ~Report() {
    if (delays > 0) std::fprintf(stderr, "stream delays: %lu delays\n", static_cast<unsigned long>(delays));
  }
} report;

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "stream delays: %s\n", cudaGetErrorString(status));
  std::abort();
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

using Launch = cudaError_t (*)(const void*, dim3, dim3, void**, size_t, cudaStream_t);

// Returns CUDA's function that launches a kernel, and loads the kernel. Loading it later could wait for collectives
// that wait for this rank.
Launch prepare_launch() {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(spin)));
  return next<Launch>("cudaLaunchKernel");
}

// Delays the stream at random by 1 us times a power of 2 below 2^`powers`.
void delay(cudaStream_t stream, uint64_t powers) {
  static const double rate = number_of("OCTAVO_DELAY_RATE", 0.02);
  static const Launch launch = prepare_launch();
  const uint64_t seed = current_seed;
  if (seed == 0) return;
  unsigned long long id = 0;
  check(cudaStreamGetId(stream, &id));
  const uint64_t call = ++calls;
  constexpr double kFactors[] = {0, 1, 1, 8};
  const double factor = kFactors[octavo::mix_bits(seed ^ octavo::mix_bits(id + (call >> 10 << 32))) % 4];
  const uint64_t bits = octavo::mix_bits(seed + octavo::kSplitMixIncrement * call);
  if (static_cast<double>(bits >> 11) * 0x1p-53 >= rate * factor) return;
  uint64_t nanoseconds = uint64_t{1000} << bits % powers;
  void* arguments[] = {&nanoseconds};
  check(launch(reinterpret_cast<const void*>(spin), 1, 1, arguments, 0, stream));
  ++delays;
}

}  // namespace

// Sets the seed, and returns the number of delays so far.
extern "C" uint64_t octavo_set_delay_seed(uint64_t seed) {
  current_seed = seed_of_rank(seed);
  calls = 0;
  return delays;
}

// Arguments: DELAYED(TYPE, NAME, STREAM, (PARAMETERS), ARGUMENT...).
#define DELAYED(type, name, on_stream, parameters, ...) \
  DELAYED_UP_TO(13, type, name, on_stream, parameters, __VA_ARGS__)
#define DELAYED_UP_TO(powers, type, name, on_stream, parameters, ...) \
  extern "C" type name parameters {                                   \
    static const auto real = next<type(*) parameters>(#name);         \
    delay(on_stream, powers);                                         \
    const type status = real(__VA_ARGS__);                            \
    delay(on_stream, powers);                                         \
    return status;                                                    \
  }

DELAYED(cudaError_t, cudaLaunchKernel, stream,
        (const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes, cudaStream_t stream), kernel,
        grid, block, arguments, shared_bytes, stream)
DELAYED(cudaError_t, __cudaLaunchKernel, stream,
        (cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes, cudaStream_t stream),
        kernel, grid, block, arguments, shared_bytes, stream)
DELAYED(cudaError_t, cudaLaunchKernelExC, config->stream,
        (const cudaLaunchConfig_t* config, const void* kernel, void** arguments), config, kernel, arguments)
DELAYED_UP_TO(17, cudaError_t, cudaMemcpyAsync, stream,
              (void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream), to, from, bytes,
              kind, stream)
DELAYED_UP_TO(17, cudaError_t, cudaMemcpy2DAsync, stream,
              (void* to, size_t to_stride, const void* from, size_t from_stride, size_t width, size_t rows,
               cudaMemcpyKind kind, cudaStream_t stream),
              to, to_stride, from, from_stride, width, rows, kind, stream)
DELAYED(cudaError_t, cudaMemsetAsync, stream, (void* to, int value, size_t bytes, cudaStream_t stream), to, value,
        bytes, stream)
DELAYED(cudaError_t, cudaEventRecord, stream, (cudaEvent_t event, cudaStream_t stream), event, stream)
DELAYED(cudaError_t, cudaStreamWaitEvent, stream, (cudaStream_t stream, cudaEvent_t event, unsigned flags), stream,
        event, flags)
DELAYED(ncclResult_t, ncclAllGather, stream,
        (const void* in, void* out, size_t count, ncclDataType_t dtype, ncclComm_t comm, cudaStream_t stream), in, out,
        count, dtype, comm, stream)
DELAYED(ncclResult_t, ncclReduceScatter, stream,
        (const void* in, void* out, size_t count, ncclDataType_t dtype, ncclRedOp_t op, ncclComm_t comm,
         cudaStream_t stream),
        in, out, count, dtype, op, comm, stream)
DELAYED(ncclResult_t, ncclAllReduce, stream,
        (const void* in, void* out, size_t count, ncclDataType_t dtype, ncclRedOp_t op, ncclComm_t comm,
         cudaStream_t stream),
        in, out, count, dtype, op, comm, stream)
DELAYED(ncclResult_t, ncclSend, stream,
        (const void* in, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm, cudaStream_t stream), in, count,
        dtype, peer, comm, stream)
DELAYED(ncclResult_t, ncclRecv, stream,
        (void* out, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm, cudaStream_t stream), out, count,
        dtype, peer, comm, stream)
