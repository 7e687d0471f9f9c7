// FP8 recipes in the whole model: against float32, and against themselves in other shapes of the same step.
#include <gtest/gtest.h>

#include "tests/model/llama_fixture.h"

namespace octavo {
namespace {

// Every dimension a multiple of 128, so that all recipes apply.
ModelConfig fp8_config() {
  ModelConfig config;
  config.hidden_size = 128;
  config.intermediate_size = 256;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 64;
  config.vocab_size = 67;
  return config;
}
const BatchShape kShape{.micro_batch_size = 2, .seq_len = 64};

// Weights small enough that rounding errors do not grow from layer to layer, as in a trained model.
void calm(TinyLlama& model) {
  for (const ParameterSpec& spec : model.layout().specs()) {
    if (!spec.decayed()) continue;
    for (int64_t i = 0; i < spec.numel(); ++i) model.master(spec)[i] *= 0.25f;
  }
  model.publish();
}

class Fp8Test : public ::testing::TestWithParam<LinearPrecision> {};

TEST_P(Fp8Test, LossAndGradientsAreCloseToFloat32) {
  TinyLlama exact(fp8_config(), kShape);
  TinyLlama fp8(fp8_config(), kShape, DType::kFloat32, LlamaMode::kTraining, GetParam());
  calm(exact);
  calm(fp8);
  std::mt19937_64 generator(7);
  OwnedBatch batch = OwnedBatch::random(kShape.tokens(), fp8_config().vocab_size, generator);
  exact.llama().forward_backward(batch.views(), 1.0f / 128, true, true);
  fp8.llama().forward_backward(batch.views(), 1.0f / 128, true, true);
  EXPECT_NEAR(fp8.sum_of_losses(), exact.sum_of_losses(), 0.02 * exact.sum_of_losses());
  EXPECT_NE(fp8.sum_of_losses(), exact.sum_of_losses());
  for (const ParameterSpec& spec : exact.layout().specs()) {
    EXPECT_GE(cosine(fp8.gradient(spec), exact.gradient(spec), spec.numel()), spec.decayed() ? 0.97 : 0.95)
        << spec.name;
  }
}

TEST_P(Fp8Test, InferenceGivesTheLossesOfTraining) {
  TinyLlama training(fp8_config(), kShape, DType::kFloat32, LlamaMode::kTraining, GetParam());
  TinyLlama inference(fp8_config(), kShape, DType::kFloat32, LlamaMode::kInference, GetParam());
  std::mt19937_64 generator(7);
  OwnedBatch batch = OwnedBatch::random(kShape.tokens(), fp8_config().vocab_size, generator);
  training.llama().forward_backward(batch.views(), 1.0f, true, true);
  inference.llama().forward(batch.views());
  EXPECT_EQ(training.losses(), inference.losses());
}

INSTANTIATE_TEST_SUITE_P(Recipes, Fp8Test,
                         ::testing::Values(LinearPrecision::kFp8Tensorwise, LinearPrecision::kFp8Delayed,
                                           LinearPrecision::kFp8Rowwise, LinearPrecision::kFp8Blockwise));

}  // namespace
}  // namespace octavo
