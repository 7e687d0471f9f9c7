#include "kernels/math/bit_hash.h"

#include <cstring>

#include "kernels/math/random_numbers.h"
#include "tests/kernels/op_fixture.h"

namespace octavo::bit_hash_test {
namespace {

class BitHashTest : public OpTest {
 protected:
  uint64_t hash(const Tensor& x, int64_t begin = 0) {
    uint64_t out = 0;
    bit_hash({.out = Tensor(&out, DType::kInt32, {2}), .x = x, .begin = begin}, stream_);
    return out;
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
INSTANTIATE_TEST_SUITE_P(Cpu, BitHashTest, ::testing::Values(DType::kFloat32));

constexpr DType kHashed[] = {DType::kFloat32, DType::kBFloat16, DType::kInt32, DType::kUInt8, DType::kFloat8E4M3};

TEST_P(BitHashTest, IsTheSumOfItsDefinition) {
  for (const DType dtype : kHashed) {
    for (const int64_t n : {0, 1, 2, 3, 15, 16, 17, 4095, 4096, 4097, 10007}) {
      for (const int64_t offset : {0, 1, 3, 5}) {
        for (const int64_t begin : {int64_t{0}, int64_t{7}, (int64_t{1} << 40) + 13}) {
          std::vector<unsigned char> bytes = random_bytes((n + offset) * dtype_bytes(dtype));
          unsigned char* first = bytes.data() + offset * dtype_bytes(dtype);
          EXPECT_EQ(hash({first, dtype, {n}}, begin), definition(first, n, dtype_bytes(dtype), begin))
              << dtype_name(dtype) << ", " << n << " from " << offset << ", begin " << begin;
        }
      }
    }
  }
}

TEST_P(BitHashTest, AnyFlippedBitShows) {
  for (const DType dtype : kHashed) {
    for (const int64_t n : {1, 17, 1021}) {
      std::vector<unsigned char> bytes = random_bytes(n * dtype_bytes(dtype));
      const Tensor x(bytes.data(), dtype, {n});
      const uint64_t whole = hash(x);
      for (size_t bit = 0; bit < 8 * bytes.size(); bit += n < 100 ? 1 : 97) {
        bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1u << (bit % 8)));
        EXPECT_NE(hash(x), whole) << dtype_name(dtype) << ", bit " << bit << " of " << n << " elements";
        bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1u << (bit % 8)));
      }
      EXPECT_EQ(hash(x), whole);
    }
  }
}

// Flipping the signs of a whole row, or swapping rows, changes the hash.
TEST_P(BitHashTest, ManyChangesShow) {
  constexpr int64_t kColumns = 128;
  std::vector<unsigned char> bytes = random_bytes(8 * kColumns * 4);
  const Tensor x(bytes.data(), DType::kFloat32, {8 * kColumns});
  const uint64_t whole = hash(x);
  std::vector<unsigned char> before = bytes;
  for (size_t i = 0; i < kColumns; ++i) bytes[4 * i + 3] ^= 0x80;
  EXPECT_NE(hash(x), whole);
  bytes = before;
  std::memcpy(x.raw(), before.data(), before.size());
  std::swap_ranges(x.data<float>(), x.data<float>() + kColumns, x.data<float>() + kColumns);
  EXPECT_NE(hash(x), whole);
}

TEST_P(BitHashTest, SlicesAddUp) {
  std::vector<unsigned char> bytes = random_bytes(4 * 5003);
  const Tensor x(bytes.data(), DType::kFloat32, {5003});
  const uint64_t whole = hash(x, 11);
  for (const int64_t cut : {0, 1, 2, 5, 4096, 5002}) {
    EXPECT_EQ(hash(x.rows(0, cut), 11) + hash(x.rows(cut, 5003), 11 + cut), whole) << cut;
  }
  uint64_t sum = 1000;
  bit_hash({.out = Tensor(&sum, DType::kInt32, {2}), .x = x, .begin = 11}, stream_);
  EXPECT_EQ(sum, whole + 1000);
}

TEST_P(BitHashTest, DoesNotDependOnThreads) {
  const Array x = random({100'003});
  expect_thread_independent([&] {
    Array out(DType::kInt32, {2});
    out.fill(0);
    bit_hash({.out = out, .x = x}, stream_);
    return out;
  });
}

TEST_P(BitHashTest, WrongShapesThrow) {
  const Array x = random({2, 3});
  const Array out(DType::kInt32, {2});
  const Array three(DType::kInt32, {3});
  const Array flat = random({6});
  expect_error([&] { bit_hash({.out = out, .x = x}, stream_); }, "bit_hash x is float32 [2, 3], expected float32 [6]");
  expect_error([&] { bit_hash({.out = three, .x = flat}, stream_); }, "expected int32 [2]");
  expect_error([&] { bit_hash({.out = out, .x = flat, .begin = -1}, stream_); }, "begin is -1");
}

}  // namespace
}  // namespace octavo::bit_hash_test
