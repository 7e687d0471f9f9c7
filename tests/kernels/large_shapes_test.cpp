// Ops on tensors of more than 2^31 elements, which long sequences and large vocabularies need. The memory is only
// reserved: pages that are only read are the kernel's shared page of zeros, and only the few pages with values are
// allocated. Each result is compared with that of the op on a small tensor of those values.
// parity_large_shapes_test.cpp has such tests for GPUs.
#include <sys/mman.h>

#include "kernels/fp8/fp8.h"
#include "kernels/layers/cross_entropy.h"
#include "kernels/layers/embedding.h"
#include "kernels/math/bit_hash.h"
#include "kernels/math/reduce.h"
#include "tests/kernels/op_fixture.h"

namespace octavo::large_shapes_test {
namespace {

constexpr int64_t kMany = int64_t{1} << 31;

// A tensor of zeros in memory that is reserved but not backed by pages until it is written.
class SparseTensor {
 public:
  SparseTensor(DType dtype, std::initializer_list<int64_t> shape)
      : bytes_(static_cast<size_t>(Tensor(nullptr, dtype, shape).bytes())),
        memory_(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)),
        tensor_(memory_ == MAP_FAILED ? nullptr : memory_, dtype, shape) {
    CHECK(memory_ != MAP_FAILED, "{} bytes cannot be reserved", bytes_);
    CHECK(tensor_.numel() > kMany, "{} has no more than 2^31 elements", tensor_.describe());
    // Huge pages would be allocated on reads too.
    ::madvise(memory_, bytes_, MADV_NOHUGEPAGE);
  }
  ~SparseTensor() { ::munmap(memory_, bytes_); }
  SparseTensor(const SparseTensor&) = delete;
  SparseTensor& operator=(const SparseTensor&) = delete;

  // NOLINT: like Array, it can be passed wherever an op takes a tensor.
  operator const Tensor&() const { return tensor_; }
  Tensor last_rows(int64_t count) const { return tensor_.rows(tensor_.dim(0) - count, tensor_.dim(0)); }

 private:
  size_t bytes_;
  void* memory_;
  Tensor tensor_;
};

class LargeShapes : public ::testing::Test {
 protected:
  Array random(DType dtype, std::initializer_list<int64_t> shape) {
    Array array(dtype, shape);
    for (int64_t i = 0; i < array.size(); ++i) array.set(i, normal_(generator_));
    return array;
  }
  void copy(const Tensor& out, const Tensor& in) { stream_.copy(out, in); }
  static Array ids(std::initializer_list<int64_t> values) {
    Array array(DType::kInt32, {std::ssize(values)});
    int64_t i = 0;
    for (const int64_t value : values) array.set(i++, static_cast<double>(value));
    return array;
  }

  Stream stream_ = Stream::cpu();

 private:
  std::mt19937 generator_{7};
  std::normal_distribution<double> normal_;
};

TEST_F(LargeShapes, ViewsOfRows) {
  const SparseTensor tensor(DType::kBFloat16, {3, int64_t{1} << 20, 1024});
  const Tensor last = tensor.last_rows(1);
  EXPECT_EQ(static_cast<char*>(last.raw()) - static_cast<char*>(static_cast<const Tensor&>(tensor).raw()),
            int64_t{4} << 30);
  EXPECT_EQ(static_cast<const Tensor&>(tensor).bytes(), int64_t{6} << 30);
}

TEST_F(LargeShapes, Embedding) {
  constexpr int64_t kRows = (int64_t{1} << 17) + 1, kHidden = int64_t{1} << 14;
  const SparseTensor table(DType::kBFloat16, {kRows, kHidden});
  const Array last = random(DType::kBFloat16, {1, kHidden});
  copy(table.last_rows(1), last);
  const Array tokens = ids({0, kRows - 1});
  const Array out(DType::kBFloat16, {2, kHidden});
  embedding_forward({.out = out, .ids = tokens, .table = table}, stream_);
  Values expected(static_cast<size_t>(kHidden), 0.0);
  const Values of_last = last.values();
  expected.insert(expected.end(), of_last.begin(), of_last.end());
  EXPECT_EQ(out.values(), expected);

  const SparseTensor d_table(DType::kFloat32, {kRows, kHidden});
  embedding_backward({.d_table = d_table, .d_out = out, .ids = tokens, .order = ids({0, 1})}, stream_);
  const Array summed(DType::kFloat32, {1, kHidden});
  copy(summed, d_table.last_rows(1));
  EXPECT_EQ(summed.values(), of_last);
}

TEST_F(LargeShapes, CrossEntropy) {
  constexpr int64_t kTokens = (int64_t{1} << 20) + 2, kVocab = 2053;
  const SparseTensor logits(DType::kBFloat16, {kTokens, kVocab});
  const Array few = random(DType::kBFloat16, {2, kVocab});
  copy(logits.last_rows(2), few);
  Array targets(DType::kInt32, {kTokens});
  targets.fill(-1);
  targets.set(kTokens - 2, 5);
  targets.set(kTokens - 1, kVocab - 1);
  const Array losses(DType::kFloat32, {kTokens}), few_losses(DType::kFloat32, {2});
  cross_entropy({.losses = losses, .d_logits = {}, .logits = logits, .targets = targets}, stream_);
  cross_entropy({.losses = few_losses, .d_logits = {}, .logits = few, .targets = ids({5, kVocab - 1})}, stream_);
  EXPECT_EQ(losses.at(0), 0);
  EXPECT_EQ(losses.at(kTokens - 2), few_losses.at(0));
  EXPECT_EQ(losses.at(kTokens - 1), few_losses.at(1));
}

TEST_F(LargeShapes, Reductions) {
  constexpr int64_t kCount = kMany + 13;
  const SparseTensor x(DType::kBFloat16, {kCount});
  const Array last = random(DType::kBFloat16, {5});
  copy(x.last_rows(5), last);
  const auto zero = [](DType dtype, int64_t count) {
    Array array(dtype, {count});
    array.fill(0);
    return array;
  };
  const Array largest = zero(DType::kFloat32, 1), of_few = zero(DType::kFloat32, 1);
  amax({.out = largest, .x = x}, stream_);
  amax({.out = of_few, .x = last}, stream_);
  EXPECT_EQ(largest.at(0), of_few.at(0));
  EXPECT_GT(largest.at(0), 0);

  // Zeros do not contribute to a hash, so the hash of x is that of its last elements.
  std::vector<uint64_t> hash(1), hash_of_few(1);
  bit_hash({.out = Tensor(hash.data(), DType::kInt32, {2}), .x = x}, stream_);
  bit_hash({.out = Tensor(hash_of_few.data(), DType::kInt32, {2}), .x = last, .begin = kCount - 5}, stream_);
  EXPECT_EQ(hash, hash_of_few);

  std::vector<char> workspace(static_cast<size_t>(reduce_workspace_bytes(stream_)));
  stream_.set_workspace(Tensor(workspace.data(), DType::kUInt8, {std::ssize(workspace)}));
  const Array sum = zero(DType::kFloat32, 1);
  sum_of_squares({.out = sum, .x = x}, stream_);
  EXPECT_NEAR(sum.at(0), dot(last, last.values()), 1e-5 * sum.at(0));
}

}  // namespace
}  // namespace octavo::large_shapes_test
