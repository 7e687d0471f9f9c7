// Statistics of the FP8 casts of a whole model, compared with its tensors and amaxes.
#include "model/linear/fp8_stats_table.h"

#include <gtest/gtest.h>

#include "model/architecture/block_spec.h"
#include "parallel/ranks/process_group.h"
#include "tests/model/llama_fixture.h"

namespace octavo::fp8_stats_table_test {
namespace {

const BatchShape kShape{.micro_batch_size = 2, .seq_len = 64};
constexpr AmaxTable::Kind kAllKinds[] = {AmaxTable::kInput, AmaxTable::kOutputGradient, AmaxTable::kWeight};

int64_t linears_per_block() { return static_cast<int64_t>(block_linears(fp8_config()).size()); }

// Returns the spec of a linear of the model.
LinearSpec spec_of(int64_t linear) {
  return block_linears(fp8_config(), kShape)[static_cast<size_t>(linear % linears_per_block())];
}

class MeasuredModel : public ::testing::Test {
 protected:
  explicit MeasuredModel(LinearPrecision recipe)
      : model_(fp8_config(), kShape, DType::kFloat32, LlamaMode::kTraining, recipe, true),
        communicator_(make_communicator(group_, model_.stream())) {}

  Fp8StatsTable& table() { return *model_.llama().fp8_stats(); }

  void micro_batch(bool first) { model_.llama().forward_backward(batch_.views(), 1.0f / 128, first, true); }

  // Runs forward and backward of a step, without the update of the weights.
  void step(int micro_batches) {
    for (int i = 0; i < micro_batches; ++i) micro_batch(i == 0);
    model_.llama().end_step({});
    model_.cast_weights();
  }
  void measured_step(int micro_batches) {
    table().begin(model_.stream());
    step(micro_batches);
    table().end(*communicator_, model_.stream());
  }

  std::vector<float> values() {
    const float* numbers = table().values().data<float>();
    return {numbers, numbers + table().values().numel()};
  }
  Fp8TensorStats stats(int64_t linear, AmaxTable::Kind kind) { return table().tensor(values(), linear, kind); }

  // Returns the master weights of all parameters of a linear, one after the other.
  std::vector<float> weight(int64_t linear) {
    std::vector<float> all;
    for (const MatrixSpec& part : spec_of(linear).matrices) {
      const ParameterSpec& spec = model_.layout().find(layer_parameter(linear / linears_per_block(), part.name));
      all.insert(all.end(), model_.master(spec), model_.master(spec) + spec.numel());
    }
    return all;
  }

  static double largest(const std::vector<float>& values) {
    double amax = 0;
    for (const float value : values) amax = std::max(amax, std::abs(static_cast<double>(value)));
    return amax;
  }

