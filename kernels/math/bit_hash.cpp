#include "kernels/math/bit_hash.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/math/bit_hash_key.h"
#include "kernels/math/math_cuda.h"

namespace octavo {

namespace cpu {

// Hashes the elements before the first and after the last whole group one by one. In between, the group's part of the
// keys is computed once per group.
template <typename Bits>
uint64_t hash_of(const void* data, int64_t n, int64_t begin) {
  constexpr int64_t kGroup = 16 / sizeof(Bits);
  constexpr auto kLanes = [] {
    std::array<uint64_t, kGroup> lanes{};
    for (size_t j = 0; j < lanes.size(); ++j) lanes[j] = mix_bits(~static_cast<uint64_t>(j));
    return lanes;
  }();
  const auto* x = static_cast<const Bits*>(data);
  const int64_t head = std::min(n, (kGroup - begin % kGroup) % kGroup);
  const int64_t groups = (n - head) / kGroup;
  uint64_t total = 0;
#pragma omp parallel for reduction(+ : total)
  for (int64_t g = 0; g < groups; ++g) {
    const Bits* elements = x + head + g * kGroup;
    const uint64_t key = mix_bits(static_cast<uint64_t>((begin + head) / kGroup + g));
    uint64_t sum = 0;
    for (size_t j = 0; j < kLanes.size(); ++j) sum += elements[j] * ((key ^ kLanes[j]) | 1);
    total += sum;
  }
  const auto add = [&](int64_t i) { total += x[i] * bit_hash_key(static_cast<uint64_t>(begin + i), kGroup); };
  for (int64_t i = 0; i < head; ++i) add(i);
  for (int64_t i = head + groups * kGroup; i < n; ++i) add(i);
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
  CHECK(args.begin >= 0, "bit_hash: begin is {}, expected at least 0", args.begin);
  const OpTimer timer(stream, "bit_hash", args.x.bytes());
  if (timer.planned()) return;
  CHECK(reinterpret_cast<uintptr_t>(args.out.raw()) % sizeof(uint64_t) == 0, "bit_hash out is not aligned to 8 bytes");
  if (ran_elsewhere<cuda::bit_hash>(args, stream)) return;
  cpu::bit_hash(args);
}

}  // namespace octavo
