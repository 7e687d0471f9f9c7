// Tests that two stages, and two chunks of a stage, that pass activations and gradients to each other equal the whole
// model.
#include <cstring>

#include "model/architecture/block_spec.h"
#include "tests/model/llama_fixture.h"

namespace octavo::stage_test {
namespace {

using Mode = ActivationCheckpointing::Mode;

constexpr BatchShape kShape{.micro_batch_size = 1, .seq_len = 64};
constexpr int64_t kMicroBatches = 3;
constexpr int64_t kSteps = 2;
constexpr int64_t kFirstLayers = 2;  // Layers of the first stage. The model has three.

struct Case {
  const char* name;
  LinearPrecision linear = LinearPrecision::kBFloat16;
  Mode mode = Mode::kNone;
  bool tied = false;
  int64_t bf16_last_layers = 0;
};

LlamaOptions options_of(const Case& c) {
  ModelConfig config = fp8_config();
  config.num_layers = 3;
  config.tie_word_embeddings = c.tied;
  return {.config = config,
          .shape = kShape,
          .precision = {.compute = DType::kFloat32, .linear = c.linear, .bf16_last_layers = c.bf16_last_layers},
          .checkpointing = {.mode = c.mode},
          .z_loss = 1e-3f};
}

std::vector<float> values_of(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
}

// Copies from `whole` the weights that the model has.
void take_weights(TinyLlama& model, TinyLlama& whole) {
  for (const ParameterSpec& spec : model.layout().specs()) {
    const float* values = whole.master(whole.layout().find(spec.name));
    std::copy(values, values + spec.numel(), model.master(spec));
  }
  model.publish();
}

void end_step(TinyLlama& model) {
  model.llama().end_step({});
  model.publish();
}

// A model in two stages. The first stage has two micro-batches in flight, the last stage has one.
class TwoStages {
 public:
  TwoStages(const Case& c, TinyLlama& whole)
      : first_(first_options(c), {{0, kFirstLayers}}),
        last_(options_of(c), {{kFirstLayers, options_of(c).config.num_layers}}) {
    take_weights(first_, whole);
    take_weights(last_, whole);
  }

  // Returns the losses of the micro-batches of a step.
  std::vector<float> run(std::vector<OwnedBatch>& batches) {
    std::vector<float> losses;
    const StepBatches step{.count = kMicroBatches,
                           .micro_batch = [&](int64_t i) { return batches[static_cast<size_t>(i)].views(); },
                           .scale = 1.0f / 128,
                           .after_losses =
                               [&](int64_t) {
                                 const std::vector<float> found = last_.losses();
                                 losses.insert(losses.end(), found.begin(), found.end());
                               }};
    const std::vector<StepEntry> of_last = step_entries(kMicroBatches);
    std::vector<std::vector<float>> outputs;
    for (const StepEntry& entry : step_entries(kMicroBatches, 2)) {
      const auto number = static_cast<size_t>(entry.micro_batch);
      const Tensor edge = first_.llama().activations(entry).edge();
      if (entry.kind == StepEntry::Kind::kBackward) {
        const LlamaActivations& a = last_.llama().activations(entry);
        std::copy(outputs[number].begin(), outputs[number].end(), a.input().data<float>());
        last_.llama().run(std::span(of_last).subspan(2 * number, 2), step);
        std::memcpy(edge.raw(), a.edge().raw(), static_cast<size_t>(edge.bytes()));
      }
      first_.llama().run({&entry, 1}, step);
      if (entry.kind == StepEntry::Kind::kForward) outputs.push_back(values_of(edge));
    }
    return losses;
  }

  TinyLlama& first() { return first_; }
  TinyLlama& last() { return last_; }

 private:
  static LlamaOptions first_options(const Case& c) {
    LlamaOptions options = options_of(c);
    options.in_flight = {2};
    return options;
  }

