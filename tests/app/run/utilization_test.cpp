// The FLOPs of small models and the utilizations that follow from them, computed by hand.
#include "app/run/utilization.h"

#include <gtest/gtest.h>

#include <cmath>

namespace octavo {
namespace {

// One head of 4 per query and key: qkv 8 x 12, o 4 x 8, gate_up 8 x 20, down 10 x 8, lm_head 16 x 8.
ModelConfig small_model() {
  ModelConfig model;
  model.hidden_size = 8;
  model.num_heads = 1;
  model.num_kv_heads = 1;
  model.head_dim = 4;
  model.intermediate_size = 10;
  model.num_layers = 3;
  model.vocab_size = 16;
  return model;
}

constexpr double kBlock = 8 * 12 + 4 * 8 + 8 * 20 + 10 * 8;  // Weights of the linears of a block.
constexpr double kNorms = 3 * 2 * 8 + 8;
constexpr double kLmHead = 16 * 8;
constexpr double kLinears = 6 * (3 * kBlock + kNorms + kLmHead);  // FLOPs per token.

TEST(Utilization, FlopsByHand) {
  const ModelFlops flops = model_flops(small_model(), {}, 32, causal_attended_tokens(32));
  // QK^T and PV are 2 * 4 FLOPs per key each in forward and twice that in backward.
  EXPECT_DOUBLE_EQ(flops.palm, kLinears + 3 * 3 * 16 * 32);
  EXPECT_DOUBLE_EQ(flops.causal, kLinears + 3 * 3 * 16 * 16.5);
  EXPECT_EQ(flops.fp8, 0);
  EXPECT_DOUBLE_EQ(model_flops(small_model(), {}, 32, 2.5).causal, kLinears + 3 * 3 * 16 * 2.5);
}

// A document ends after each token with probability 1 - q. Of three tokens, the first attends to itself, the second to
// 1 + q and the third to 1 + q + q^2 tokens on average.
TEST(Utilization, AttendedTokensWithinDocuments) {
  for (const int64_t length : {1, 2, 1000}) {
    const double q = std::exp(-1 / static_cast<double>(length));
    EXPECT_NEAR(document_attended_tokens(3, length), (3 + 2 * q + q * q) / 3, 1e-12) << length;
  }
  EXPECT_NEAR(document_attended_tokens(8192, 1'000'000'000), causal_attended_tokens(8192), 0.1);
  EXPECT_NEAR(document_attended_tokens(1 << 20, 1024), 1024, 2);
}

TEST(Utilization, OnlyMatmulsInFp8CountAsFp8) {
  PrecisionConfig precision{.linear = LinearPrecision::kFp8Tensorwise};
  precision.bf16_last_layers = 1;
  EXPECT_DOUBLE_EQ(model_flops(small_model(), precision, 32, 16.5).fp8, 6 * 2 * kBlock);
  precision.lm_head = LmHeadPrecision::kFp8Backward;
  EXPECT_DOUBLE_EQ(model_flops(small_model(), precision, 32, 16.5).fp8, 6 * 2 * kBlock + 4 * kLmHead);
  precision.lm_head = LmHeadPrecision::kFp8;
  EXPECT_DOUBLE_EQ(model_flops(small_model(), precision, 32, 16.5).fp8, 6 * 2 * kBlock + 6 * kLmHead);
}

TEST(Utilization, SharesOfThePeaks) {
  const Utilization use = utilization_of({.palm = 3e9, .causal = 2e9, .fp8 = 1.5e9}, 1e5);
  EXPECT_DOUBLE_EQ(use.mfu, 3e14 / 989e12);
  EXPECT_DOUBLE_EQ(use.mfu_causal, 2e14 / 989e12);
  EXPECT_DOUBLE_EQ(use.utilization, 1.5e14 / 1979e12 + 0.5e14 / 989e12);
}

}  // namespace
}  // namespace octavo
