// Tests on every available device that all modes of activation checkpointing give losses and gradients with equal bits,
// and that they use less memory.
#include <gtest/gtest.h>

#include <cstring>

#include "app/resolve/resolve.h"
#include "app/run/weights.h"

namespace octavo {
namespace {

using CheckpointingMode = ActivationCheckpointing::Mode;

struct DeviceCase {
  const char* name;
  DeviceChoice device;
};

struct Outcome {
  std::vector<float> numbers;  // Losses and gradients of every step.
  int64_t bytes = 0;
};

Config config_of(DeviceChoice device, LinearPrecision linear, const ActivationCheckpointing& checkpointing) {
  Config config;
  // The CPU emulates FP8 slowly, so its model is smaller.
  const int64_t size = device == DeviceChoice::kCpu ? 1 : 2;
  config.model = {.hidden_size = 128 * size,
                  .intermediate_size = 256 * size,
                  .num_layers = 4,
                  .num_heads = 2 * size,
                  .num_kv_heads = size,
                  .head_dim = 64,
                  .vocab_size = 272,
                  .rope_scaling = std::nullopt};
  config.data.seq_len = 128;
  config.training.global_batch_size = 4;
  config.training.micro_batch_size = 2;
  config.training.deterministic = true;
  config.precision.linear = linear;
  config.precision.compute = DType::kBFloat16;
  config.compute_given = true;
  config.activation_checkpointing = checkpointing;
  config.device = device;
  return config;
}

void append(const Tensor& tensor, Stream& stream, std::vector<float>& numbers) {
  std::vector<float> host(static_cast<size_t>(tensor.numel()));
  stream.copy(host.data(), tensor.raw(), tensor.bytes());
  stream.synchronize();
  numbers.insert(numbers.end(), host.begin(), host.end());
}

// Trains two steps, so that delayed scaling has a history in the second one.
Outcome train(Config config) {
  ProcessGroup group;
  const Setting setting = observe_setting(config, group);
  config = setting.run;
  Runtime runtime(setting, group);
  Stream& stream = runtime.stream();
  const Job job = draft(StageConfig(config), setting.place, setting.mesh);
  Outcome outcome;
  outcome.bytes = plan_training(job, runtime.mesh()).used();
  Arena arena(stream.device(), outcome.bytes);
  TrainingState state(job, runtime.mesh(), arena);
  load_initial_weights(config, nullptr, state.parameters, stream);
  cast_weights(state);
  Batch batch;
  for (int32_t i = 0; i < 4 * 128; ++i) {
    batch.inputs.push_back(i * 37 % 256);
    batch.targets.push_back(i * 53 % 256);
  }
  for (int32_t i = 0; i < 4 * 128; ++i) batch.document_start.push_back(i % 128 / 43 * 43);
  state.batch.upload(batch);
  for (int64_t step = 1; step <= 2; ++step) {
    training_step(state, {.number = step, .lr = 1e-3, .targets = 4 * 128});
    append(state.loss, stream, outcome.numbers);
    append(state.model.losses(), stream, outcome.numbers);
    append(state.parameters.gradients(), stream, outcome.numbers);
  }
  return outcome;
}

class CheckpointingTest : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    if (GetParam().device == DeviceChoice::kCuda && cuda_device_count() == 0) GTEST_SKIP() << "needs a GPU";
  }

  static void expect_same_bits(LinearPrecision linear, bool document_mask,
                               LmHeadPrecision lm_head = LmHeadPrecision::kBFloat16) {
    SCOPED_TRACE(static_cast<int>(linear));
    Config config = config_of(GetParam().device, linear, {.mode = CheckpointingMode::kNone});
    config.data.document_mask = document_mask;
    config.precision.lm_head = lm_head;
    const Outcome kept = train(config);
    for (const ActivationCheckpointing& checkpointing :
         {ActivationCheckpointing{.mode = CheckpointingMode::kBlock, .ratio = 0.5},
          ActivationCheckpointing{.mode = CheckpointingMode::kSelective},
          ActivationCheckpointing{.mode = CheckpointingMode::kFull}}) {
      config.activation_checkpointing = checkpointing;
      const Outcome made_again = train(config);
      ASSERT_EQ(made_again.numbers.size(), kept.numbers.size());
      EXPECT_EQ(std::memcmp(made_again.numbers.data(), kept.numbers.data(), kept.numbers.size() * sizeof(float)), 0)
          << static_cast<int>(checkpointing.mode);
      EXPECT_LT(made_again.bytes, kept.bytes) << static_cast<int>(checkpointing.mode);
    }
  }
};

TEST_P(CheckpointingTest, ModesGiveTheSameBits) {
  for (const LinearPrecision linear :
       {LinearPrecision::kBFloat16, LinearPrecision::kFp8Tensorwise, LinearPrecision::kFp8Delayed,
        LinearPrecision::kFp8Rowwise, LinearPrecision::kFp8Blockwise}) {
    expect_same_bits(linear, false);
  }
}

TEST_P(CheckpointingTest, ModesGiveTheSameBitsWithAnFp8Head) {
  expect_same_bits(LinearPrecision::kBFloat16, false, LmHeadPrecision::kFp8Backward);
  expect_same_bits(LinearPrecision::kFp8Delayed, false, LmHeadPrecision::kFp8);
}

TEST_P(CheckpointingTest, ModesGiveTheSameBitsWithinDocuments) {
  expect_same_bits(LinearPrecision::kBFloat16, true);
  expect_same_bits(LinearPrecision::kFp8Delayed, true);
}

INSTANTIATE_TEST_SUITE_P(Devices, CheckpointingTest,
                         ::testing::Values(DeviceCase{"cpu", DeviceChoice::kCpu},
                                           DeviceCase{"gpu", DeviceChoice::kCuda}),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace octavo
