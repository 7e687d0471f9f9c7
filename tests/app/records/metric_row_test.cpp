// Tests of the table of metrics, and of rows with a value per metric.
#include "app/records/metric_row.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace octavo {
namespace {

// Users' dashboards depend on these names.
TEST(MetricTable, NamesStayTheSame) {
  const nlohmann::json table = nlohmann::json::parse(metric_table_json());
  std::string names;
  for (const auto& metric : table) {
    names += metric["key"].get<std::string>() + " " + metric["tag"].get<std::string>() + "\n";
  }
  EXPECT_EQ(names,
            "loss train/loss\nz_loss train/z_loss\ngrad_norm optimizer/grad_norm\nlr optimizer/lr\nstage train/stage\n"
            "tokens train/tokens\nwps throughput/wps\nmfu throughput/mfu\n"
            "mfu_causal throughput/mfu_causal\nutilization throughput/utilization\n"
            "pipeline_bubble throughput/pipeline_bubble\n"
            "pipeline_slowest_stage throughput/pipeline_slowest_stage\n"
            "tflops throughput/tflops\nattended_tokens data/attended_tokens\n"
            "step_ms throughput/step_ms\ndata_ms data/data_ms\nmemory_gib memory/memory_gib\n"
            "watts energy/watts\nsm_mhz energy/sm_mhz\njoules_per_token energy/joules_per_token\n"
            "goodput throughput/goodput\nwall_s throughput/wall_s\nprecision_gap fp8/precision_gap\n"
            "skipped_steps events/skipped_steps\n"
            "loss_z events/loss_z\ngrad_norm_z events/grad_norm_z\nslowdown events/slowdown\n"
            "validation_loss validation/loss\nloss_by_dataset train/loss_by_dataset\n"
            "validation_loss_by_dataset validation\nevaluation_step evaluation_step\nevaluation evaluation\n"
            "epochs data/epochs\n");
}

TEST(MetricRow, EveryMetricIsInAllItsFormats) {
  for (size_t i = 0; i < kNumMetrics; ++i) {
    MetricKey metric("loss");
    metric.index = i;
    MetricRow row(1);
    if (kMetrics[i].by_dataset) {
      row.set(metric, NumbersByName{{"web", 2.0}});
    } else {
      row.set(metric, 2.0);
    }
    const std::string key = kMetrics[i].key;
    const nlohmann::json written = nlohmann::json::parse(metrics_json(row)).at(key);
    EXPECT_EQ(kMetrics[i].by_dataset ? written.at("web") : written, 2) << key;
    EXPECT_NE(prometheus_text(row, "r", 0).find("\noctavo_" + key + "{"), std::string::npos);
  }
}

TEST(MetricRow, IntegersHaveNoDecimalPoint) {
  MetricRow row(7);
  row.set("tokens", 15'600'000'000'000);
  row.set("lr", 2);
  EXPECT_EQ(metrics_json(row), R"({"step":7,"lr":2.0,"tokens":15600000000000})");
}

TEST(MetricInterval, CombinesAsTheTableSays) {
  MetricInterval interval;
  MetricRow row;
  for (int64_t step = 1; step <= 4; ++step) {
    row = MetricRow(step);
    row.set("loss", static_cast<double>(10 - step));
    row.set("step_ms", static_cast<double>(step));
    row.set("data_ms", 2.0);
    if (step == 2) row.set("slowdown", 3.0);
    if (step == 3) row.set("loss_z", 7.0);
    interval.add(row);
  }
  interval.combine_into(row);
  EXPECT_EQ(interval.steps(), 4);
  EXPECT_EQ(row.at("loss"), 6) << "loss is the last value";
  EXPECT_EQ(row.at("step_ms"), 2.5) << "step_ms is the mean";
  EXPECT_EQ(row.at("data_ms"), 2);
  EXPECT_EQ(row.at("slowdown"), 3) << "slowdown is the largest value";
  EXPECT_FALSE(row.get("loss_z")) << "loss_z was set in another step";
}

}  // namespace
}  // namespace octavo
