#include "kernels/matmul/matmul.h"

#include "kernels/matmul/tuned_algorithms.h"
#include "tests/kernels/law.h"

namespace octavo::matmul_test {
namespace {

struct Size {
  int64_t m, n, k;
};

class MatmulTest : public LawTest {
 protected:
  std::vector<Size> sizes() const {
    std::vector<Size> all = {{1, 1, 1}, {3, 5, 7}, {1, 67, 31}, {37, 1, 131}, {64, 48, 32}, {31, 33, 1001}};
    if (on_gpu()) {
      for (const Size& size : {Size{1, 272, 256}, {127, 131, 137}, {33, 64, 1001}, {264, 520, 1032}, {512, 768, 1024}})
        all.push_back(size);
    }
    return all;
  }

  // Checks a matmul in all four layouts, with and without accumulation.
  void check(const Size& s, DType result) {
    reserve(matmul_workspace_bytes(s.m, s.n, s.k, dtype(), stream()));
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        const Array a = transpose_a ? random({s.k, s.m}) : random({s.m, s.k});
        const Array b = transpose_b ? random({s.n, s.k}) : random({s.k, s.n});
        const Array d = array(result, {s.m, s.n});
        for (const bool accumulate : {false, true}) {
          const Exact exact = exact_matmul({.d = d.host(),
                                            .a = a.host(),
                                            .b = b.host(),
                                            .transpose_a = transpose_a,
                                            .transpose_b = transpose_b,
                                            .accumulate = accumulate});
          matmul({.d = d,
                  .a = a,
                  .b = b,
                  .transpose_a = transpose_a,
                  .transpose_b = transpose_b,
                  .accumulate = accumulate},
                 stream());
          expect_exact(d, fmt::format("matmul of {} to {}", dtype_name(dtype()), dtype_name(result)), exact);
        }
      }
    }
  }

  // Returns a b^T with the algorithms of a stream.
  std::vector<unsigned char> result_of(const Array& a, const Array& b, Stream& s) {
    const Array d = array({a.dim(0), b.dim(0)});
    static_cast<void>(stream());
    matmul({.d = d, .a = a, .b = b, .transpose_b = true}, s);
    s.synchronize();
    return d.bits();
  }
};
INSTANTIATE_DEVICES_AND_DTYPES(MatmulTest);

TEST_P(MatmulTest, EveryLayoutAndOutput) {
  for (const Size& size : sizes()) {
    check(size, dtype());
    check(size, DType::kFloat32);
  }
}

TEST_P(MatmulTest, WrongShapesThrow) {
  const Array a = random({3, 5}), b = random({4, 7}), good_b = random({5, 7});
  const Array d = array({3, 7}), int_d = array(DType::kInt32, {3, 7});
  const std::string name = dtype_name(dtype());
  expect_error([&] { matmul({.d = d, .a = a, .b = b}, stream()); },
               "matmul b is " + name + " [4, 7], expected " + name + " [5, 7]");
  expect_error([&] { matmul({.d = d, .a = a, .b = b, .transpose_a = true}, stream()); },
               "matmul a is " + name + " [3, 5], expected " + name + " [3, 3]");
  expect_error([&] { matmul({.d = int_d, .a = a, .b = good_b}, stream()); }, "d is int32 [3, 7]");
  if (dtype() == DType::kBFloat16 && !on_gpu()) {
    reserve(matmul_workspace_bytes(3, 7, 5, dtype(), stream()) - 4);
    expect_error([&] { matmul({.d = d, .a = a, .b = good_b}, stream()); }, "an op needs a workspace of");
  }
}

class MatmulOnGpu : public MatmulTest {};
INSTANTIATE_GPU(MatmulOnGpu, DType::kFloat32, DType::kBFloat16);

// A stream that takes over the choices of another stream measures nothing itself and gives the same bits.
TEST_P(MatmulOnGpu, TakesAlgorithmsChosenBefore) {
  reserve(matmul_workspace_bytes(512, 768, 1024, dtype(), stream()));
  const Array a = random({512, 1024}), b = random({768, 1024});
  const std::vector<unsigned char> first = result_of(a, b, stream_);
  const auto& chosen = stream_.state<TunedAlgorithms>();
  EXPECT_EQ(chosen.num_timed(), 1);
  Stream second = Stream::cuda(0);
  second.set_workspace(
      Tensor(stream_.workspace(stream_.workspace_bytes()), DType::kUInt8, {stream_.workspace_bytes()}));
  auto& taken = second.state<TunedAlgorithms>();
  taken.add(chosen.text("a GPU"), "a GPU");
  EXPECT_TRUE(result_of(a, b, second) == first);
  EXPECT_EQ(taken.num_timed(), 0);
}

// The matmul has few results with long sums, for which cuBLASLt prefers split-K.
TEST_P(MatmulOnGpu, Deterministic) {
  stream_.set_deterministic(true);
  const Size size{64, 72, 8192};
  check(size, DType::kFloat32);
  const Array a = random({size.m, size.k}), b = random({size.k, size.n});
  expect_reproducible([&] {
    const Array d = array(DType::kFloat32, {size.m, size.n});
    matmul({.d = d, .a = a, .b = b}, stream());
    return d;
  });
}

}  // namespace
}  // namespace octavo::matmul_test
