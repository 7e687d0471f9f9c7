// The kernel that stream_delays_nccl.cpp delays streams with. It is a file of its own because nvcc has device functions
// with the names that the library replaces.
#include <cstdint>

__global__ void spin(uint64_t nanoseconds) {
  uint64_t begin = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}
