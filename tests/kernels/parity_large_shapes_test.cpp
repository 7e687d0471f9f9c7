// Ops on tensors of more than 2^31 elements on the GPU. The last rows must equal those of the op on a small tensor bit
// for bit. The tests need 8 GiB of free memory. large_shapes_test.cpp has such tests for the CPU.
#include "kernels/attention/rope.h"
#include "kernels/fp8/fp8.h"
#include "kernels/layers/cross_entropy.h"
#include "kernels/layers/embedding.h"
#include "kernels/layers/swiglu.h"
#include "kernels/math/bit_hash.h"
#include "kernels/matmul/matmul.h"
#include "tests/kernels/law.h"

namespace octavo::parity_large_shapes_test {
namespace {

constexpr int64_t kRows = 4;
constexpr int64_t kManyRows = (int64_t{1} << 20) + kRows;
constexpr int64_t kWidth = 2048;

class LargeShapesParity : public LawTest {
 protected:
  // A tensor [kManyRows, width] on the GPU. Its last rows equal those of a small array [kRows, width].
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
  Large large(const Array& last) {
    Large result = large(last.dtype(), last.dim(1));
    stream().copy(result.last(), last);
    return result;
  }
  // Returns kManyRows int32 ids that are all `first`, except that the last rows are those of `last`.
  Buffer large_ids(int32_t first, const Array& last) {
    std::vector<int32_t> ids(static_cast<size_t>(kManyRows), first);
    std::copy_n(last.host().data<int32_t>(), kRows, ids.end() - kRows);
    Buffer memory = Buffer::device(Device::kCuda, std::ssize(ids) * dtype_bytes(DType::kInt32));
    stream().copy(memory.data(), ids.data(), memory.bytes());
    stream().synchronize();
    return memory;
  }
  std::vector<char> bytes_of(const Tensor& tensor) {
    std::vector<char> bytes(static_cast<size_t>(tensor.bytes()));
    stream().copy(bytes.data(), tensor.raw(), tensor.bytes());
    stream().synchronize();
    return bytes;
  }
  void expect_same(const Tensor& large, const Tensor& small, const char* name) {
    EXPECT_TRUE(bytes_of(large) == bytes_of(small)) << name;
  }
};

INSTANTIATE_GPU(LargeShapesParity, DType::kBFloat16);

TEST_P(LargeShapesParity, RowByRow) {
  const Array qkv = random({kRows, kWidth}), table = random(DType::kFloat32, {kRows, 128});
  {
    const Array few = qkv;
    const Large many = large(qkv);
    rope({.qkv = many.tensor, .table = table, .num_heads = 8, .num_kv_heads = 4}, stream());
    rope({.qkv = few, .table = table, .num_heads = 8, .num_kv_heads = 4}, stream());
    expect_same(many.last(), few, "rope");
  }
  const Array out = array({kRows, kWidth / 2});
  const Large many = large(qkv), many_out = large(DType::kBFloat16, kWidth / 2);
  swiglu_forward({.out = many_out.tensor, .gate_up = many.tensor}, stream());
  swiglu_forward({.out = out, .gate_up = qkv}, stream());
  expect_same(many_out.last(), out, "swiglu_forward");
}

TEST_P(LargeShapesParity, LossAndEmbedding) {
  const Array ids = random_integers({kRows}, 0, static_cast<int32_t>(kWidth));
  {
    const Array logits = random({kRows, kWidth}), losses = array(DType::kFloat32, {kRows});
    const Large many = large(logits);
    const Buffer many_targets = large_ids(-1, ids);
    const Buffer many_losses = Buffer::device(Device::kCuda, kManyRows * dtype_bytes(DType::kFloat32));
    const Tensor of_many(many_losses.data(), DType::kFloat32, {kManyRows});
    cross_entropy({.losses = of_many,
                   .d_logits = many.tensor,
                   .logits = many.tensor,
                   .targets = Tensor(many_targets.data(), DType::kInt32, {kManyRows})},
                  stream());
    cross_entropy({.losses = losses, .d_logits = logits, .logits = logits, .targets = ids}, stream());
    expect_same(many.last(), logits, "d_logits");
    expect_same(of_many.rows(kManyRows - kRows, kManyRows), losses, "losses");
  }
  const Array table = random({kWidth, kWidth}), out = array({kRows, kWidth});
  const Large many = large(DType::kBFloat16, kWidth);
  const Buffer many_ids = large_ids(0, ids);
  embedding_forward({.out = many.tensor, .ids = Tensor(many_ids.data(), DType::kInt32, {kManyRows}), .table = table},
                    stream());
  embedding_forward({.out = out, .ids = ids, .table = table}, stream());
  expect_same(many.last(), out, "embedding_forward");
}

// Compares reductions of a large tensor, which is zero except in its last rows, with those of the last rows alone.
TEST_P(LargeShapesParity, Reductions) {
  const Array last = random({kRows, kWidth}), largest = filled(DType::kFloat32, {2}, 0),
              hash = filled(DType::kInt32, {4}, 0);
  const Large many = large(last);
  stream().zero(many.tensor.rows(0, kManyRows - kRows));
  const auto rows = [](const Tensor& of, int64_t begin, int64_t end) { return of.rows(begin, end); };
  const Tensor all = many.tensor.view({kManyRows * kWidth});
  const Tensor few = static_cast<const Tensor&>(last).view({kRows * kWidth});
  amax({.out = rows(largest, 0, 1), .x = all}, stream());
  amax({.out = rows(largest, 1, 2), .x = few}, stream());
  expect_same(rows(largest, 0, 1), rows(largest, 1, 2), "amax");
  bit_hash({.out = rows(hash, 0, 2), .x = all}, stream());
  bit_hash({.out = rows(hash, 2, 4), .x = few, .begin = (kManyRows - kRows) * kWidth}, stream());
  expect_same(rows(hash, 0, 2), rows(hash, 2, 4), "bit_hash");
}

TEST_P(LargeShapesParity, Matmul) {
  constexpr int64_t kOut = 64;
  const Array x = random({kRows, kWidth}), weight = random({kOut, kWidth}), out = array({kRows, kOut});
  reserve(matmul_workspace_bytes(kManyRows, kOut, kWidth, DType::kBFloat16, stream()));
  const Exact exact = exact_matmul({.d = out.host(), .a = x.host(), .b = weight.host(), .transpose_b = true});
  const Large many = large(x), many_out = large(DType::kBFloat16, kOut);
  stream().zero(many.tensor.rows(0, kManyRows - kRows));
  matmul({.d = many_out.tensor, .a = many.tensor, .b = weight, .transpose_b = true}, stream());
  stream().copy(out, many_out.last());
  expect_exact(out, "matmul out of 2^31 elements", exact);
}

}  // namespace
}  // namespace octavo::parity_large_shapes_test
