#include "app/run/validation.h"

#include <gtest/gtest.h>

namespace octavo {
namespace {

TEST(Validation, TheMeanIsOverTheDatasetsWithTargets) {
  const std::vector<ValidationSet::Dataset> datasets{{.name = "a", .weight = 1}, {.name = "b", .weight = 3}};
  const auto mean = [&](int64_t targets_a, int64_t targets_b) {
    return mean_loss(datasets, std::vector<DatasetLoss>{{targets_a > 0 ? 2.0 : 0.0, targets_a}, {4.0, targets_b}});
  };
  EXPECT_EQ(mean(10, 1), 3.5);
  EXPECT_EQ(mean(0, 1), 4.0);
  EXPECT_EQ(mean(1, 0), 2.0);
  EXPECT_EQ(mean(0, 0), std::nullopt);
}

}  // namespace
}  // namespace octavo
