// Tests of FP8 recipes in the whole model, compared with float32 and with other ways to run the same step, and of a
// layer that gets cast operands, compared with one that casts them itself.
#include <gtest/gtest.h>

#include "tests/kernels/op_fixture.h"
#include "tests/model/llama_fixture.h"

namespace octavo::fp8_test {
namespace {

const BatchShape kShape{.micro_batch_size = 2, .seq_len = 64};

// Makes the weights so small that rounding errors do not grow from layer to layer, as in a trained model.
void calm(TinyLlama& model) {
  for (const ParameterSpec& spec : model.layout().specs()) {
    if (!spec.decayed()) continue;
    for (int64_t i = 0; i < spec.numel(); ++i) model.master(spec)[i] *= 0.25f;
  }
  model.cast_weights();
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

// Tests lm_head in FP8 with linears in the compute dtype and in FP8.
class LmHeadTest : public ::testing::TestWithParam<std::tuple<LmHeadPrecision, LinearPrecision, bool>> {
 protected:
  LmHeadPrecision lm_head() const { return std::get<LmHeadPrecision>(GetParam()); }
  LlamaOptions options(LmHeadPrecision head, LlamaMode mode = LlamaMode::kTraining) const {
    ModelConfig config = fp8_config();
    config.vocab_size = 80;
    config.tie_word_embeddings = std::get<bool>(GetParam());
    return {.config = config,
            .shape = kShape,
            .precision = {.compute = DType::kFloat32, .linear = std::get<LinearPrecision>(GetParam()), .lm_head = head},
            .mode = mode};
  }
  OwnedBatch batch() const {
    std::mt19937_64 generator(7);
    return OwnedBatch::random(kShape.tokens(), 80, generator);
  }
};

TEST_P(LmHeadTest, LossAndGradientsAreCloseToThoseWithout) {
  TinyLlama exact(options(LmHeadPrecision::kBFloat16));
  TinyLlama fp8(options(lm_head()));
  calm(exact);
  calm(fp8);
  OwnedBatch tokens = batch();
  exact.llama().forward_backward(tokens.views(), 1.0f / 128, true, true);
  fp8.llama().forward_backward(tokens.views(), 1.0f / 128, true, true);
  EXPECT_EQ(fp8.losses() == exact.losses(), lm_head() == LmHeadPrecision::kFp8Backward);
  EXPECT_NEAR(fp8.sum_of_losses(), exact.sum_of_losses(), 0.01 * exact.sum_of_losses());
  // FP8 linears round differently in the two models.
  const bool fp8_linears = is_fp8(std::get<LinearPrecision>(GetParam()));
  for (const ParameterSpec& spec : exact.layout().specs()) {
    const double agreement = cosine(fp8.gradient(spec), exact.gradient(spec), spec.numel());
    EXPECT_GE(agreement, fp8_linears ? 0.97 : 0.99) << spec.name;
    EXPECT_LT(agreement, 1 - 1e-6) << spec.name;
  }
}

// Gradients accumulate over several micro-batches, and a repeated step gives equal results.
TEST_P(LmHeadTest, GradientsAccumulate) {
  TinyLlama once(options(lm_head()));
  TinyLlama twice(options(lm_head()));
  OwnedBatch tokens = batch();
  once.llama().forward_backward(tokens.views(), 1.0f / 64, true, true);
  twice.llama().forward_backward(tokens.views(), 1.0f / 128, true, false);
  twice.llama().forward_backward(tokens.views(), 1.0f / 128, false, true);
  for (const ParameterSpec& spec : once.layout().specs()) {
    EXPECT_LT(relative_error(twice.gradient(spec), once.gradient(spec), spec.numel()), 1e-6) << spec.name;
  }
}

TEST_P(LmHeadTest, InferenceGivesTheLossesOfTraining) {
  TinyLlama training(options(lm_head()));
  TinyLlama inference(options(lm_head(), LlamaMode::kInference));
  OwnedBatch tokens = batch();
  training.llama().forward_backward(tokens.views(), 1.0f, true, true);
  inference.llama().forward(tokens.views());
  EXPECT_EQ(training.losses(), inference.losses());
}

INSTANTIATE_TEST_SUITE_P(Precisions, LmHeadTest,
                         ::testing::Combine(::testing::Values(LmHeadPrecision::kFp8Backward, LmHeadPrecision::kFp8),
                                            ::testing::Values(LinearPrecision::kBFloat16,
                                                              LinearPrecision::kFp8Tensorwise,
                                                              LinearPrecision::kFp8Delayed),
                                            ::testing::Bool()));

// A linear layer on the CPU. With delayed scaling its amax history is not empty.
class OneLinear {
 public:
  // `producer` is the producer of both x and d_y.
  OneLinear(LinearPrecision recipe, Producer producer)
      : precision_{.linear = recipe},
        weight_rows_(
            allocate_operand("weight", DType::kFloat8E4M3, traits(recipe).weights, kLinear.out, kLinear.in, arena_)),
        weight_columns_(allocate_operand("weight transposed", DType::kFloat8E4M3, traits(recipe).weights, kLinear.in,
                                         kLinear.out, arena_)),
        amaxes_(precision_, 1, arena_),
        scratch_(std::array{LinearSpec{.shape = kLinear}}, precision_, alone_, arena_),
        layer_({.recipe = recipe,
                .precision = precision_,
                .spec = {.shape = kLinear, .input = producer, .output_gradient = producer},
                .weight = {.value = {}, .rows = weight_rows_, .columns = weight_columns_},
                .gradient = gradient,
                .amaxes = &amaxes_,
                .stats = nullptr,
                .index = 0,
                .scratch = &scratch_,
                .tensor = nullptr}),
        activations_(layer_.make_activations(0, {}, nullptr, arena_)) {
    reserve();
    Array weight(DType::kFloat32, {kLinear.out, kLinear.in});
    for (int64_t i = 0; i < weight.size(); ++i) weight.set(i, std::sin(static_cast<double>(i)));
    Array amax(DType::kFloat32, {1});
    amax.set(0, 1.0);
    quantize({.cast = {.rows = weight_rows_, .columns = weight_columns_, .amax = amax}, .x = weight}, stream);
    if (amaxes_.history().defined()) {
      for (int64_t i = 0; i < AmaxTable::kKinds; ++i) amaxes_.history().data<float>()[i] = 1.5f;
      amaxes_.restore(stream);
    }
  }

  // Runs forward and backward of random x and d_y. If their producers cast them, they are then filled with NaN.
  void run() {
    Array x = values(kLinear.in, 0.3);
    Array d_y = values(kLinear.out, 0.7);
    const LinearActivations& a = activations_;
    quantize_away(layer_.input_work(a).cast, x);
    layer_.forward(a, {.y = y, .x = x}, stream);
    quantize_away(layer_.gradient_work(a).cast, d_y);
    layer_.backward(a, {.d_x = d_x, .d_y = d_y, .x = x}, stream);
  }

  static constexpr LinearShape kLinear{.tokens = 128, .in = 256, .out = 384};
  Stream stream = Stream::cpu();
  Array y{DType::kFloat32, {kLinear.tokens, kLinear.out}};
  Array d_x{DType::kFloat32, {kLinear.tokens, kLinear.in}};
  Array gradient{DType::kFloat32, {kLinear.out, kLinear.in}};

 private:
  void reserve() {
    workspace_.resize(
        static_cast<size_t>(LinearLayer::workspace_bytes(precision_.linear, kLinear, DType::kFloat32, stream)));
    stream.set_workspace(Tensor(workspace_.data(), DType::kUInt8, {static_cast<int64_t>(workspace_.size())}));
  }
  static Array values(int64_t width, double step) {
    Array array(DType::kFloat32, {kLinear.tokens, width});
    for (int64_t i = 0; i < array.size(); ++i) array.set(i, std::cos(step * static_cast<double>(i)));
    return array;
  }
  void quantize_away(const Fp8Cast& cast, Array& x) {
    if (!cast.defined()) return;
    quantize({.cast = cast, .x = x}, stream);
    x.fill(std::nan(""));
  }

  PrecisionConfig precision_;
  Arena arena_{Device::kCpu, 4 << 20};
  Fp8Operand weight_rows_;
  Fp8Operand weight_columns_;
  AmaxTable amaxes_;
  TensorGroup alone_{nullptr, kLinear.tokens, stream};
  LinearScratch scratch_;
  LinearLayer layer_;
  LinearActivations activations_;
  std::vector<char> workspace_;
};

TEST(LinearLayer, TakesOperandsThatTheirKernelsCast) {
  for (const LinearPrecision recipe : {LinearPrecision::kFp8Delayed, LinearPrecision::kFp8Blockwise}) {
    OneLinear cast_within(recipe, Producer::kAttention);
    OneLinear cast_before(recipe, Producer::kSwiglu);
    cast_within.run();
    cast_before.run();
    EXPECT_TRUE(std::isfinite(cast_within.y.at(0)));
    EXPECT_EQ(cast_before.y.bits(), cast_within.y.bits());
    EXPECT_EQ(cast_before.d_x.bits(), cast_within.d_x.bits());
    EXPECT_EQ(cast_before.gradient.bits(), cast_within.gradient.bits());
  }
}

// A step that is skipped, or that has no gradients because all of its targets are masked, does not enter the amax
// history.
TEST(AmaxTable, ScalesByTheHistoryOnceItHoldsGradients) {
  constexpr int64_t kLinears = 2;
  const PrecisionConfig precision{.linear = LinearPrecision::kFp8Delayed, .amax_history = 2};
  Arena arena(Device::kCpu, 1 << 12);
  AmaxTable table(precision, kLinears, arena);
  Stream stream = Stream::cpu();
  const auto take_step = [&](float input, float gradient, float skip, float weight = 1) {
    table.begin_micro_batch(true, 0, stream);
    table.current(1, AmaxTable::kInput).data<float>()[0] = input;
    table.current(1, AmaxTable::kOutputGradient).data<float>()[0] = gradient;
    table.current(1, AmaxTable::kWeight).data<float>()[0] = weight;
    table.current(0, AmaxTable::kWeight).data<float>()[0] = 1;  // Linear 0 has a weight, but is not in FP8.
    table.end_step(Tensor(&skip, DType::kFloat32, {1}), nullptr, stream);
    return table.uses_history();
  };
  EXPECT_FALSE(take_step(5, 7, 1)) << "skipped";
  EXPECT_FALSE(take_step(3, 0, 0)) << "without gradients";
  table.restore(stream);
  EXPECT_FALSE(table.uses_history()) << "a checkpoint of steps without gradients has no history";
  EXPECT_FALSE(take_step(2, 0.5f, 0, 0)) << "the weight is still zero";
  EXPECT_FALSE(take_step(0, 0.5f, 0)) << "the input is still zero";
  EXPECT_TRUE(take_step(2, 0.25f, 0));
  EXPECT_EQ(table.scaling(1, AmaxTable::kInput).data<float>()[0], 2);
  EXPECT_EQ(table.scaling(1, AmaxTable::kOutputGradient).data<float>()[0], 0.25f);
  EXPECT_TRUE(take_step(1, 8, 1)) << "skipped with a history";
  EXPECT_EQ(table.scaling(1, AmaxTable::kOutputGradient).data<float>()[0], 0.25f);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(take_step(1, 0, 0)) << "without gradients, longer than the history";
  EXPECT_EQ(table.scaling(1, AmaxTable::kOutputGradient).data<float>()[0], 0.25f) << "a known amax stays known";
  EXPECT_EQ(table.scaling(1, AmaxTable::kInput).data<float>()[0], 1);
}

// The outputs of a block begin as zeros, as in LLaMA Pro and in muP. The gradients of qkv and gate_up are zero in the
// first step, and the outputs have their first amax in the second one. FP8 rounds all of them to zero if its scale
// is 1.
TEST(AmaxTable, MeasuresTheFirstAmaxOfWeightsThatWereZero) {
  TinyLlama exact(fp8_config(), kShape);
  TinyLlama delayed(fp8_config(), kShape, DType::kFloat32, LlamaMode::kTraining, LinearPrecision::kFp8Delayed);
  std::mt19937_64 generator(7);
  OwnedBatch batch = OwnedBatch::random(kShape.tokens(), fp8_config().vocab_size, generator);
  for (const float size : {0.0f, 1e-5f}) {
    for (TinyLlama* model : {&exact, &delayed}) {
      for (const ParameterSpec& spec : model->layout().specs()) {
        if (!spec.name.ends_with("o_proj.weight") && !spec.name.ends_with("down_proj.weight")) continue;
        for (int64_t i = 0; i < spec.numel(); ++i) model->master(spec)[i] = size * std::sin(static_cast<float>(i));
      }
      model->cast_weights();
      model->llama().forward_backward(batch.views(), 1.0f / 128, true, true);
      model->llama().end_step({});
    }
    for (const ParameterSpec& spec : exact.layout().specs()) {
      if (size == 0) continue;
      EXPECT_GE(cosine(delayed.gradient(spec), exact.gradient(spec), spec.numel()), 0.9) << spec.name;
    }
  }
}

}  // namespace
}  // namespace octavo::fp8_test
