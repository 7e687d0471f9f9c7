#include "kernels/math/bit_hash.h"

#include <cstring>
#include <iostream>

#include "kernels/math/random_numbers.h"
#include "tests/kernels/law.h"

namespace octavo::bit_hash_test {
namespace {

class BitHashTest : public LawTest {
 protected:
  // Returns the hash, added to `before`.
  uint64_t hash(const Tensor& x, int64_t begin = 0, uint64_t before = 0) {
    Array out = array(DType::kInt32, {2});
    const auto* words = reinterpret_cast<const unsigned char*>(&before);
    out.set_bits({words, words + 8});
    bit_hash({.out = out, .x = x, .begin = begin}, stream());
    uint64_t result;
    std::memcpy(&result, out.bits().data(), 8);
    return result;
  }
  Array array_of(DType type, const std::vector<unsigned char>& bytes, int64_t offset = 0) {
    Array x = array(type, {std::ssize(bytes) / dtype_bytes(type)}, offset);
    x.set_bits(bytes);
    return x;
  }

  // Returns random bytes. Their float patterns include NaNs and infinities.
  static std::vector<unsigned char> random_bytes(int64_t count) {
    std::mt19937_64 generator(static_cast<uint64_t>(count));
    std::vector<unsigned char> bytes(static_cast<size_t>(count));
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(generator());
    return bytes;
  }

  // Computes the hash from the definition. The elements are little-endian.
  static uint64_t definition(const unsigned char* bytes, int64_t n, int64_t element_bytes, int64_t begin) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      uint64_t bits = 0;
      for (int64_t b = element_bytes; b-- > 0;) bits = bits * 256 + bytes[i * element_bytes + b];
      const auto index = static_cast<uint64_t>(begin + i);
      const auto group = static_cast<uint64_t>(16 / element_bytes);
      sum += bits * ((mix_bits(index / group) ^ mix_bits(~(index % group))) | 1);
    }
    return sum;
  }
};
INSTANTIATE_DEVICES(BitHashTest, DType::kFloat32);

constexpr DType kHashed[] = {DType::kFloat32, DType::kBFloat16, DType::kInt32, DType::kUInt8, DType::kFloat8E4M3};

TEST_P(BitHashTest, IsTheSumOfItsDefinition) {
  for (const DType dtype : kHashed) {
    for (const int64_t n : {0, 1, 2, 3, 15, 16, 17, 255, 4095, 4096, 4097, 10007, on_gpu() ? 70001 : 1009}) {
      const std::vector<unsigned char> bytes = random_bytes(n * dtype_bytes(dtype));
      for (const int64_t offset : {0, 1, 2, 3, 4, 5, 8}) {
        const Array x = array_of(dtype, bytes, offset);
        for (const int64_t begin : {int64_t{0}, int64_t{1}, int64_t{13}, (int64_t{1} << 40) + 13}) {
          EXPECT_EQ(hash(x, begin, 1000), definition(bytes.data(), n, dtype_bytes(dtype), begin) + 1000)
              << dtype_name(dtype) << ", " << n << " from " << offset << ", begin " << begin;
        }
      }
    }
  }
}

TEST_P(BitHashTest, AnyFlippedBitShows) {
  for (const DType dtype : kHashed) {
    for (const int64_t n : {1, 17, 1021}) {
      const std::vector<unsigned char> bytes = random_bytes(n * dtype_bytes(dtype));
      const uint64_t whole = hash(array_of(dtype, bytes));
      for (size_t bit = 0; bit < 8 * bytes.size(); bit += n < 100 ? 1 : 97) {
        std::vector<unsigned char> flipped = bytes;
        flipped[bit / 8] = static_cast<unsigned char>(flipped[bit / 8] ^ (1u << (bit % 8)));
        EXPECT_NE(hash(array_of(dtype, flipped)), whole) << dtype_name(dtype) << ", bit " << bit << " of " << n;
      }
    }
  }
}

// Flipping the signs of a whole row, or swapping rows, changes the hash.
TEST_P(BitHashTest, ManyChangesShow) {
  constexpr int64_t kRowBytes = 128 * 4;
  const std::vector<unsigned char> bytes = random_bytes(8 * kRowBytes);
  const uint64_t whole = hash(array_of(DType::kFloat32, bytes));
  std::vector<unsigned char> flipped = bytes, swapped = bytes;
  for (size_t i = 3; i < kRowBytes; i += 4) flipped[i] ^= 0x80;
  std::swap_ranges(swapped.begin(), swapped.begin() + kRowBytes, swapped.begin() + kRowBytes);
  EXPECT_NE(hash(array_of(DType::kFloat32, flipped)), whole);
  EXPECT_NE(hash(array_of(DType::kFloat32, swapped)), whole);
}

TEST_P(BitHashTest, SlicesAddUp) {
  const Array array = array_of(DType::kFloat32, random_bytes(4 * 5003));
  const Tensor& x = array;
  const uint64_t whole = hash(x, 11);
  for (const int64_t split : {0, 1, 2, 5, 4096, 5002}) {
    EXPECT_EQ(hash(x.rows(0, split), 11) + hash(x.rows(split, 5003), 11 + split), whole) << split;
  }
}

TEST_P(BitHashTest, IsReproducible) {
  const Array x = random({on_gpu() ? 5'000'011 : 100'003});
  expect_reproducible([&] {
    const Array out = filled(DType::kInt32, {2}, 0);
    bit_hash({.out = out, .x = x}, stream());
    return out;
  });
}

TEST_P(BitHashTest, WrongShapesThrow) {
  const Array x = random({2, 3}), flat = random({6});
  const Array out = array(DType::kInt32, {2}), three = array(DType::kInt32, {3});
  expect_error([&] { bit_hash({.out = out, .x = x}, stream()); }, "bit_hash x is float32 [2, 3], expected float32 [6]");
  expect_error([&] { bit_hash({.out = three, .x = flat}, stream()); }, "expected int32 [2]");
  expect_error([&] { bit_hash({.out = out, .x = flat, .begin = -1}, stream()); }, "begin is -1");
}

class BitHashOnGpu : public LawTest {};
INSTANTIATE_GPU(BitHashOnGpu, DType::kFloat32);

// Compares the rate of the hash with the rate of a copy of the same bytes. The copy reads and writes them.
TEST_P(BitHashOnGpu, Rate) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const Buffer memory = Buffer::device(Device::kCuda, 2 * kBytes + 256);
  auto* first = static_cast<char*>(memory.data());
  const Tensor out(first + 2 * kBytes, DType::kInt32, {2});
  const auto rate = [&](auto work) {
    Event begin(Device::kCuda, true);
    Event end(Device::kCuda, true);
    work();
    begin.record(stream_);
    for (int i = 0; i < 10; ++i) work();
    end.record(stream_);
    end.synchronize();
    return 10.0 * static_cast<double>(kBytes) / end.milliseconds_since(begin) / 1e6;
  };
  const double copied = 2 * rate([&] { stream_.copy(first + kBytes, first, kBytes); });
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kUInt8}) {
    const Tensor x(first, dtype, {kBytes / dtype_bytes(dtype)});
    const double read = rate([&] { bit_hash({.out = out, .x = x}, stream_); });
    std::cout << fmt::format("[   rate   ] bit_hash of {} reads {:.0f} GB/s, a copy reads and writes {:.0f}\n",
                             dtype_name(dtype), read, copied);
    EXPECT_GT(read, copied / 4) << "the check for silent corruption takes longer than documented";
  }
}

}  // namespace
}  // namespace octavo::bit_hash_test
