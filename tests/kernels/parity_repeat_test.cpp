// Ops that a profiler captures and repeats, on the GPU.
#include "core/error.h"
#include "core/profiler.h"
#include "kernels/math/sum_terms.h"
#include "kernels/matmul/matmul.h"
#include "tests/kernels/parity.h"

namespace octavo::parity_repeat_test {
namespace {

TEST_F(ParityTest, RepeatedOpsRunAsOftenAsTheyAreQueued) {
  Twin terms(DType::kFloat32, {5}), sum(DType::kFloat32, {5});
  for (int64_t i = 0; i < 5; ++i) terms.set(i, static_cast<float>(i + 1));
  upload(terms);
  for (int64_t i = 0; i < 5; ++i) sum.set(i, 0);
  upload(sum);
  std::vector<std::string> names;
  Profiler profiler(Device::kCuda, [&](const char* name, const std::function<void()>& queue) {
    names.emplace_back(name);
    for (int i = 0; i < 3; ++i) queue();
    gpu().synchronize();
  });
  const auto add = [&] { sum_terms({.out = sum.gpu(), .terms = terms.gpu(), .accumulate = true}, gpu()); };
  gpu().set_profiler(&profiler);
  add();  // three times
  add();  // and, as the second of its name, once
  gpu().set_profiler(nullptr);
  add();
  EXPECT_EQ(names, std::vector<std::string>{"sum_terms"});
  const std::vector<float> found = gpu_values(sum);
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(found[static_cast<size_t>(i)], 5 * terms.at(i));
}

TEST_F(ParityTest, RepeatedOpsTellOfFailures) {
  Twin sum(DType::kFloat32, {5});
  Profiler profiler(Device::kCuda, [&](const char*, const std::function<void()>&) { throw Error("no energy"); });
  gpu().set_profiler(&profiler);
  gpu().zero(sum.gpu());
  gpu().set_profiler(nullptr);
  EXPECT_THROW(profiler.rethrow_failure(), Error);
}

// A library's op, after a run in which it chose its kernel.
TEST_F(ParityTest, RepeatedProducts) {
  constexpr int64_t kSize = 256;
  Twin a(DType::kBFloat16, {kSize, kSize}), b(DType::kBFloat16, {kSize, kSize}), d(DType::kBFloat16, {kSize, kSize});
  fill(a);
  fill(b);
  reserve(matmul_workspace_bytes(kSize, kSize, kSize, DType::kBFloat16, cpu()),
          matmul_workspace_bytes(kSize, kSize, kSize, DType::kBFloat16, gpu()));
  const auto multiply = [&](Stream& s) { matmul({.d = d.on(s), .a = a.on(s), .b = b.on(s), .transpose_b = true}, s); };
  on_both(multiply);
  poison(d);
  int repeated = 0;
  Profiler profiler(Device::kCuda, [&](const char*, const std::function<void()>& queue) {
    ++repeated;
    for (int i = 0; i < 3; ++i) queue();
  });
  gpu().set_profiler(&profiler);
  on_both(multiply);
  gpu().set_profiler(nullptr);
  profiler.rethrow_failure();
  EXPECT_EQ(repeated, 1);
  expect_close(d, "a product that is repeated", tolerance_of(DType::kBFloat16));
}

}  // namespace
}  // namespace octavo::parity_repeat_test
