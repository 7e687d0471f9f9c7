#include "model/parameters/pipeline_stages.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace octavo::pipeline_stages_test {
namespace {

// A model whose lm_head has `head_blocks` times the weights of a block, 256.
ModelConfig model_of(int64_t layers, double head_blocks) {
  return {.hidden_size = 4,
          .intermediate_size = 16,
          .num_layers = layers,
          .num_heads = 4,
          .num_kv_heads = 4,
          .head_dim = 1,
          .vocab_size = static_cast<int64_t>(64 * head_blocks),
          .rope_theta = 1e4,
          .rope_scaling = std::nullopt};
}

std::vector<int64_t> blocks_of(const ModelConfig& model, const ParallelConfig& parallel, int64_t stages) {
  std::vector<int64_t> counts;
  int64_t begin = 0;
  for (const LayerRange& range : pipeline_stages(model, parallel, stages)) {
    EXPECT_EQ(range.begin, begin);
    begin = range.end;
    counts.push_back(range.end - range.begin);
  }
  EXPECT_EQ(begin, model.num_layers);
  return counts;
}

using Counts = std::vector<int64_t>;

TEST(PipelineStages, EqualOnesAreFound) {
  const std::vector<LayerRange> stages = {{0, 2}, {2, 4}, {4, 6}, {6, 8}};
  using Mode = ActivationCheckpointing::Mode;
  const auto equal = [&](const PrecisionConfig& precision, const ActivationCheckpointing& checkpointing) {
    return first_equal_stages(stages, model_of(8, 1), precision, checkpointing);
  };
  using Numbers = std::vector<size_t>;
  EXPECT_EQ(equal({}, {.mode = Mode::kFull}), (Numbers{0, 1, 1, 3}));
  EXPECT_EQ(equal({.linear = LinearPrecision::kFp8Tensorwise, .bf16_first_layers = 3}, {.mode = Mode::kFull}),
            (Numbers{0, 1, 2, 3}));
  // Blocks 2, 5 and 7 are recomputed.
  EXPECT_EQ(equal({}, {.mode = Mode::kBlock, .ratio = 0.375}), (Numbers{0, 1, 2, 3}));
}

TEST(PipelineStages, HaveAboutEqualWork) {
  EXPECT_EQ(blocks_of(model_of(8, 0.25), {}, 1), (Counts{8}));
  EXPECT_EQ(blocks_of(model_of(8, 0.25), {}, 4), (Counts{2, 2, 2, 2}));
  EXPECT_EQ(blocks_of(model_of(9, 1), {}, 2), (Counts{5, 4}));
  EXPECT_EQ(blocks_of(model_of(8, 3), {}, 2), (Counts{5, 3}));
  EXPECT_EQ(blocks_of(model_of(4, 50), {}, 3), (Counts{1, 2, 1}));
  EXPECT_EQ(blocks_of(model_of(5, 0.5), {}, 3), (Counts{2, 2, 1}));
  EXPECT_EQ(blocks_of(model_of(3, 1), {}, 3), (Counts{1, 1, 1}));
}

TEST(PipelineStages, OfTheConfig) {
  EXPECT_EQ(blocks_of(model_of(6, 1), {.pipeline_layers = {1, 4, 1}}, 3), (Counts{1, 4, 1}));
}

void expect_refused(const ModelConfig& model, const ParallelConfig& parallel, int64_t stages, const char* message) {
  try {
    (void)pipeline_stages(model, parallel, stages);
    FAIL() << "expected: " << message;
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
  }
}

TEST(PipelineStages, RefusesWhatDoesNotFit) {
  expect_refused(model_of(3, 1), {}, 4, "parallel.pipeline_parallel is 4, expected at most the 3 blocks of the model");
  expect_refused(model_of(3, 1), {.pipeline_layers = {2, 1}}, 3,
                 "parallel.pipeline_layers has 2 numbers, expected one for each of the parallel.pipeline_parallel 3");
  expect_refused(model_of(4, 0.25), {.pipeline_layers = {2, 1}}, 2,
                 "parallel.pipeline_layers is [2, 1], which has 3 blocks, expected the 4 of model.num_layers; [2, 2] "
                 "would work");
}

}  // namespace
}  // namespace octavo::pipeline_stages_test
