#include "kernels/bit_hash.h"

#include <algorithm>

#include "build_config.h"
#include "core/error.h"
#include "core/profiler.h"
#include "kernels/bit_hash_key.h"

namespace octavo {

namespace cuda {
void bit_hash(const BitHash& args, Stream& stream);
}  // namespace cuda

namespace cpu {

template <typename Bits>
uint64_t hash_of(const void* data, int64_t n, int64_t begin) {
  constexpr int64_t kBlock = 4096;
  constexpr uint64_t kGroup = 16 / sizeof(Bits);
  const auto* x = static_cast<const Bits*>(data);
  uint64_t total = 0;
#pragma omp parallel for reduction(+ : total)
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t end = std::min(first + kBlock, n);
    uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = first; i < end; ++i) sum += x[i] * bit_hash_key(static_cast<uint64_t>(begin + i), kGroup);
    total += sum;
  }
  return total;
}

void bit_hash(const BitHash& args) {
  const auto hash = [&] {
    switch (dtype_bytes(args.x.dtype())) {
      case 4:
        return hash_of<uint32_t>(args.x.raw(), args.x.numel(), args.begin);
      case 2:
        return hash_of<uint16_t>(args.x.raw(), args.x.numel(), args.begin);
      default:
        return hash_of<uint8_t>(args.x.raw(), args.x.numel(), args.begin);
    }
  }();
  *static_cast<uint64_t*>(args.out.raw()) += hash;
}

}  // namespace cpu

void bit_hash(const BitHash& args, Stream& stream) {
  expect_tensor(args.out, "bit_hash out", DType::kInt32, {2});
  expect_tensor(args.x, "bit_hash x", args.x.dtype(), {args.x.numel()});
  CHECK(args.begin >= 0, "bit_hash: elements from {}", args.begin);
  const OpTimer timer(stream, "bit_hash", 0, static_cast<double>(args.x.bytes()));
  if (timer.planned()) return;
  CHECK(reinterpret_cast<uintptr_t>(args.out.raw()) % sizeof(uint64_t) == 0, "bit_hash out is not aligned to 8 bytes");
  if constexpr (kHasCuda) {
    if (stream.is_cuda()) return cuda::bit_hash(args, stream);
  }
  cpu::bit_hash(args);
}

}  // namespace octavo
