// Skipped steps on the GPU compared with the CPU.
#include "kernels/fp8/amax_history.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/skip_update.h"
#include "tests/kernels/parity.h"

namespace octavo::parity_skip_update_test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST_F(ParityTest, SkipUpdate) {
  Twin skip(DType::kFloat32, {1}), losses(DType::kFloat32, {3}), squares(DType::kFloat32, {1});
  for (const auto& [loss, norm, expected] :
       {std::tuple{1.0f, 2.0f, 0.0f}, {4.0f, 2.0f, 1.0f}, {kNaN, 2.0f, 1.0f}, {1.0f, kInfinity, 1.0f}}) {
    losses.set(1, loss);
    squares.set(0, norm);
    upload(losses);
    upload(squares);
    poison(skip);
    on_both([&](Stream& s) {
      skip_update({.skip = skip.on(s),
                   .loss_sums = losses.on(s),
                   .grad_sum_of_squares = squares.on(s),
                   .loss_scale = 0.5f,
                   .loss_limit = 1.5f},
                  s);
    });
    expect_equal_bytes(skip, "skip_update");
    EXPECT_EQ(skip.at(0), expected) << loss << " " << norm;
  }
}

TEST_P(ComputeDtypeParity, AdamwOfASkippedStep) {
  for (const int64_t offset : {0, 3}) {
    constexpr int64_t kCount = 5003;
    Twin master(DType::kFloat32, {kCount}, offset), grad(DType::kFloat32, {kCount}, offset);
    Twin exp_avg(dtype(), {kCount}, offset), exp_avg_sq(dtype(), {kCount}, offset);
    Twin weight(DType::kBFloat16, {kCount}, offset), amax(DType::kFloat32, {1}), skip(DType::kFloat32, {1});
    fill(master);
    fill(exp_avg);
    fill(exp_avg_sq);
    fill(weight);
    for (int64_t i = 0; i < kCount; ++i) grad.set(i, kNaN);
    upload(grad);
    skip.set(0, 1);
    upload(skip);
    on_both([&](Stream& s) {
      adamw({.master = master.on(s),
             .exp_avg = exp_avg.on(s),
             .exp_avg_sq = exp_avg_sq.on(s),
             .grad = grad.on(s),
             .weight = weight.on(s),
             .amax = amax.on(s),
             .grad_sum_of_squares = {},
             .skip = skip.on(s),
             .options = {.lr = 0.1f}},
            s);
    });
    for (const Twin* twin : {&master, &exp_avg, &exp_avg_sq, &weight, &amax}) expect_equal_bytes(*twin, "adamw");
  }
}

TEST_F(ParityTest, AmaxHistoryOfASkippedStep) {
  constexpr int64_t kSlots = 300;
  Twin skip(DType::kFloat32, {1});
  for (const float skipped : {0.0f, 1.0f}) {
    for (const bool replaces : {false, true}) {
      Twin history(DType::kFloat32, {3, kSlots}), current(DType::kFloat32, {kSlots}),
          scaling(DType::kFloat32, {kSlots});
      for (int64_t i = 0; i < 3 * kSlots; ++i) history.set(i, i % kSlots == 5 ? 0.0f : static_cast<float>(i % 17));
      for (int64_t i = 0; i < kSlots; ++i)
        current.set(i, i == 5 ? 0.0f : i == 6 ? kInfinity : static_cast<float>(i % 19));
      skip.set(0, skipped);
      for (const Twin* twin : {&history, &current, &skip}) upload(*twin);
      poison(scaling);
      on_both([&](Stream& s) {
        amax_history({.scaling = scaling.on(s),
                      .history = history.on(s),
                      .current = current.on(s),
                      .row = 1,
                      .factor = 2,
                      .replaces = replaces,
                      .skip = skip.on(s)},
                     s);
      });
      for (const Twin* twin : {&history, &current, &scaling}) expect_equal_bytes(*twin, "amax_history");
    }
  }
}

}  // namespace
}  // namespace octavo::parity_skip_update_test
