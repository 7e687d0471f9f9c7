// Ops on tensors of more than 2^31 elements on the GPU. The last rows must equal those of the op on a small tensor bit
// for bit. The tests need 8 GiB of free memory. large_shapes_test.cpp has such tests for the CPU.
#include "kernels/attention/rope.h"
#include "kernels/fp8/fp8.h"
#include "kernels/layers/cross_entropy.h"
#include "kernels/layers/embedding.h"
#include "kernels/layers/swiglu.h"
#include "kernels/math/bit_hash.h"
#include "kernels/matmul/matmul.h"
#include "tests/kernels/parity.h"

namespace octavo::parity_large_shapes_test {
namespace {

constexpr int64_t kRows = 4;
constexpr int64_t kManyRows = (int64_t{1} << 20) + kRows;
constexpr int64_t kWidth = 2048;

class LargeShapesParity : public ParityTest {
 protected:
  // A tensor [kManyRows, width] on the GPU. Its last rows equal those of a small twin [kRows, width].
  struct Large {
    Buffer memory;
    Tensor tensor;
    Tensor last() const { return tensor.rows(kManyRows - kRows, kManyRows); }
  };
  Large large(DType dtype, int64_t width) {
    Large result;
    result.memory = Buffer::device(Device::kCuda, kManyRows * width * dtype_bytes(dtype));
    result.tensor = Tensor(result.memory.data(), dtype, {kManyRows, width});
    return result;
  }
  Large large(const Twin& last) {
    Large result = large(last.gpu().dtype(), last.gpu().dim(1));
    gpu().copy(result.last(), last.gpu());
    return result;
  }
  // Returns kManyRows int32 ids that are all `first`, except that the last rows are those of `last`.
  Buffer large_ids(int32_t first, const Twin& last) {
    std::vector<int32_t> ids(static_cast<size_t>(kManyRows), first);
    std::copy_n(last.cpu().data<int32_t>(), kRows, ids.end() - kRows);
    Buffer memory = Buffer::device(Device::kCuda, std::ssize(ids) * dtype_bytes(DType::kInt32));
    gpu().copy(memory.data(), ids.data(), memory.bytes());
    gpu().synchronize();
    return memory;
  }
  std::vector<char> bytes_of(const Tensor& tensor) {
    std::vector<char> bytes(static_cast<size_t>(tensor.bytes()));
    gpu().copy(bytes.data(), tensor.raw(), tensor.bytes());
    gpu().synchronize();
    return bytes;
  }
  void expect_same(const Tensor& large, const Tensor& small, const char* name) {
    EXPECT_TRUE(bytes_of(large) == bytes_of(small)) << name;
  }
};

TEST_F(LargeShapesParity, RowByRow) {
  Twin qkv(DType::kBFloat16, {kRows, kWidth}), table(DType::kFloat32, {kRows, 128});
  fill(qkv);
  fill(table);
  {
    const Large many = large(qkv);
    rope({.qkv = many.tensor, .table = table.gpu(), .num_heads = 8, .num_kv_heads = 4}, gpu());
    rope({.qkv = qkv.gpu(), .table = table.gpu(), .num_heads = 8, .num_kv_heads = 4}, gpu());
    expect_same(many.last(), qkv.gpu(), "rope");
  }
  {
    Twin out(DType::kBFloat16, {kRows, kWidth / 2});
    const Large many = large(qkv), many_out = large(DType::kBFloat16, kWidth / 2);
    swiglu_forward({.out = many_out.tensor, .gate_up = many.tensor}, gpu());
    swiglu_forward({.out = out.gpu(), .gate_up = qkv.gpu()}, gpu());
    expect_same(many_out.last(), out.gpu(), "swiglu_forward");
  }
}

TEST_F(LargeShapesParity, LossAndEmbedding) {
  Twin logits(DType::kBFloat16, {kRows, kWidth}), ids(DType::kInt32, {kRows}), losses(DType::kFloat32, {kRows});
  fill(logits);
  fill_integers(ids, 0, static_cast<int32_t>(kWidth));
  {
    const Large many = large(logits);
    const Buffer many_targets = large_ids(-1, ids);
    const Buffer many_losses = Buffer::device(Device::kCuda, kManyRows * dtype_bytes(DType::kFloat32));
    const Tensor of_many(many_losses.data(), DType::kFloat32, {kManyRows});
    cross_entropy({.losses = of_many,
                   .d_logits = many.tensor,
                   .logits = many.tensor,
                   .targets = Tensor(many_targets.data(), DType::kInt32, {kManyRows})},
                  gpu());
    cross_entropy({.losses = losses.gpu(), .d_logits = logits.gpu(), .logits = logits.gpu(), .targets = ids.gpu()},
                  gpu());
    expect_same(many.last(), logits.gpu(), "d_logits");
    expect_same(of_many.rows(kManyRows - kRows, kManyRows), losses.gpu(), "losses");
  }
  Twin table(DType::kBFloat16, {kWidth, kWidth}), out(DType::kBFloat16, {kRows, kWidth});
  fill(table);
  const Large many = large(DType::kBFloat16, kWidth);
  const Buffer many_ids = large_ids(0, ids);
  embedding_forward(
      {.out = many.tensor, .ids = Tensor(many_ids.data(), DType::kInt32, {kManyRows}), .table = table.gpu()}, gpu());
  embedding_forward({.out = out.gpu(), .ids = ids.gpu(), .table = table.gpu()}, gpu());
  expect_same(many.last(), out.gpu(), "embedding_forward");
}

// Compares reductions of a large tensor, which is zero except in its last rows, with those of the last rows alone.
TEST_F(LargeShapesParity, Reductions) {
  Twin last(DType::kBFloat16, {kRows, kWidth}), largest(DType::kFloat32, {2}), hash(DType::kInt32, {4});
  fill(last);
  for (int64_t i = 0; i < 2; ++i) largest.set(i, 0);
  for (int64_t i = 0; i < 4; ++i) hash.set(i, 0);
  upload(largest);
  upload(hash);
  const Large many = large(last);
  gpu().zero(many.tensor.rows(0, kManyRows - kRows));
  const Tensor all = many.tensor.view({kManyRows * kWidth}), few = last.gpu().view({kRows * kWidth});
  amax({.out = largest.gpu().rows(0, 1), .x = all}, gpu());
  amax({.out = largest.gpu().rows(1, 2), .x = few}, gpu());
  expect_same(largest.gpu().rows(0, 1), largest.gpu().rows(1, 2), "amax");
  bit_hash({.out = hash.gpu().rows(0, 2), .x = all}, gpu());
  bit_hash({.out = hash.gpu().rows(2, 4), .x = few, .begin = (kManyRows - kRows) * kWidth}, gpu());
  expect_same(hash.gpu().rows(0, 2), hash.gpu().rows(2, 4), "bit_hash");
}

// The comparison is by norm, because cuBLASLt may choose another algorithm for so many rows.
TEST_F(LargeShapesParity, Product) {
  constexpr int64_t kOut = 64;
  Twin x(DType::kBFloat16, {kRows, kWidth}), weight(DType::kBFloat16, {kOut, kWidth});
  Twin out(DType::kBFloat16, {kRows, kOut});
  fill(x);
  fill(weight);
  reserve(matmul_workspace_bytes(kRows, kOut, kWidth, DType::kBFloat16, cpu()),
          matmul_workspace_bytes(kManyRows, kOut, kWidth, DType::kBFloat16, gpu()));
  matmul({.d = out.cpu(), .a = x.cpu(), .b = weight.cpu(), .transpose_b = true}, cpu());
  const Large many = large(x), many_out = large(DType::kBFloat16, kOut);
  gpu().zero(many.tensor.rows(0, kManyRows - kRows));
  matmul({.d = many_out.tensor, .a = many.tensor, .b = weight.gpu(), .transpose_b = true}, gpu());
  gpu().copy(out.gpu(), many_out.last());
  expect_close(out, "a product of 2^31 elements", 1e-2);
}

}  // namespace
}  // namespace octavo::parity_large_shapes_test
