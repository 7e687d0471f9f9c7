#include "model/parameters/pipeline_stages.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/core/messages.h"
#include "tests/model/uneven_layers.h"

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

// Returns the number of blocks of each part of the model.
std::vector<int64_t> blocks_of(const ModelConfig& model, const ParallelConfig& parallel, int64_t stages) {
  const std::vector<StageLayers> layers = pipeline_stages(model, parallel, stages);
  EXPECT_EQ(std::ssize(layers), stages);
  std::vector<int64_t> counts;
  int64_t begin = 0;
  for (size_t chunk = 0; chunk < static_cast<size_t>(parallel.pipeline_chunks); ++chunk) {
    for (const StageLayers& stage : layers) {
      EXPECT_EQ(std::ssize(stage), parallel.pipeline_chunks);
      EXPECT_EQ(stage[chunk].begin, begin);
      begin = stage[chunk].end;
      counts.push_back(stage[chunk].end - stage[chunk].begin);
    }
  }
  EXPECT_EQ(begin, model.num_layers);
  return counts;
}

using Counts = std::vector<int64_t>;

TEST(PipelineStages, EqualOnesAreFound) {
  std::vector<StageLayers> stages = {{{0, 2}}, {{2, 4}}, {{4, 6}}, {{6, 8}}};
  using Mode = ActivationCheckpointing::Mode;
  const auto equal = [&](const PrecisionConfig& precision, const ActivationCheckpointing& checkpointing) {
    return first_equal_stages(stages, layer_specs(model_of(8, 1), precision, checkpointing));
  };
  using Numbers = std::vector<size_t>;
  EXPECT_EQ(equal({}, {.mode = Mode::kFull}), (Numbers{0, 1, 1, 3}));
  EXPECT_EQ(equal({.linear = LinearPrecision::kFp8Tensorwise, .bf16_first_layers = 3}, {.mode = Mode::kFull}),
            (Numbers{0, 1, 2, 3}));
  // Blocks 2, 5 and 7 are recomputed.
  EXPECT_EQ(equal({}, {.mode = Mode::kBlock, .ratio = 0.375}), (Numbers{0, 1, 2, 3}));
  stages = {{{0, 1}, {4, 5}}, {{1, 2}, {5, 6}}, {{2, 3}, {6, 7}}, {{3, 4}, {7, 8}}};
  EXPECT_EQ(equal({}, {.mode = Mode::kFull}), (Numbers{0, 1, 1, 3}));
  stages = {{{0, 1}, {7, 8}}, {{1, 2}, {5, 7}}, {{2, 4}, {4, 5}}};
  EXPECT_EQ(equal({}, {.mode = Mode::kFull}), (Numbers{0, 1, 2}));
}

TEST(PipelineStages, AreNotEqualIfAnyPropertyOfTheirLayersDiffers) {
  const std::vector<StageLayers> stages = {{{0, 1}}, {{1, 2}}, {{2, 3}}, {{3, 4}}};
  for (const UnevenLayers& uneven : kUnevenLayers) {
    EXPECT_EQ(first_equal_stages(stages, uneven.specs(model_of(4, 1)))[2], 2u) << uneven.property;
  }
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
  EXPECT_EQ(blocks_of(model_of(6, 1), {.pipeline_chunks = 2, .pipeline_layers = {1, 2, 2, 1}}, 2),
            (Counts{1, 2, 2, 1}));
}

TEST(PipelineStages, TheirChunksHaveAboutEqualWork) {
  EXPECT_EQ(blocks_of(model_of(8, 0.25), {.pipeline_chunks = 2}, 2), (Counts{2, 2, 2, 2}));
  EXPECT_EQ(blocks_of(model_of(15, 1), {.pipeline_chunks = 4}, 2), (Counts{2, 2, 2, 2, 2, 2, 2, 1}));
  EXPECT_EQ(blocks_of(model_of(9, 0.25), {.pipeline_chunks = 3}, 3), (Counts{1, 1, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(blocks_of(model_of(12, 4), {.pipeline_chunks = 2}, 2), (Counts{4, 3, 4, 1}));
  EXPECT_EQ(blocks_of(model_of(7, 50), {.pipeline_chunks = 2}, 2), (Counts{2, 1, 3, 1}));
}

void expect_refused(const ModelConfig& model, const ParallelConfig& parallel, int64_t stages, const char* message) {
  expect_mentions(message_of<InputError>([&] { (void)pipeline_stages(model, parallel, stages); }), {message});
}

TEST(PipelineStages, RefusesWhatDoesNotFit) {
  expect_refused(model_of(3, 1), {}, 4, "parallel.pipeline_parallel is 4, expected at most the 3 blocks of the model");
  expect_refused(model_of(3, 1), {.pipeline_layers = {2, 1}}, 3,
                 "parallel.pipeline_layers has 2 numbers, expected one for each of the parallel.pipeline_parallel 3");
  expect_refused(model_of(4, 0.25), {.pipeline_layers = {2, 1}}, 2,
                 "parallel.pipeline_layers is [2, 1], which has 3 blocks, expected the 4 of model.num_layers; [2, 2] "
                 "would work");
  expect_refused(
      model_of(7, 1), {.pipeline_chunks = 3}, 3,
      "parallel.pipeline_chunks is 3, which divides the model into 9 parts on the 3 stages of "
      "parallel.pipeline_parallel, expected at most the 7 blocks of the model (model.num_layers); 2 would work");
  expect_refused(model_of(7, 1), {.pipeline_chunks = 2, .pipeline_layers = {3, 4}}, 2,
                 "parallel.pipeline_layers has 2 numbers, expected one for each of the parallel.pipeline_parallel 2 "
                 "stages and parallel.pipeline_chunks 2 chunks, 4 numbers");
}

}  // namespace
}  // namespace octavo::pipeline_stages_test
