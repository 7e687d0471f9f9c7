// The kernels of the loss and of the optimizer, and device memory, on the GPU compared with the CPU. parity_test.cpp
// has the kernels of the layers.
#include <chrono>
#include <thread>

#include "kernels/layers/cross_entropy.h"
#include "kernels/math/cast.h"
#include "kernels/math/reduce.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/ema.h"
#include "tests/kernels/parity.h"

namespace octavo::parity_loss_test {
namespace {

// ---- Cross entropy

TEST_P(ComputeDtypeParity, CrossEntropy) {
  // The vocabularies fit one block, a cluster of each size, or no cluster. Some are multiples of 8.
  for (const auto& [tokens, vocab] : {RowSize{1, 2},
                                      {33, 17},
                                      {130, 272},
                                      {37, 1009},
                                      {5, 32000},
                                      {5, 50264},
                                      {9, 128256},
                                      {3, 128257},
                                      {2, 151936},
                                      {2, 262152},
                                      {2, 300000}}) {
    Twin losses(DType::kFloat32, {tokens});
    Twin logits(dtype(), {tokens, vocab});
    Twin d_logits(dtype(), {tokens, vocab});
    Twin targets(DType::kInt32, {tokens});
    fill(logits, 3.0f);
    fill_integers(targets, 0, static_cast<int32_t>(vocab));
    if (tokens > 1) targets.set(tokens / 2, -1);
    upload(targets);
    poison(losses);
    on_both([&](Stream& s) {
      cross_entropy({.losses = losses.on(s), .d_logits = {}, .logits = logits.on(s), .targets = targets.on(s)}, s);
    });
    // The CPU's losses are no reference here. Its float32 sum of exponentials is too imprecise for large vocabularies.
    const ExactCrossEntropy exact = exact_cross_entropy({logits.cpu()}, targets.cpu(), 0.125);
    const std::vector<float> values = gpu_values(losses);
    expect_exact(losses, "cross_entropy losses", exact.losses);

    poison(losses);
    poison(d_logits);
    const auto both = [&](Stream& s, const Twin& gradient) {
      cross_entropy({losses.on(s), gradient.on(s), logits.on(s), targets.on(s), 0.125f}, s);
    };
    on_both([&](Stream& s) { both(s, d_logits); });
    EXPECT_EQ(gpu_values(losses), values) << "losses change with d_logits, vocabulary " << vocab;
    expect_close(d_logits, "d_logits", std::max(tolerance(), 1e-4));
    expect_exact(d_logits, "cross_entropy d_logits", exact.d_logits[0]);
    // The gradient overwrites the logits.
    on_both([&](Stream& s) { both(s, logits); });
    EXPECT_EQ(gpu_bytes(logits), gpu_bytes(d_logits)) << "in place differs, vocabulary " << vocab;
  }
}

// The vocabularies need blocks of each size, clusters, and a single block for rows that no cluster can hold.
TEST_P(ComputeDtypeParity, ZLoss) {
  constexpr float kZLoss = 0.05f;
  for (const auto& [tokens, vocab] : {RowSize{33, 17}, {130, 272}, {5, 32000}, {9, 128256}, {3, 128257}}) {
    Twin losses(DType::kFloat32, {tokens});
    Twin z_losses(DType::kFloat32, {tokens});
    Twin logits(dtype(), {tokens, vocab});
    Twin targets(DType::kInt32, {tokens});
    fill(logits, 3.0f);
    fill_integers(targets, 0, static_cast<int32_t>(vocab));
    targets.set(tokens / 2, -1);
    upload(targets);
    const ExactCrossEntropy exact = exact_cross_entropy({logits.cpu()}, targets.cpu(), 0.125, kZLoss);
    poison(losses);
    poison(z_losses);
    on_both([&](Stream& s) {
      cross_entropy({losses.on(s), logits.on(s), logits.on(s), targets.on(s), 0.125f, kZLoss, z_losses.on(s)}, s);
    });
    expect_exact(losses, "cross_entropy losses", exact.losses);
    expect_exact(z_losses, "cross_entropy z_losses", exact.z_losses);
    expect_close(logits, "d_logits", std::max(tolerance(), 1e-4));
    expect_exact(logits, "cross_entropy d_logits with z-loss", exact.d_logits[0]);
  }
}

// In each kernel the cast of the gradient has the bits of quantizing the gradient.
TEST_F(ParityTest, CrossEntropyCastsItsGradient) {
  constexpr DType kDtype = DType::kBFloat16;
  constexpr float kScale = 0.125f;
  for (const auto& [tokens, vocab] :
       {RowSize{33, 17}, {130, 272}, {6403, 4112}, {37, 32000}, {9, 128256}, {3, 128257}}) {
    Twin losses(DType::kFloat32, {tokens});
    Twin logits(kDtype, {tokens, vocab});
    const Twin d_logits(kDtype, {tokens, vocab});
    Twin targets(DType::kInt32, {tokens});
    fill(logits, 3.0f);
    fill_integers(targets, 0, static_cast<int32_t>(vocab));
    targets.set(tokens / 2, -1);
    upload(targets);
    const auto run = [&](const Fp8Cast& cast) {
      cross_entropy({.losses = losses.gpu(),
                     .d_logits = d_logits.gpu(),
                     .logits = logits.gpu(),
                     .targets = targets.gpu(),
                     .scale = kScale,
                     .cast = cast},
                    gpu());
      return gpu_bytes(losses);
    };
    const auto plain_losses = run({});
    for (const DType format : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      const Twin expected(format, {tokens, vocab});
      const Twin made(format, {tokens, vocab});
      const Twin expected_scale(DType::kFloat32, {1});
      const Twin made_scale(DType::kFloat32, {1});
      for (const Twin* twin : {&expected, &made, &expected_scale, &made_scale}) poison(*twin);
      run({});
      quantize({.cast = {.rows = {expected.gpu(), expected_scale.gpu()}, .bound = kScale}, .x = d_logits.gpu()}, gpu());
      const auto losses_beside =
          run({.rows = {made.gpu(), made_scale.gpu()}, .columns = {}, .amax = {}, .bound = kScale});
      EXPECT_TRUE(gpu_bytes(made) == gpu_bytes(expected)) << tokens << " x " << vocab << " " << dtype_name(format);
      EXPECT_EQ(gpu_bytes(made_scale), gpu_bytes(expected_scale));
      EXPECT_EQ(losses_beside, plain_losses);
    }
  }
}

// There are so many rows that each block iterates over several of them. Some rows are ignored.
TEST_P(ComputeDtypeParity, CrossEntropyOfManyRows) {
  for (const auto& [tokens, vocab] : {RowSize{17001, 272}, {6403, 4112}, {1603, 16392}}) {
    Twin losses(DType::kFloat32, {tokens});
    Twin logits(dtype(), {tokens, vocab});
    Twin targets(DType::kInt32, {tokens});
    fill(logits, 3.0f);
    fill_integers(targets, 0, static_cast<int32_t>(vocab));
    for (int64_t t = 0; t < tokens; t += 1 + t % 5) targets.set(t, -1);
    upload(targets);
    const ExactCrossEntropy exact = exact_cross_entropy({logits.cpu()}, targets.cpu(), 0.125);
    const auto in_place = [&](Stream& s) {
      cross_entropy({losses.on(s), logits.on(s), logits.on(s), targets.on(s), 0.125f}, s);
    };
    poison(losses);
    on_both(in_place);
    expect_exact(losses, "cross_entropy losses", exact.losses);
    expect_close(logits, "d_logits", std::max(tolerance(), 1e-4));
    expect_exact(logits, "cross_entropy d_logits", exact.d_logits[0]);
  }
}

TEST_P(ComputeDtypeParity, CrossEntropyShowsNanAndInfinity) {
  for (const int64_t vocab : {272, 1009, 128256}) {
    Twin losses(DType::kFloat32, {4});
    Twin logits(dtype(), {4, vocab});
    Twin targets(DType::kInt32, {4});
    fill(logits);
    logits.set(vocab - 1, std::numeric_limits<float>::quiet_NaN());
    logits.set(2 * vocab - 3, std::numeric_limits<float>::infinity());
    for (int64_t v = 0; v < vocab; ++v) logits.set(2 * vocab + v, std::numeric_limits<float>::quiet_NaN());
    upload(logits);
    fill_integers(targets, 0, 100);
    gpu().zero(losses.gpu());
    cross_entropy({.losses = losses.gpu(), .d_logits = {}, .logits = logits.gpu(), .targets = targets.gpu()}, gpu());
    const std::vector<float> values = gpu_values(losses);
    for (const size_t row : {0, 1, 2})
      EXPECT_TRUE(std::isnan(values[row])) << "vocabulary " << vocab << ", row " << row;
    EXPECT_TRUE(std::isfinite(values[3])) << "vocabulary " << vocab;
  }
}

// ---- AdamW, reductions and casts of flat tensors, aligned and shifted

TEST_P(ComputeDtypeParity, AdamwWithMomentsOfThisDtype) {
  struct Case {
    int64_t n, offset, grad_offset;
  };
  for (const auto& [n, offset, grad_offset] :
       {Case{1, 0, 0}, {7, 1, 1}, {4096, 0, 0}, {4096, 1, 0}, {10007, 0, 0}, {10007, 13, 13}, {10007, 2, 3}}) {
    Twin master(DType::kFloat32, {n}, offset);
    Twin exp_avg(dtype(), {n}, offset);
    Twin exp_avg_sq(dtype(), {n}, offset);
    Twin grad(DType::kFloat32, {n}, grad_offset);
    Twin weight(DType::kBFloat16, {n}, offset);
    Twin norm(DType::kFloat32, {1});
    Twin amax(DType::kFloat32, {1});
    fill(master);
    for (int64_t step = 1; step <= 3; ++step) {
      fill(grad);
      norm.set(0, static_cast<float>(n));
      upload(norm);
      poison(weight);
      const float before = step == 2 ? 1000.0f : 0.0f;
      amax.set(0, before);
      upload(amax);
      const auto arguments = [&](const Stream& s) {
        return Adamw{
            .master = master.on(s),
            .exp_avg = exp_avg.on(s),
            .exp_avg_sq = exp_avg_sq.on(s),
            .grad = grad.on(s),
            .weight = weight.on(s),
            .amax = amax.on(s),
            .grad_sum_of_squares = norm.on(s),
            .options = {.lr = 0.01f, .weight_decay = 0.1f, .grad_clip = step == 2 ? 0.0f : 1.0f, .step = step}};
      };
      const ExactAdamw exact = exact_adamw(arguments(cpu()));
      on_both([&](Stream& s) { adamw(arguments(s), s); });
      expect_close(master, "master", 1e-5);
      expect_close(weight, "weight", 1e-3);
      expect_close(exp_avg, "exp_avg", tolerance());
      expect_close(exp_avg_sq, "exp_avg_sq", tolerance());
      expect_exact(master, "adamw master", exact.master);
      expect_exact(weight, "adamw weight", exact.master);
      expect_exact(exp_avg, "adamw exp_avg", exact.exp_avg);
      expect_exact(exp_avg_sq, "adamw exp_avg_sq", exact.exp_avg_sq);
      float largest = before;
      for (const float value : gpu_values(master)) largest = std::max(largest, std::abs(value));
      EXPECT_EQ(gpu_values(amax)[0], largest) << "amax of " << n << " weights";
      // Uploads the CPU's values, so that errors do not add up.
      for (const Twin* twin : {&master, &exp_avg, &exp_avg_sq}) upload(*twin);
    }
  }
}

// All bits must be equal, including those of the stochastic rounding.
TEST_F(ParityTest, AdamwWithMomentsInFloat8) {
  struct Case {
    int64_t n, offset, grad_offset, columns;
  };
  for (const auto& [n, offset, grad_offset, columns] : {Case{1, 0, 0, 1},
                                                        {7, 1, 1, 1},
                                                        {4096, 0, 0, 1000},
                                                        {4096, 1, 0, 500},
                                                        {10007, 0, 0, 3},
                                                        {10007, 13, 13, 1},
                                                        {10007, 2, 3, 999},
                                                        {10007, 0, 0, 128}}) {
    Twin master(DType::kFloat32, {n}, offset);
    Twin exp_avg(DType::kFloat8E4M3, {n}, offset);
    Twin exp_avg_sq(DType::kBFloat16, {n}, offset);
    Twin grad(DType::kFloat32, {n}, grad_offset);
    Twin weight(DType::kBFloat16, {n}, offset);
    Twin norm(DType::kFloat32, {1});
    Twin amax(DType::kFloat32, {1});
    fill(master);
    on_both([&](Stream& s) {
      s.zero(exp_avg.on(s));
      s.zero(exp_avg_sq.on(s));
      s.zero(amax.on(s));
    });
    for (int64_t step = 1; step <= 5; ++step) {
      fill(grad);
      norm.set(0, static_cast<float>(n));
      upload(norm);
      on_both([&](Stream& s) {
        adamw({.master = master.on(s),
               .exp_avg = exp_avg.on(s),
               .exp_avg_sq = exp_avg_sq.on(s),
               .grad = grad.on(s),
               .weight = weight.on(s),
               .amax = amax.on(s),
               .grad_sum_of_squares = norm.on(s),
               .options = {.lr = 0.01f, .weight_decay = 0.1f, .grad_clip = step == 2 ? 0.0f : 1.0f, .step = step},
               .random_key = 1000 + static_cast<uint64_t>(step),
               .range = {.first_index = 77, .begin = 13, .columns = columns, .row_stride = 1000}},
              s);
      });
      for (const Twin* twin : {&master, &exp_avg, &exp_avg_sq, &weight, &amax}) expect_equal_bytes(*twin, "adamw");
    }
  }
}

// Compares the moving average (EMA) of the weights on both devices after an update and after a skipped update.
TEST_F(ParityTest, Ema) {
  struct Case {
    int64_t n, offset, x_offset;
  };
  for (const auto& [n, offset, x_offset] : {Case{1, 0, 0}, {7, 1, 1}, {4096, 0, 0}, {10007, 13, 13}, {10007, 2, 3}}) {
    Twin average(DType::kFloat32, {n}, offset);
    Twin x(DType::kFloat32, {n}, x_offset);
    Twin skip(DType::kFloat32, {1});
    fill(average);
    fill(x);
    for (const float skipped : {0.0f, 1.0f}) {
      skip.set(0, skipped);
      upload(skip);
      const std::vector<float> before = gpu_values(average);
      on_both([&](Stream& s) { ema({.ema = average.on(s), .x = x.on(s), .skip = skip.on(s), .decay = 0.9}, s); });
      expect_close(average, "ema", 1e-6);
      EXPECT_EQ(gpu_values(average) == before, skipped == 1.0f) << n;
    }
  }
}

// The cases have no bfloat16 weight, no amax, and an amax that an infinite gradient makes NaN.
TEST_F(ParityTest, AdamwWithoutWeight) {
  constexpr int64_t kCount = 5003;
  Twin master(DType::kFloat32, {kCount}, 3);
  Twin exp_avg(DType::kFloat32, {kCount}, 3);
  Twin exp_avg_sq(DType::kFloat32, {kCount}, 3);
  Twin grad(DType::kFloat32, {kCount}, 3);
  Twin amax(DType::kFloat32, {1});
  fill(master);
  fill(grad);
  const auto arguments = [&](const Stream& s, bool with_amax) {
    return Adamw{.master = master.on(s),
                 .exp_avg = exp_avg.on(s),
                 .exp_avg_sq = exp_avg_sq.on(s),
                 .grad = grad.on(s),
                 .weight = {},
                 .amax = with_amax ? amax.on(s) : Tensor(),
                 .grad_sum_of_squares = {},
                 .options = {.lr = 0.01f}};
  };
  const auto step = [&](bool with_amax) { on_both([&](Stream& s) { adamw(arguments(s, with_amax), s); }); };
  const ExactAdamw exact = exact_adamw(arguments(cpu(), false));
  step(false);
  expect_close(master, "master", 1e-5);
  expect_exact(master, "adamw master", exact.master);
  EXPECT_EQ(gpu_values(amax)[0], 0.0f);
  for (const int64_t broken : {int64_t{0}, kCount - 1}) {
    amax.set(0, 0.0f);
    upload(amax);
    fill(grad);
    fill(master);
    gpu().zero(exp_avg.gpu());
    gpu().zero(exp_avg_sq.gpu());
    grad.set(broken, std::numeric_limits<float>::infinity());
    upload(grad);
    step(true);
    EXPECT_TRUE(std::isnan(gpu_values(amax)[0])) << broken;
  }
}

TEST_F(ParityTest, Reductions) {
  reserve(0, reduce_workspace_bytes(gpu()));
  for (const int64_t n : {1, 3, 511, 10007, 3000001}) {
    for (const int64_t offset : {0, 1}) {
      Twin x(DType::kFloat32, {n}, offset);
      Twin total(DType::kFloat32, {1});
      fill(x, 1.0f, 0.5f);
      fill(total);
      const Exact squares = exact_sum(total.cpu(), x.cpu(), true);
      on_both([&](Stream& s) { sum_of_squares({total.on(s), x.on(s)}, s); });
      expect_close(total, "sum of squares", 1e-6);
      expect_exact(total, "sum_of_squares", squares);
      const std::vector<char> once = [&] {
        gpu().zero(total.gpu());
        sum_of_squares({total.gpu(), x.gpu()}, gpu());
        return gpu_bytes(total);
      }();
      gpu().zero(total.gpu());
      sum_of_squares({total.gpu(), x.gpu()}, gpu());
      EXPECT_EQ(gpu_bytes(total), once) << "not deterministic, " << n;
      upload(total);
      const Exact exact = exact_sum(total.cpu(), x.cpu(), false);
      on_both([&](Stream& s) { sum({total.on(s), x.on(s)}, s); });
      expect_close(total, "sum", 1e-6);
      expect_exact(total, "sum", exact);
    }
  }
}

TEST_F(ParityTest, Cast) {
  for (const DType from : {DType::kFloat32, DType::kBFloat16}) {
    for (const DType to : {DType::kFloat32, DType::kBFloat16}) {
      for (const int64_t n : {1, 8, 1009, 65537}) {
        for (const int64_t offset : {0, 1}) {
          Twin x(from, {n}, offset);
          Twin out(to, {n}, offset);
          fill(x);
          poison(out);
          on_both([&](Stream& s) { cast({out.on(s), x.on(s)}, s); });
          EXPECT_EQ(relative_error(out), 0.0) << dtype_name(from) << " to " << dtype_name(to) << ", " << n;
        }
      }
    }
  }
}

// Device memory is zeroed before the caller gets it. A copy that the caller starts at once must not be overwritten by a
// late zeroing.
TEST(DeviceMemoryParity, IsZeroedBeforeItIsHandedOut) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs a GPU";
  Stream stream = Stream::cuda(0);
  constexpr int64_t kBytes = int64_t{8} << 30;
  const Buffer memory = Buffer::device(Device::kCuda, kBytes);
  const std::vector<int32_t> written(1024, 7);
  std::vector<int32_t> read(written.size());
  const auto bytes = static_cast<int64_t>(written.size() * sizeof(int32_t));
  char* end = static_cast<char*>(memory.data()) + kBytes - bytes;
  stream.copy(end, written.data(), bytes);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  stream.copy(read.data(), end, bytes);
  stream.synchronize();
  EXPECT_EQ(read, written);
}

}  // namespace
}  // namespace octavo::parity_loss_test