  TinyLlama model_;
  ProcessGroup group_;
  std::unique_ptr<Communicator> communicator_;
  std::mt19937_64 generator_{7};
  OwnedBatch batch_ = OwnedBatch::random(kShape.tokens(), fp8_config().vocab_size, generator_);
};

class Fp8StatsTableTest : public MeasuredModel, public ::testing::WithParamInterface<LinearPrecision> {
 protected:
  Fp8StatsTableTest() : MeasuredModel(GetParam()) {}
};
INSTANTIATE_TEST_SUITE_P(Recipes, Fp8StatsTableTest,
                         ::testing::Values(LinearPrecision::kFp8Tensorwise, LinearPrecision::kFp8Delayed,
                                           LinearPrecision::kFp8Rowwise, LinearPrecision::kFp8Blockwise));

TEST_P(Fp8StatsTableTest, EveryCastOfAStepIsCounted) {
  measured_step(3);
  ASSERT_EQ(table().linears(), 2 * linears_per_block());
  for (int64_t linear = 0; linear < table().linears(); ++linear) {
    const LinearShape shape = spec_of(linear).shape;
    EXPECT_EQ(stats(linear, AmaxTable::kInput).elements, 3 * shape.tokens * shape.in);
    EXPECT_EQ(stats(linear, AmaxTable::kOutputGradient).elements, 3 * shape.tokens * shape.out);
    EXPECT_EQ(stats(linear, AmaxTable::kWeight).elements, shape.in * shape.out);
    for (const AmaxTable::Kind kind : kAllKinds) {
      const Fp8TensorStats s = stats(linear, kind);
      EXPECT_GT(s.non_zero, 0.9 * s.elements) << linear << " " << kind;
      EXPECT_LE(s.flushed, s.non_zero);
      EXPECT_EQ(s.saturated, 0) << "scaled by its own amax";
      EXPECT_TRUE(s.amax > 0 && std::isfinite(s.amax));
      EXPECT_LE(s.smallest_scale, s.largest_scale * (1 + 1e-6));
      const double fp8_max = kind == AmaxTable::kOutputGradient ? 57344 : 448;
      const double part = s.smallest_scale * s.amax / fp8_max;  // The largest value as a part of fp8_max.
      const bool bounded = GetParam() == LinearPrecision::kFp8Tensorwise && kind == AmaxTable::kOutputGradient &&
                           traits(spec_of(linear).output_gradient).own_scale == OwnScale::kBound;
      EXPECT_NEAR(part, 1, bounded ? 0.9 : 1e-6);
      EXPECT_LE(part, 1 + 1e-6);
    }
    const double amax = largest(weight(linear));
    EXPECT_EQ(stats(linear, AmaxTable::kWeight).amax, amax);
  }
}

// A validation casts the weights that the next step then uses.
TEST_P(Fp8StatsTableTest, AStepAfterAValidationCountsItsWeightsOnce) {
  step(1);
  model_.llama().forward(batch_.views());
  measured_step(2);
  for (int64_t linear = 0; linear < table().linears(); ++linear) {
    const LinearShape shape = spec_of(linear).shape;
    EXPECT_EQ(stats(linear, AmaxTable::kWeight).elements, shape.in * shape.out) << linear;
    EXPECT_EQ(stats(linear, AmaxTable::kWeight).amax, largest(weight(linear))) << linear;
  }
}

TEST_P(Fp8StatsTableTest, NothingIsCountedOutside) {
  step(1);
  EXPECT_EQ(values(), std::vector<float>(values().size(), 0.0f));
  measured_step(1);
  const std::vector<float> measured = values();
  EXPECT_NE(measured, std::vector<float>(values().size(), 0.0f));
  step(2);
  model_.llama().forward(batch_.views());
  EXPECT_EQ(values(), measured);
  measured_step(1);
  EXPECT_EQ(stats(0, AmaxTable::kInput).elements, kShape.tokens() * 128) << "a measured step begins at zero";
  EXPECT_THROW(table().end(*communicator_, model_.stream()), Error);
}

TEST_P(Fp8StatsTableTest, LossesAndGradientsStayTheSame) {
  TinyLlama plain(fp8_config(), kShape, DType::kFloat32, LlamaMode::kTraining, GetParam());
  EXPECT_EQ(plain.llama().fp8_stats(), nullptr);
  for (const bool first : {true, false}) {
    table().begin(model_.stream());
    micro_batch(first);
    table().end(*communicator_, model_.stream());
    plain.llama().forward_backward(batch_.views(), 1.0f / 128, first, true);
    EXPECT_EQ(model_.losses(), plain.losses());
  }
  const Tensor& with = model_.parameters().gradients();
  EXPECT_EQ(std::memcmp(with.raw(), plain.parameters().gradients().raw(), static_cast<size_t>(with.bytes())), 0);
}

class DelayedStats : public MeasuredModel {
 protected:
  DelayedStats() : MeasuredModel(LinearPrecision::kFp8Delayed) {}
};

// The weights grow fourfold, and the scale of delayed scaling does not yet reflect this.
TEST_F(DelayedStats, WhatOutgrowsItsHistorySaturates) {
  step(1);
  std::vector<double> scales;
  for (int64_t linear = 0; linear < table().linears(); ++linear) scales.push_back(448.0 / largest(weight(linear)));
  for (const ParameterSpec& spec : model_.layout().specs()) {
    for (int64_t i = 0; spec.decayed() && i < spec.numel(); ++i) model_.master(spec)[i] *= 4;
  }
  measured_step(1);
  for (int64_t linear = 0; linear < table().linears(); ++linear) {
    const double scale = scales[static_cast<size_t>(linear)];
    double saturated = 0;
    double flushed = 0;
    for (const float w : weight(linear)) {
      const double scaled = std::abs(static_cast<double>(w)) * scale;
      saturated += scaled > 464 ? 1 : 0;
      flushed += w != 0 && scaled <= 0x1p-10 ? 1 : 0;
    }
    const Fp8TensorStats s = stats(linear, AmaxTable::kWeight);
    EXPECT_GT(saturated, 0.1 * s.elements);
    EXPECT_NEAR(s.saturated, saturated, 2) << "equal except for the rounding of the scale";
    EXPECT_NEAR(s.flushed, flushed, 2);
    EXPECT_NEAR(s.smallest_scale / scale, 1, 1e-6);
    EXPECT_NEAR(s.largest_scale / scale, 1, 1e-6);
    EXPECT_EQ(s.amax, largest(weight(linear)));
  }
}

}  // namespace
}  // namespace octavo::fp8_stats_table_test
