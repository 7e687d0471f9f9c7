// Tests of forward and backward of the whole model. It is so small that its loss can be differentiated numerically.
#include "core/profiler.h"
#include "tests/model/llama_fixture.h"

namespace octavo::llama_test {
namespace {

constexpr BatchShape kShape{.micro_batch_size = 2, .seq_len = 9};

struct Variant {
  const char* name;
  bool tied = false;
  bool scaled_rope = false;
  bool masked = false;
  int64_t num_kv_heads = 2;
  bool qk_norm = false;
};

class LlamaTest : public ::testing::TestWithParam<Variant> {
 protected:
  static ModelConfig config() {
    ModelConfig c = tiny_config();
    c.tie_word_embeddings = GetParam().tied;
    c.num_kv_heads = GetParam().num_kv_heads;
    c.qk_norm = GetParam().qk_norm;
    if (GetParam().scaled_rope) c.rope_scaling = RopeScaling{4.0, 1.0, 4.0, 16};
    return c;
  }
  OwnedBatch batch(int64_t tokens = kShape.tokens()) {
    OwnedBatch made = OwnedBatch::random(tokens, config().vocab_size, generator_);
    if (GetParam().masked) made.mask_documents(4, kShape.seq_len);
    return made;
  }

  std::mt19937_64 generator_{4242};
};

INSTANTIATE_TEST_SUITE_P(
    Variants, LlamaTest,
    ::testing::Values(Variant{.name = "untied"}, Variant{.name = "tied", .tied = true},
                      Variant{.name = "rope_scaling", .scaled_rope = true},
                      Variant{.name = "documents", .masked = true},
                      Variant{.name = "one_kv_head", .tied = true, .masked = true, .num_kv_heads = 1},
                      Variant{.name = "all_kv_heads", .num_kv_heads = 4}, Variant{.name = "qk_norm", .qk_norm = true},
                      Variant{.name = "qk_norm_tied",
                              .tied = true,
                              .scaled_rope = true,
                              .masked = true,
                              .num_kv_heads = 1,
                              .qk_norm = true}),
    [](const auto& instance) { return std::string(instance.param.name); });

// Returns the derivative of the loss along `direction`, by fourth-order central differences of the model's float32
// loss.
double directional_derivative(TinyLlama& model, OwnedBatch& batch, const ParameterSpec& spec,
                              const std::vector<double>& direction) {
  float* weights = model.master(spec);
  const std::vector<float> center(weights, weights + spec.numel());
  const auto loss_at = [&](double step) {
    for (size_t i = 0; i < center.size(); ++i) {
      weights[i] = static_cast<float>(static_cast<double>(center[i]) + step * direction[i]);
    }
    return model.loss(batch);
  };
  constexpr double kStep = 0.02;
  const double derivative =
      (8 * (loss_at(kStep) - loss_at(-kStep)) - (loss_at(2 * kStep) - loss_at(-2 * kStep))) / (12 * kStep);
  loss_at(0);
  return derivative;
}

// Returns a direction that contains a part of the gradient, so that the derivative exceeds the float32 noise, and a
// random part in every element.
std::vector<double> random_direction(const float* gradient, int64_t n, std::mt19937_64& generator) {
  std::normal_distribution<double> normal;
  std::vector<double> direction(static_cast<size_t>(n));
  double norm = 0;
  for (int64_t i = 0; i < n; ++i) norm += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
  norm = std::sqrt(norm);
  double length = 0;
  for (size_t i = 0; i < direction.size(); ++i) {
    const double along = static_cast<double>(gradient[i]) / norm;
    direction[i] = along + normal(generator) / std::sqrt(static_cast<double>(n));
    length += direction[i] * direction[i];
  }
  for (double& d : direction) d /= std::sqrt(length);
  return direction;
}

TEST_P(LlamaTest, GradientsAgreeWithDifferencesOfTheLoss) {
  TinyLlama model(config(), kShape);
  OwnedBatch tokens = batch();
  constexpr float kScale = 0.5f;
  model.llama().forward_backward(tokens.views(), kScale, true, true);
  const std::vector<float> gradients(model.parameters().gradients().data<float>(),
                                     model.parameters().gradients().data<float>() + model.layout().units().back().end);
  for (const ParameterSpec& spec : model.layout().specs()) {
    const float* gradient = gradients.data() + spec.offset;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const std::vector<double> direction = random_direction(gradient, spec.numel(), generator_);
      double expected = 0;
      for (int64_t i = 0; i < spec.numel(); ++i) {
        expected += static_cast<double>(gradient[i]) * direction[static_cast<size_t>(i)];
      }
      const double found = static_cast<double>(kScale) * directional_derivative(model, tokens, spec, direction);
      EXPECT_NEAR(found, expected, 2e-3 * std::abs(expected)) << spec.name;
    }
  }
}

// The accumulated gradients of two micro-batches equal those of one batch with the rows of both.
TEST_P(LlamaTest, AccumulationEqualsOneLargeBatch) {
  TinyLlama small(config(), {.micro_batch_size = 1, .seq_len = kShape.seq_len});
  TinyLlama large(config(), kShape);
  OwnedBatch both = batch();
  OwnedBatch first = both.slice(0, kShape.seq_len);
  OwnedBatch second = both.slice(kShape.seq_len, kShape.tokens());
  large.llama().forward_backward(both.views(), 0.1f, true, true);
  // The second step overwrites the gradients of the first step, because `first` is true.
  for (int step = 0; step < 2; ++step) {
    small.llama().forward_backward(first.views(), 0.1f, true, true);
    double loss = small.sum_of_losses();
    small.llama().forward_backward(second.views(), 0.1f, false, true);
    loss += small.sum_of_losses();
    EXPECT_NEAR(loss, large.sum_of_losses(), 1e-6 * loss);
    for (const ParameterSpec& spec : small.layout().specs()) {
      EXPECT_LT(relative_error(small.gradient(spec), large.gradient(spec), spec.numel()), 1e-5) << spec.name;
    }
  }
}

TEST_P(LlamaTest, InferenceGivesTheLossesOfTraining) {
  TinyLlama training(config(), kShape);
  TinyLlama inference(config(), kShape, DType::kFloat32, LlamaMode::kInference);
  OwnedBatch tokens = batch();
  training.llama().forward_backward(tokens.views(), 1.0f, true, true);
  const std::vector<float> losses = training.losses();
  EXPECT_EQ(losses[1], 0.0f);  // The target is -1, so the token is ignored.
  training.llama().forward(tokens.views());
  EXPECT_EQ(training.losses(), losses);
  inference.llama().forward(tokens.views());
  EXPECT_EQ(inference.losses(), losses);
  EXPECT_THROW(inference.llama().forward_backward(tokens.views(), 1.0f, true, true), Error);
}

TEST_P(LlamaTest, Bfloat16IsCloseToFloat32) {
  TinyLlama exact(config(), kShape);
  TinyLlama rounded(config(), kShape, DType::kBFloat16);
  OwnedBatch tokens = batch();
  exact.llama().forward_backward(tokens.views(), 1.0f, true, true);
  rounded.llama().forward_backward(tokens.views(), 1.0f, true, true);
  EXPECT_NEAR(rounded.sum_of_losses(), exact.sum_of_losses(), 5e-3 * exact.sum_of_losses());
  for (const ParameterSpec& spec : exact.layout().specs()) {
    EXPECT_GT(cosine(rounded.gradient(spec), exact.gradient(spec), spec.numel()), 0.998) << spec.name;
  }
}

// Changing a token does not change the losses of earlier tokens or of other sequences.
TEST_P(LlamaTest, IsCausal) {
  TinyLlama model(config(), kShape);
  OwnedBatch tokens = batch();
  model.loss(tokens);
  const std::vector<float> before = model.losses();
  constexpr size_t kChanged = 5;  // Position of the changed token, in the first sequence.
  tokens.inputs()[kChanged] = (tokens.inputs()[kChanged] + 1) % static_cast<int32_t>(config().vocab_size);
  model.loss(tokens);
  const std::vector<float> after = model.losses();
  for (size_t t = 0; t < after.size(); ++t) {
    const bool own_sequence = t < static_cast<size_t>(kShape.seq_len);
    const bool own_document = !GetParam().masked || t / 4 == kChanged / 4;
    if (t < kChanged || !own_sequence || !own_document) {
      EXPECT_EQ(after[t], before[t]) << t;
    } else {
      EXPECT_NE(after[t], before[t]) << t;
    }
  }
}

TEST(Llama, LogitsAreThoseOfTheLoss) {
  constexpr BatchShape kTwoSequences{.micro_batch_size = 2, .seq_len = 7};
  std::mt19937_64 generator(1);
  TinyLlama model(tiny_config(), kTwoSequences, DType::kFloat32, LlamaMode::kInference);
  OwnedBatch tokens = OwnedBatch::random(kTwoSequences.tokens(), tiny_config().vocab_size, generator);
  model.loss(tokens);
  const std::vector<float> losses = model.losses();
  for (size_t token = 0; token < losses.size(); ++token) {
    const Tensor logits = model.llama().logits_of(static_cast<int64_t>(token), tokens.views().inputs);
    ASSERT_EQ(logits.numel(), tiny_config().vocab_size);
    const int32_t target = tokens.targets()[token];
    if (target < 0) continue;
    double total = 0;
    for (int64_t v = 0; v < logits.numel(); ++v) total += std::exp(static_cast<double>(logits.data<float>()[v]));
    const auto logit = static_cast<double>(logits.data<float>()[target]);
    EXPECT_NEAR(std::log(total) - logit, static_cast<double>(losses[token]), 1e-5) << token;
  }
}

// The warm-up runs the first block, which adds no residual, and one other block, for a first micro-batch and, if there
// are several, for a later one.
TEST(Llama, WarmsUpWithOneBlockOfEachKind) {
  ModelConfig config = tiny_config();
  config.num_layers = 7;
  TinyLlama model(config, kShape);
  OwnedBatch zeros(kShape.tokens());
  for (const bool several : {false, true}) {
    Profiler profiler(Device::kCpu);
    model.stream().set_profiler(&profiler);
    model.llama().warm_up(zeros.views(), several);
    model.stream().set_profiler(nullptr);
    auto totals = profiler.totals();
    const int64_t micro_batches = several ? 2 : 1;
    for (const char* op : {"qkv", "sdpa_forward", "sdpa_backward", "down_d_w"}) {
      EXPECT_EQ(totals[op].calls, 2 * micro_batches) << op;
    }
    EXPECT_EQ(totals["embedding_backward"].calls, micro_batches);
  }
}

TEST(Llama, ThePlanIsWhatItAllocates) {
  // The arena of TinyLlama has exactly the planned size, so the constructor would throw if the plan were too small.
  TinyLlama model(tiny_config(), kShape, DType::kBFloat16);
  Arena training(Device::kCpu);
  Arena inference(Device::kCpu);
  Stream stream = Stream::cpu();
  const ParameterLayout layout(tiny_config());
  const ShardedParameters with_gradients(layout, {}, {}, LlamaMode::kTraining, {}, training, stream);
  const ShardedParameters without(layout, {}, {}, LlamaMode::kInference, {}, inference, stream);
  EXPECT_TRUE(with_gradients.gradients().defined());
  EXPECT_FALSE(without.gradients().defined());
  EXPECT_LT(inference.used(), training.used());
}

}  // namespace
}  // namespace octavo::llama_test
