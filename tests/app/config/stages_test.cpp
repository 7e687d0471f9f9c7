#include "app/config/stages.h"

#include "app/config/config_check.h"
#include "data/mixture.h"
#include "tests/app/config/config_fixture.h"

namespace octavo {
namespace {

constexpr const char* kStages = R"(
model: {preset: llama3_8b}
data: {train: [{path: a, weight: 0.7}, {path: b, weight: 0.3}], seq_len: 64}
training: {global_batch_size: 8, batch_size_warmup: [{batch_size: 4, steps: 5}]}
optimizer: {lr: 1.0e-3, schedule: cosine, warmup_steps: 4, min_lr_ratio: 0.1}
stages:
  - {steps: 10}
  - {steps: 20, data: {train: [{path: c}, {path: b}]}, training: {global_batch_size: 16, micro_batch_size: 2}}
  - {steps: 10, data: {seq_len: 127, train: [a, b]}, optimizer: {lr: 5.0e-4, schedule: linear, min_lr_ratio: 0}}
)";

class StagesTest : public ConfigTest {
 protected:
  StageConfig stage(size_t i) { return stage_configs(load(kStages)).at(i); }
};

TEST_F(StagesTest, EachBeginsWhereTheOneBeforeEnds) {
  const Config config = load(kStages);
  EXPECT_EQ(config.training.steps, 40);
  EXPECT_EQ(stage_configs(config).size(), 3u);
  const int64_t ends[] = {10, 30, 40};
  const int64_t samples[] = {0, 5 * 4 + 5 * 8, 60 + 20 * 16};
  for (size_t i = 0; i < 3; ++i) {
    const StageConfig of_stage = stage(i);
    EXPECT_EQ(of_stage.stage.number, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(of_stage.training.steps, ends[i]);
    EXPECT_EQ(of_stage.stage.run_steps, 40);
    EXPECT_EQ(of_stage.data.origin.sample, samples[i]);
    validate_stage(of_stage, 2);
  }
  EXPECT_EQ(stage(0).data.seq_len, 64);
  EXPECT_EQ(stage(1).training.micro_batch_size, 2);
  EXPECT_EQ(stage(2).training.global_batch_size, 8);
  EXPECT_EQ(stage(2).stage.later_tokens, 0);
  EXPECT_EQ(stage(0).stage.later_tokens, 20 * 16 * 64 + 10 * 8 * 127);
  for (const auto& [step, expected] : {std::pair{1, 0}, {10, 0}, {11, 1}, {30, 1}, {31, 2}, {99, 2}})
    EXPECT_EQ(stage_of_step(config, step), static_cast<size_t>(expected)) << step;
}

// The skipped samples of a stage move the beginning of the next one. Their windows count as taken.
TEST_F(StagesTest, SkippedSamplesMoveTheNextStage) {
  const std::string stages =
      "model: {preset: llama3_8b}\ndata: {train: [{path: a}], skip: [[0, 20], [30, 32], [70, 90], [500, 600]]}\n"
      "training: {global_batch_size: 6}\nstages: [{steps: 10}, {steps: 10}, {steps: 1}]\n";
  const std::vector<StageConfig> all = stage_configs(load(stages));
  EXPECT_EQ(all[1].data.origin.sample, 102);  // 60 of the samples 20 to 29, 32 to 69 and 90 to 101.
  EXPECT_EQ(all[1].data.origin.datasets[0].windows, 102);
  EXPECT_EQ(all[2].data.origin.sample, 162);
  // The last stage begins where the samples end, even if the next ones are skipped.
  const std::vector<StageConfig> rolled_back = stage_configs(load(stages), {{100, 110}, {172, 180}});
  EXPECT_EQ(rolled_back[1].data.origin.sample, 112);
  EXPECT_EQ(rolled_back[2].data.origin.sample, 172);
}

TEST_F(StagesTest, ADatasetContinuesWhereAnEarlierStageStopped) {
  const std::vector<DatasetOrigin> second = stage(1).data.origin.datasets;
  EXPECT_EQ(second, (std::vector<DatasetOrigin>{{.id = 2, .windows = 0}, {.id = 1, .windows = 18}}));
  // After those 18 windows, the stage draws 160 windows of 65 tokens. They are counted in windows of 128 tokens.
  const std::vector<DatasetOrigin> third = stage(2).data.origin.datasets;
  EXPECT_EQ(third[0], (DatasetOrigin{.id = 0, .windows = (42 * 65 + 127) / 128}));
  EXPECT_EQ(third[1], (DatasetOrigin{.id = 1, .windows = (178 * 65 + 127) / 128}));
}

// The estimated windows of a dataset are never fewer than the mixture's, and at most two more.
TEST_F(StagesTest, DrawsAreThoseOfTheMixture) {
  for (const int64_t steps : {1, 7, 12, 33}) {
    const Config config = load(fmt::format(R"(
model: {{preset: llama3_8b}}
data: {{train: [{{path: a, weight: 0.5}}, {{path: b, weight: 0.31}}, {{path: c, weight: 0.19}}]}}
training: {{global_batch_size: 1}}
stages: [{{steps: {}}}, {{steps: 1}}]
)",
                                           steps));
    Mixture mixture(integer_weights(std::vector{0.5, 0.31, 0.19}));
    mixture.seek(steps);
    const std::vector<DatasetOrigin> origins = stage_configs(config)[1].data.origin.datasets;
    for (size_t d = 0; d < 3; ++d) {
      const int64_t taken = mixture.taken(static_cast<int64_t>(d));
      EXPECT_GE(origins[d].windows, taken) << steps;
      EXPECT_LE(origins[d].windows, taken + 2) << steps;
    }
  }
}

TEST_F(StagesTest, LearningRates) {
  const OptimizerConfig whole = load(kStages).optimizer;
  for (const int64_t step : {1, 4, 5, 10}) EXPECT_EQ(stage(0).learning_rate(step), learning_rate(whole, step, 40));
  for (const int64_t step : {11, 30}) EXPECT_EQ(stage(1).learning_rate(step), learning_rate(whole, step, 40));
  // The third stage has its own schedule without a warm-up.
  EXPECT_DOUBLE_EQ(stage(2).learning_rate(31), 5e-4 * 0.9);
  EXPECT_DOUBLE_EQ(stage(2).learning_rate(40), 0);
}

TEST_F(StagesTest, AreWrittenAsTheyAreRead) {
  const Config config = load(kStages);
  EXPECT_EQ(to_json(load(to_yaml(config))), to_json(config)) << to_yaml(config);
}

TEST_F(StagesTest, WhatIsWrongIsRefusedByName) {
  const auto with = [](const std::string& stages) {
    return fmt::format("model: {{preset: llama3_8b}}\nstages: {}\n", stages);
  };
  expect_error(with("[{steps: 5, data: {seqlen: 3}}]"), {"unknown key stages.data.seqlen", "stages.data.seq_len"});
  expect_error(with("[{steps: 5, model: {}}]"), {"unknown key stages.model"});
  expect_error(with("[{data: {seq_len: 3}}]"), {"stages is a map", "expected a map that includes steps"});
  expect_error(with("[{steps: 0}]"), {"stages.steps is '0'"});
  expect_error(with("[{steps: 5, data: {seq_len: x}}]"), {"stages.data.seq_len is 'x'"});
  expect_error(with("[{steps: 5, optimizer: cosine}]"), {"stages.optimizer is 'cosine'"});
  expect_error(with("{steps: 5}"), {"stages is a map"});
  expect_error(with("[{steps: 5}, {steps: 6}]\ntraining: {steps: 12}"), {"training.steps is 12", "11 steps together"});
  expect_error(with("[{steps: 5, data: {train: [{weight: 1}]}}]"), {"stages.data.train", "a path in every dataset"});
  const std::string stages =
      with("[{steps: 5, data: {train: [a]}}, {steps: 6, training: {global_batch_size: 7}, data: {train: [a]}}]");
  expect_mentions(error_of(stages, {}, [](const Config& config) { validate(config, 2); }),
                  {"stage 2: training.global_batch_size is 7"});
}

}  // namespace
}  // namespace octavo