  TinyLlama first_, last_;
};

std::vector<float> run(TinyLlama& whole, std::vector<OwnedBatch>& batches) {
  std::vector<float> losses;
  whole.llama().run(step_entries(kMicroBatches),
                    {.count = kMicroBatches,
                     .micro_batch = [&](int64_t i) { return batches[static_cast<size_t>(i)].views(); },
                     .scale = 1.0f / 128,
                     .after_losses =
                         [&](int64_t) {
                           const std::vector<float> found = whole.losses();
                           losses.insert(losses.end(), found.begin(), found.end());
                         }});
  return losses;
}

class StageTest : public ::testing::TestWithParam<Case> {};

TEST_P(StageTest, TwoStagesAreTheWholeModel) {
  TinyLlama whole(options_of(GetParam()));
  TwoStages stages(GetParam(), whole);
  std::mt19937_64 generator(5);
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<OwnedBatch> batches;
    for (int64_t i = 0; i < kMicroBatches; ++i) {
      batches.push_back(OwnedBatch::random(kShape.tokens(), whole.llama().config().vocab_size, generator));
    }
    const std::vector<float> losses = run(whole, batches);
    EXPECT_TRUE(stages.run(batches) == losses);
    for (TinyLlama* stage : {&stages.first(), &stages.last()}) {
      for (const ParameterSpec& spec : stage->layout().specs()) {
        if (GetParam().tied && spec.unit == ParameterLayout::kEmbedding) continue;
        const float* expected = whole.gradient(whole.layout().find(spec.name));
        const auto bytes = static_cast<size_t>(spec.numel()) * sizeof(float);
        EXPECT_EQ(std::memcmp(stage->gradient(spec), expected, bytes), 0) << spec.name;
      }
    }
    for (TinyLlama* model : {&whole, &stages.first(), &stages.last()}) end_step(*model);
  }
  if (!GetParam().tied) return;
  const char* table = "model.embed_tokens.weight";
  const ParameterSpec& spec = whole.layout().find(table);
  std::vector<float> sum(static_cast<size_t>(spec.numel()));
  for (TinyLlama* stage : {&stages.first(), &stages.last()}) {
    const float* part = stage->gradient(stage->layout().find(table));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  EXPECT_LT(relative_error(sum.data(), whole.gradient(spec), spec.numel()), 1e-6);
}

// A stage with all blocks in two chunks, which pass activations and gradients to each other.
TEST_P(StageTest, TwoChunksAreTheWholeModel) {
  using Kind = StepEntry::Kind;
  TinyLlama whole(options_of(GetParam()));
  TinyLlama chunks(options_of(GetParam()), {{0, kFirstLayers}, {kFirstLayers, whole.llama().config().num_layers}});
  take_weights(chunks, whole);
  std::mt19937_64 generator(7);
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<OwnedBatch> batches;
    for (int64_t i = 0; i < kMicroBatches; ++i) {
      batches.push_back(OwnedBatch::random(kShape.tokens(), whole.llama().config().vocab_size, generator));
    }
    run(whole, batches);
    const auto run_entry = [&](Kind kind, int64_t micro_batch, int64_t chunk) {
      const StepEntry entry{kind, micro_batch, chunk};
      chunks.llama().run({&entry, 1},
                         {.count = kMicroBatches,
                          .micro_batch = [&](int64_t i) { return batches[static_cast<size_t>(i)].views(); },
                          .scale = 1.0f / 128});
    };
    const LlamaActivations& first = chunks.llama().activations({Kind::kForward, 0, 0});
    const LlamaActivations& last = chunks.llama().activations({Kind::kForward, 0, 1});
    for (int64_t i = 0; i < kMicroBatches; ++i) {
      run_entry(Kind::kForward, i, 0);
      std::memcpy(last.input().raw(), first.edge().raw(), static_cast<size_t>(first.edge().bytes()));
      run_entry(Kind::kForward, i, 1);
      run_entry(Kind::kBackward, i, 1);
      std::memcpy(first.edge().raw(), last.edge().raw(), static_cast<size_t>(first.edge().bytes()));
      run_entry(Kind::kBackward, i, 0);
    }
    EXPECT_TRUE(chunks.losses() == whole.losses());
    for (const ParameterSpec& spec : chunks.layout().specs()) {
      const float* expected = whole.gradient(whole.layout().find(spec.name));
      EXPECT_EQ(std::memcmp(chunks.gradient(spec), expected, static_cast<size_t>(spec.numel()) * sizeof(float)), 0)
          << spec.name;
    }
    for (TinyLlama* model : {&whole, &chunks}) end_step(*model);
  }
}

TEST(StageLayout, AStageHasItsBlocksAndWhatIsAtItsEnds) {
  ModelConfig config = tiny_config();
  config.num_layers = 4;
  const auto units = [&](const StageLayers& stage) {
    std::string names;
    const ParameterLayout layout(config, {}, stage);
    for (const ParameterUnit& unit : layout.units()) names += unit.name + ", ";
    return names;
  };
  EXPECT_EQ(units({{0, 1}}), "norms, embedding, block 0, ");
  EXPECT_EQ(units({{1, 3}}), "norms, block 1, block 2, ");
  EXPECT_EQ(units({{3, 4}}), "norms, block 3, lm_head, ");
  EXPECT_EQ(units({{0, 1}, {2, 3}}), "norms, embedding, block 0, block 2, ");
  const ParameterLayout last(config, {}, {{1, 2}, {3, 4}});
  EXPECT_EQ(last.units()[last.block_unit(1)].name, "block 1");
  EXPECT_EQ(last.units()[last.block_unit(3)].name, "block 3");
  EXPECT_EQ(last.find("model.layers.3.self_attn.q_proj.weight").linear, 3 * std::ssize(block_linears(config)));
  EXPECT_THROW(units({{2, 2}}), Error);
  EXPECT_THROW(units({{3, 5}}), Error);
  EXPECT_THROW(units({{2, 3}, {1, 2}}), Error);
  config.tie_word_embeddings = true;
  EXPECT_EQ(units({{3, 4}}), "norms, embedding, block 3, ");
  const auto counts = [&](const StageLayers& stage) {
    return ParameterLayout(config, {}, stage).find("model.embed_tokens.weight").counts;
  };
  EXPECT_TRUE(counts({{0, 1}}));
  EXPECT_FALSE(counts({{3, 4}}));
}

INSTANTIATE_TEST_SUITE_P(Recipes, StageTest,
                         ::testing::Values(Case{.name = "plain"}, Case{.name = "full", .mode = Mode::kFull},
                                           Case{.name = "tied", .tied = true},
                                           Case{.name = "tensorwise",
                                                .linear = LinearPrecision::kFp8Tensorwise,
                                                .mode = Mode::kSelective,
                                                .bf16_last_layers = 1},
                                           Case{.name = "delayed", .linear = LinearPrecision::kFp8Delayed},
                                           Case{.name = "rowwise", .linear = LinearPrecision::kFp8Rowwise},
                                           Case{.name = "blockwise", .linear = LinearPrecision::kFp8Blockwise}),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace octavo::stage_test
