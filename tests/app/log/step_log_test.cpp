// Tests of the numbers that are reported of a step.
#include "app/log/step_log.h"

#include <gtest/gtest.h>

namespace octavo {
namespace {

TEST(FlopsOfStep, HaveThePrecisionOfTheStep) {
  Config config;
  config.model = model_preset("llama3_1b");
  config.data.seq_len = 128;
  config.precision.linear = LinearPrecision::kFp8Tensorwise;
  config.precision.lm_head = LmHeadPrecision::kFp8;
  MetricRow row(1);
  row.set("attended_tokens", causal_attended_tokens(128));
  EXPECT_GT(flops_of_step(config, row).fp8, 0.8 * flops_of_step(config, row).causal);
  row.in_bfloat16 = true;
  EXPECT_EQ(flops_of_step(config, row).fp8, 0) << "a step of a fallback to bfloat16";
}

}  // namespace
}  // namespace octavo
