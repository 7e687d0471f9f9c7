#include "model/optimizer/optimizer.h"

#include "tests/kernels/op_fixture.h"
#include "tests/model/llama_fixture.h"

namespace octavo::optimizer_test {
namespace {

struct Variant {
  const char* name;
  double grad_clip;
  DType state_dtype;
  DType compute;
};

class OptimizerTest : public ::testing::TestWithParam<Variant> {};

INSTANTIATE_TEST_SUITE_P(Variants, OptimizerTest,
                         ::testing::Values(Variant{"clipped", 1.0, DType::kFloat32, DType::kFloat32},
                                           Variant{"far_below_the_clip", 1e9, DType::kFloat32, DType::kFloat32},
                                           Variant{"without_clip", 0.0, DType::kFloat32, DType::kBFloat16},
                                           Variant{"bfloat16_moments", 1.0, DType::kBFloat16, DType::kBFloat16},
                                           Variant{"float8_moments", 1.0, DType::kFloat8E4M3, DType::kBFloat16}),
                         [](const auto& instance) { return std::string(instance.param.name); });

// AdamW in float64 for one parameter.
struct Reference {
  Values w, m, v;

  void step(const OptimizerConfig& o, const float* grad, double norm, double lr, int step, bool decayed) {
    const double clip = o.grad_clip > 0 ? std::min(1.0, o.grad_clip / (norm + 1e-6)) : 1.0;
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = clip * static_cast<double>(grad[i]);
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
      const double update =
          m[i] / (1 - std::pow(o.beta1, step)) / (std::sqrt(v[i] / (1 - std::pow(o.beta2, step))) + o.eps);
      w[i] -= lr * (update + (decayed ? o.weight_decay * w[i] : 0.0));
    }
  }
};

TEST_P(OptimizerTest, StepsAgreeWithFloat64) {
  OptimizerConfig config;
  config.grad_clip = GetParam().grad_clip;
  config.state_dtype = GetParam().state_dtype;
  config.beta1 = 0.8;
  config.beta2 = 0.9;
  config.eps = 1e-3;
  config.weight_decay = 0.2;
  const ParameterLayout layout(tiny_config());
  Arena arena(Device::kCpu, 1 << 20);
  Stream stream = Stream::cpu();
  ShardedParameters parameters(layout, {.compute = GetParam().compute}, {}, LlamaMode::kTraining, {}, arena, stream);
  Optimizer optimizer(config, parameters, nullptr, arena);

  std::mt19937_64 generator(3);
  std::normal_distribution<float> normal;
  std::vector<Reference> expected;
  std::vector<Values> start;
  for (const ParameterSpec& spec : layout.specs()) {
    float* weights = parameters.master().data<float>() + spec.offset;
    for (int64_t i = 0; i < spec.numel(); ++i) weights[i] = normal(generator);
    start.emplace_back(weights, weights + spec.numel());
    const Values zero(start.back().size());
    expected.push_back({start.back(), zero, zero});
  }

  for (int step = 1; step <= 3; ++step) {
    double squares = 0;
    for (const ParameterSpec& spec : layout.specs()) {
      float* grad = parameters.gradients().data<float>() + spec.offset;
      for (int64_t i = 0; i < spec.numel(); ++i) {
        grad[i] = normal(generator);
        squares += static_cast<double>(grad[i]) * static_cast<double>(grad[i]);
      }
    }
    const double lr = 0.01 * step;
    optimizer.measure_gradients(stream);
    optimizer.step(step, lr, {}, stream);
    EXPECT_NEAR(static_cast<double>(optimizer.grad_sum_of_squares().data<float>()[0]), squares, 1e-6 * squares);
    for (size_t p = 0; p < expected.size(); ++p) {
      const ParameterSpec& spec = layout.specs()[p];
      expected[p].step(config, parameters.gradients().data<float>() + spec.offset, std::sqrt(squares), lr, step,
                       spec.shape.size() == 2);
    }
  }

  // Each of three steps rounds bfloat16 moments by up to 2^-8, in either direction. The first step rounds moments in 8
  // bits by up to 2^-3.
  const DType kept = GetParam().state_dtype;
  const double tolerance = kept == DType::kFloat8E4M3 ? 0x1p-4 : kept == DType::kBFloat16 ? 0x1p-8 : 2e-5;
  Values master(static_cast<size_t>(layout.units().back().end));
  for (size_t p = 0; p < expected.size(); ++p) {
    const ParameterSpec& spec = layout.specs()[p];
    const float* weights = parameters.master().data<float>() + spec.offset;
    Values update(weights, weights + spec.numel());
    Values expected_update = expected[p].w;
    for (size_t i = 0; i < update.size(); ++i) {
      master[static_cast<size_t>(spec.offset) + i] = update[i];
      update[i] -= start[p][i];
      expected_update[i] -= start[p][i];
    }
    EXPECT_LT(relative_error(update, expected_update), tolerance) << spec.name;
  }

  EXPECT_EQ(optimizer.states()[0].shards.dtype(), kept);
  EXPECT_EQ(optimizer.states()[1].shards.dtype(), kept == DType::kFloat8E4M3 ? DType::kBFloat16 : kept);
  for (int64_t i = 0; i < layout.units().back().end; ++i) {
    const float weight = parameters.master().data<float>()[i];
    ASSERT_EQ(static_cast<double>(weight), master[static_cast<size_t>(i)]) << "padding stays zero";
  }
  if (GetParam().compute != DType::kBFloat16) return;
  for (const ParameterSlice& slice : parameters.slices()) {
    for (int64_t i = 0; i < slice.end - slice.begin; ++i) {
      const BFloat16 weight = parameters.weight(slice).data<BFloat16>()[i];
      ASSERT_EQ(weight.bits, BFloat16(parameters.master(slice).data<float>()[i]).bits) << "compute weights follow";
    }
  }
}

// After each update ema = d ema + (1 - d) w, starting from the initial weights. A skipped step does not change it.
TEST(OptimizerEmaTest, FollowsTheWeights) {
  OptimizerConfig config;
  config.ema_decay = 0.75;
  const ParameterLayout layout(tiny_config());
  Arena arena(Device::kCpu, 1 << 20);
  Stream stream = Stream::cpu();
  ShardedParameters parameters(layout, {.compute = DType::kFloat32}, {}, LlamaMode::kTraining, {}, arena, stream);
  Optimizer optimizer(config, parameters, nullptr, arena);
  const OptimizerState& ema = optimizer.states().back();
  ASSERT_STREQ(ema.name, "ema");
  const Tensor skip = arena.allocate("skip", DType::kFloat32, {1});

  std::mt19937_64 generator(5);
  std::normal_distribution<float> normal;
  const auto fill = [&](const Tensor& flat) {
    for (const ParameterSpec& spec : layout.specs()) {
      float* values = flat.data<float>() + spec.offset;
      for (int64_t i = 0; i < spec.numel(); ++i) values[i] = normal(generator);
    }
  };
  const auto values = [](const Tensor& flat) { return Values(flat.data<float>(), flat.data<float>() + flat.numel()); };
  fill(parameters.master());
  // States of an earlier run.
  fill(optimizer.states().front().shards);
  optimizer.begin(stream);
  Values expected = values(parameters.master());
  EXPECT_EQ(values(ema.shards), expected);
  EXPECT_EQ(values(optimizer.states().front().shards), Values(expected.size()));
  for (int step = 1; step <= 4; ++step) {
    fill(parameters.gradients());
    skip.data<float>()[0] = step == 3 ? 1.0f : 0.0f;
    optimizer.measure_gradients(stream);
    optimizer.step(step, 0.1, skip, stream);
    const Values weights = values(parameters.master());
    for (size_t i = 0; step != 3 && i < expected.size(); ++i) expected[i] = 0.75 * expected[i] + 0.25 * weights[i];
    EXPECT_LT(relative_error(values(ema.shards), expected), 1e-6) << "step " << step;
  }
}

TEST(OptimizerEmaTest, CostsNothingWithoutIt) {
  const ParameterLayout layout(tiny_config());
  Stream stream = Stream::cpu();
  const auto bytes = [&](double decay) {
    Arena plan(Device::kCpu);
    ShardedParameters parameters(layout, {.compute = DType::kFloat32}, {}, LlamaMode::kTraining, {}, plan, stream);
    OptimizerConfig config;
    config.ema_decay = decay;
    const int64_t before = plan.used();
    const Optimizer optimizer(config, parameters, nullptr, plan);
    return plan.used() - before;
  };
  const int64_t average = layout.units().back().end * dtype_bytes(DType::kFloat32);
  EXPECT_EQ(bytes(0.9) - bytes(0), average);
}

}  // namespace
}  // namespace octavo::optimizer_test
