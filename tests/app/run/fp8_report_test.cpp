// Tests of the report of FP8 statistics: fractions, JSON and warnings.
#include "app/run/fp8_report.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "app/records/metric_row.h"

namespace octavo {
namespace {

// Returns the report of a tensor whose values fit the range of its cast.
Fp8TensorReport good() {
  return {.layer = 3,
          .linear = "gate_up",
          .tensor = "input",
          .per_tensor = true,
          .stats = {.elements = 1000,
                    .non_zero = 800,
                    .saturated = 1,
                    .flushed = 160,
                    .amax = 3.5,
                    .smallest_scale = 128,
                    .largest_scale = 256}};
}

TEST(Fp8Report, Shares) {
  Fp8TensorReport report = good();
  EXPECT_EQ(report.saturated_share(), 1e-3);
  EXPECT_EQ(report.flushed_share(), 0.2);
  report.stats.non_zero = 0;
  report.stats.flushed = 0;
  EXPECT_EQ(report.flushed_share(), 0);
}

TEST(Fp8Report, WarnsBeyondTheLimitsOnly) {
  EXPECT_FALSE(fp8_warning(5, {}));
  std::vector<Fp8TensorReport> tensors(3, good());
  EXPECT_FALSE(fp8_warning(5, tensors)) << "at the limits";
  tensors[1].stats.saturated = 2;
  tensors[1].tensor = "weight";
  EXPECT_EQ(fp8_warning(5, tensors),
            "step 5: 1 of 3 FP8 tensors do not fit their format; the worst is the weight of gate_up in layer 3: 0.20% "
            "saturated, 20.0% flushed to zero, amax 3.5");
  tensors[2].stats.flushed = 480;
  tensors[2].linear = "down";
  tensors[2].layer = 4;
  EXPECT_EQ(fp8_warning(6, tensors),
            "step 6: 2 of 3 FP8 tensors do not fit their format; the worst is the input of down in layer 4: 0.10% "
            "saturated, 60.0% flushed to zero, amax 3.5");
}

TEST(Fp8Report, WarnsOfBrokenAndOfZeroTensors) {
  std::vector<Fp8TensorReport> tensors(4, good());
  tensors[0].stats.saturated = 1000;
  tensors[1].stats = {.elements = 1000, .largest_scale = 1};
  tensors[1].tensor = "output_gradient";
  const std::string zero = fp8_warning(1, tensors).value_or("");
  EXPECT_NE(zero.find("2 of 4"), std::string::npos) << zero;
  EXPECT_NE(zero.find("the output_gradient of"), std::string::npos) << zero;
  for (const double broken : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    tensors[2].stats.amax = broken;
    tensors[2].layer = 7;
    const std::string text = fp8_warning(1, tensors).value_or("");
    EXPECT_NE(text.find("3 of 4"), std::string::npos) << text;
    EXPECT_NE(text.find("in layer 7"), std::string::npos) << text;
  }
}

TEST(Fp8Report, Json) {
  MetricRow row;
  EXPECT_FALSE(nlohmann::json::parse(metrics_json(row)).contains("fp8"));
  row.fp8 = {good(), good()};
  row.fp8[1].per_tensor = false;
  row.fp8[1].stats.amax = std::numeric_limits<double>::infinity();
  row.fp8[1].stats.smallest_scale = 0;
  const nlohmann::json fp8 = nlohmann::json::parse(metrics_json(row)).at("fp8");
  EXPECT_EQ(fp8[0], (nlohmann::json{{"layer", 3},
                                    {"linear", "gate_up"},
                                    {"tensor", "input"},
                                    {"amax", 3.5},
                                    {"scale", 128.0},
                                    {"saturated", 1e-3},
                                    {"flushed", 0.2}}));
  EXPECT_EQ(fp8[1], (nlohmann::json{{"layer", 3},
                                    {"linear", "gate_up"},
                                    {"tensor", "input"},
                                    {"amax", nullptr},
                                    {"scale_min", 0.0},
                                    {"scale_max", 256.0},
                                    {"saturated", 1e-3},
                                    {"flushed", 0.2},
                                    {"nonfinite", {{"amax", "inf"}}}}));
}

TEST(Fp8Report, NeedsLinearsInFp8) {
  Config config;
  config.model.num_layers = 4;
  config.precision.linear = LinearPrecision::kFp8Rowwise;
  EXPECT_FALSE(reports_fp8(config)) << "off by default";
  config.logging.fp8_stats_every = 5;
  EXPECT_TRUE(reports_fp8(config));
  config.precision.bf16_first_layers = 3;
  EXPECT_TRUE(reports_fp8(config));
  config.precision.bf16_last_layers = 1;
  EXPECT_FALSE(reports_fp8(config));
  config.precision = {};
  EXPECT_FALSE(reports_fp8(config));
}

}  // namespace
}  // namespace octavo
