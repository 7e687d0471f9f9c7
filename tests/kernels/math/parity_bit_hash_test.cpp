// Hashes on the GPU equal those on the CPU bit for bit, wherever a tensor starts and ends. BitHashRate prints the rate.
#include "kernels/math/bit_hash.h"
#include "tests/kernels/parity.h"

namespace octavo::parity_bit_hash_test {
namespace {

TEST_F(ParityTest, BitHash) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kUInt8}) {
    for (const int64_t n : {1, 2, 3, 15, 16, 17, 255, 1009, 4096, 70001, 5'000'011}) {
      for (const int64_t offset : {0, 1, 2, 3, 4, 8}) {
        for (const int64_t begin : {int64_t{0}, int64_t{1}, int64_t{4}, int64_t{13}, (int64_t{1} << 33) + 3}) {
          Twin x(dtype, {n}, offset);
          std::mt19937_64 generator(static_cast<uint64_t>(n));
          auto* bytes = static_cast<unsigned char*>(x.cpu().raw());
          for (int64_t i = 0; i < x.cpu().bytes(); ++i) bytes[i] = static_cast<unsigned char>(generator());
          upload(x);
          Twin out(DType::kInt32, {2});
          fill_integers(out, -1000, 1000);
          on_both([&](Stream& s) { bit_hash({.out = out.on(s), .x = x.on(s), .begin = begin}, s); });
          SCOPED_TRACE(fmt::format("{} {} at {}, from {}", n, dtype_name(dtype), offset, begin));
          expect_equal_bytes(out, "bit_hash");
        }
      }
    }
  }
}

// Compares the rate of the hash with the rate of a copy of the same bytes. The copy reads and writes them.
TEST_F(ParityTest, BitHashRate) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const Buffer memory = Buffer::device(Device::kCuda, 2 * kBytes + 256);
  auto* first = static_cast<char*>(memory.data());
  const Tensor out(first + 2 * kBytes, DType::kInt32, {2});
  const auto rate = [&](auto work) {
    Event begin(Device::kCuda, true);
    Event end(Device::kCuda, true);
    work();
    begin.record(gpu());
    for (int i = 0; i < 10; ++i) work();
    end.record(gpu());
    end.synchronize();
    return 10.0 * static_cast<double>(kBytes) / end.milliseconds_since(begin) / 1e6;
  };
  const double copied = 2 * rate([&] { gpu().copy(first + kBytes, first, kBytes); });
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kUInt8}) {
    const Tensor x(first, dtype, {kBytes / dtype_bytes(dtype)});
    const double read = rate([&] { bit_hash({.out = out, .x = x}, gpu()); });
    std::cout << fmt::format("[   rate   ] bit_hash of {} reads {:.0f} GB/s, a copy reads and writes {:.0f}\n",
                             dtype_name(dtype), read, copied);
    EXPECT_GT(read, copied / 4) << "the check for silent corruption takes longer than documented";
  }
}

}  // namespace
}  // namespace octavo::parity_bit_hash_test
