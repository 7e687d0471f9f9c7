#include "kernels/optimizer/skip_update.h"

#include "kernels/fp8/amax_history.h"
#include "tests/kernels/law.h"

namespace octavo::skip_update_test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kNoLimit = std::numeric_limits<float>::infinity();

// All tensors of these ops are float32.
class SkipUpdateTest : public LawTest {
 protected:
  double skip(double loss, double grad_sum_of_squares, float loss_limit) {
    const Array out = array({1}), squares = single(grad_sum_of_squares);
    Array losses = array({3});  // The losses are those of three datasets. The loss scale is 0.5.
    for (int64_t i = 0; i < losses.size(); ++i) losses.set(i, i == 1 ? 2 * loss - 8 : 4);
    skip_update({.skip = out,
                 .loss_sums = losses,
                 .grad_sum_of_squares = squares,
                 .inverse_targets = 0.5f,
                 .loss_limit = loss_limit},
                stream());
    return out.at(0);
  }
};
INSTANTIATE_DEVICES(SkipUpdateTest, DType::kFloat32);

TEST_P(SkipUpdateTest, SkipsStepsThatAreNotFiniteOrAboveTheLimit) {
  EXPECT_EQ(skip(3, 1, kNoLimit), 0);
  EXPECT_EQ(skip(3, 0, 3), 0);
  EXPECT_EQ(skip(3.5, 1, 3), 1);
  for (const double bad : {kNaN, kInfinity, -kInfinity}) {
    EXPECT_EQ(skip(bad, 1, kNoLimit), 1) << bad;
    EXPECT_EQ(skip(3, bad, kNoLimit), 1) << bad;
  }
}

// State of delayed scaling after a step: rows of a history, and the scaling computed from them.
struct History {
  Array rows, scaling, current;
};

TEST_P(SkipUpdateTest, HistoryDoesNotChangeInASkippedStep) {
  const auto ended_step = [&](double skipped, double last = 1) {
    History h{array({2, 3}), array({3}), array({3})};
    for (int64_t i = 0; i < h.rows.size(); ++i)
      h.rows.set(i, i % 3 == 2 ? 0.0 : 10.0 + static_cast<double>(i));  // The history has no amax for slot 2.
    for (int64_t i = 0; i < h.current.size(); ++i) h.current.set(i, i == 1 ? kNaN : i == 2 ? last : 1);
    if (last == 0) h.rows.set(5, 7);  // The row that is replaced has an amax for slot 2.
    const Array skip = single(skipped);
    amax_history({.scaling = h.scaling,
                  .history = h.rows,
                  .current = h.current,
                  .row = 1,
                  .factor = 2,
                  .replaces = true,
                  .skip = skip},
                 stream());
    EXPECT_EQ(h.current.values(), Values(3));
    return h;
  };
  const History skipped = ended_step(1);
  EXPECT_EQ(skipped.rows.values(), (Values{10, 11, 0, 13, 14, 0}));
  EXPECT_EQ(skipped.scaling.values(), (Values{26, 28, static_cast<double>(kUnknownAmax)}));
  const History taken = ended_step(0);
  EXPECT_EQ(taken.rows.at(3), 1) << "replaced, though it was larger";
  EXPECT_TRUE(std::isnan(taken.rows.at(4)));
  EXPECT_EQ(taken.scaling.at(0), 20);
  EXPECT_EQ(taken.scaling.at(2), 2);
  EXPECT_EQ(ended_step(0, 0).rows.at(5), 7) << "a zero replaces no amax";
  EXPECT_EQ(ended_step(0, 0).scaling.at(2), 14);
}

// More slots than a block of a GPU kernel has threads. Slot 5 has no amax in the last step and in one row, and slot 6
// has an infinite one.
TEST_P(SkipUpdateTest, HistoryByDefinition) {
  constexpr int64_t kSlots = 300;
  for (const bool skipped : {false, true}) {
    for (const bool replaces : {false, true}) {
      const Array skip = single(skipped ? 1 : 0), scaling = array({kSlots});
      Array history = array({3, kSlots}), current = array({kSlots});
      for (int64_t i = 0; i < 3 * kSlots; ++i) history.set(i, i % kSlots == 5 ? 0.0 : static_cast<double>(i % 17));
      for (int64_t i = 0; i < kSlots; ++i)
        current.set(i, i == 5 ? 0.0 : i == 6 ? kInfinity : static_cast<double>(i % 19));
      Values rows = history.values(), expected;
      for (int64_t i = 0; i < kSlots; ++i) {
        double& row = rows[static_cast<size_t>(kSlots + i)];
        if (!skipped) row = replaces && current.at(i) != 0 ? current.at(i) : std::max(row, current.at(i));
        const double largest = std::max({rows[static_cast<size_t>(i)], row, rows[static_cast<size_t>(2 * kSlots + i)]});
        expected.push_back(largest == 0 ? static_cast<double>(kUnknownAmax) : 2 * largest);
      }
      amax_history({.scaling = scaling,
                    .history = history,
                    .current = current,
                    .row = 1,
                    .factor = 2,
                    .replaces = replaces,
                    .skip = skip},
                   stream());
      EXPECT_EQ(history.values(), rows);
      EXPECT_EQ(scaling.values(), expected);
      EXPECT_EQ(current.values(), Values(kSlots));
    }
  }
}

}  // namespace
}  // namespace octavo::skip_update_test
