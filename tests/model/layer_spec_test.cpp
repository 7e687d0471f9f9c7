// Tests which recipe and which recomputation each layer of a model has, and that code which runs one layer for all
// equal ones runs everything that a step runs.
#include "model/architecture/layer_spec.h"

#include <set>
#include <tuple>

#include "core/error.h"
#include "core/op_record.h"
#include "tests/model/llama_fixture.h"
#include "tests/model/uneven_layers.h"

namespace octavo::layer_spec_test {
namespace {

using Mode = ActivationCheckpointing::Mode;

ModelConfig model_of(int64_t layers) {
  ModelConfig model = fp8_config();
  model.num_layers = layers;
  return model;
}

std::vector<LinearPrecision> recipes_of(int64_t layers, const PrecisionConfig& precision) {
  std::vector<LinearPrecision> recipes;
  for (const LayerSpec& spec : layer_specs(model_of(layers), precision, {.mode = Mode::kNone}))
    recipes.push_back(spec.recipe);
  return recipes;
}

TEST(LayerSpecs, FirstAndLastLayersKeepBFloat16) {
  constexpr auto kPlain = LinearPrecision::kBFloat16;
  for (const RecipeTraits& row : kRecipes) {
    const LinearPrecision fp8 = row.recipe;
    using Recipes = std::vector<LinearPrecision>;
    EXPECT_EQ(recipes_of(3, {.linear = fp8}), Recipes({fp8, fp8, fp8})) << row.name;
    EXPECT_EQ(recipes_of(4, {.linear = fp8, .bf16_first_layers = 1}), Recipes({kPlain, fp8, fp8, fp8})) << row.name;
    EXPECT_EQ(recipes_of(4, {.linear = fp8, .bf16_first_layers = 1, .bf16_last_layers = 2}),
              Recipes({kPlain, fp8, kPlain, kPlain}))
        << row.name;
    EXPECT_EQ(recipes_of(2, {.linear = fp8, .bf16_first_layers = 1, .bf16_last_layers = 5}), Recipes({kPlain, kPlain}))
        << row.name;
  }
}

std::vector<Recompute> recomputations(int64_t layers, const ActivationCheckpointing& checkpointing) {
  std::vector<Recompute> all;
  for (const LayerSpec& spec : layer_specs(model_of(layers), {}, checkpointing)) all.push_back(spec.recompute);
  return all;
}

std::vector<int64_t> recomputed(double ratio, int64_t layers) {
  std::vector<int64_t> blocks;
  const std::vector<Recompute> all = recomputations(layers, {.mode = Mode::kBlock, .ratio = ratio});
  for (size_t layer = 0; layer < all.size(); ++layer) {
    if (all[layer] == Recompute::kBlock) blocks.push_back(static_cast<int64_t>(layer));
    EXPECT_NE(all[layer], Recompute::kCheap);
  }
  return blocks;
}

TEST(LayerSpecs, RecomputedBlocksAreSpreadEvenly) {
  using Blocks = std::vector<int64_t>;
  EXPECT_EQ(recomputed(0, 4), Blocks());
  EXPECT_EQ(recomputed(1, 4), Blocks({0, 1, 2, 3}));
  EXPECT_EQ(recomputed(0.5, 4), Blocks({0, 2}));
  EXPECT_EQ(recomputed(0.25, 8), Blocks({1, 5}));
  EXPECT_EQ(recomputed(0.75, 4), Blocks({0, 1, 3}));
  for (const int64_t layers : {1, 3, 16, 32, 80, 126}) {
    for (int64_t blocks = 0; blocks <= layers; ++blocks) {
      const double ratio = static_cast<double>(blocks) / static_cast<double>(layers);
      EXPECT_EQ(std::ssize(recomputed(ratio, layers)), blocks) << layers;
    }
  }
}

TEST(LayerSpecs, ModesDecideOnEveryBlock) {
  using All = std::vector<Recompute>;
  EXPECT_EQ(recomputations(2, {.mode = Mode::kNone}), All(2, Recompute::kNothing));
  EXPECT_EQ(recomputations(3, {.mode = Mode::kSelective}), All(3, Recompute::kCheap));
  EXPECT_EQ(recomputations(4, {.mode = Mode::kFull}), All(4, Recompute::kBlock));
  EXPECT_THROW(recomputations(1, {.mode = Mode::kAuto}), Error);
}

// Returns for each property whether two specs differ in it. A new member of LayerSpec needs an element here, and a row
// of kUnevenLayers.
std::vector<std::pair<std::string, bool>> differences(const LayerSpec& a, const LayerSpec& b) {
  const auto& [recipe, recompute] = a;
  const auto& [other_recipe, other_recompute] = b;
  return {{"recipe", recipe != other_recipe}, {"recompute", recompute != other_recompute}};
}

TEST(LayerSpecs, UnevenLayersDifferInEveryProperty) {
  for (size_t i = 0; i < std::size(kUnevenLayers); ++i) {
    const std::vector<LayerSpec> layers = kUnevenLayers[i].specs(model_of(4));
    EXPECT_NE(layers[1], layers[2]);
    const auto properties = differences(layers[1], layers[2]);
    ASSERT_EQ(properties.size(), std::size(kUnevenLayers));
    EXPECT_EQ(kUnevenLayers[i].property, properties[i].first);
    for (size_t j = 0; j < properties.size(); ++j) EXPECT_EQ(properties[j].second, j == i) << properties[j].first;
  }
}

// The different ops that a model queues.
using Ops = std::set<std::tuple<std::string, double, double, std::string>>;
Ops ops_of(const OpRecord& record) {
  Ops ops;
  for (const OpRecord::Entry& entry : record.entries()) {
    if (entry.action != OpRecord::Action::kOp) continue;
    const Op& op = record.ops()[entry.index];
    ops.emplace(op.name, op.flops, op.bytes, op.precision);
  }
  return ops;
}

// A GPU would load the kernels that warm_up() omits during transfers between pipeline stages, and could wait forever.
TEST(LayerSpecs, WarmingUpRunsEveryOpOfAStep) {
  for (const UnevenLayers& uneven : kUnevenLayers) {
    LlamaOptions options{.config = model_of(4), .shape = {.micro_batch_size = 2, .seq_len = 64}, .precision = {}};
    uneven.change(options.config, options.precision, options.checkpointing);
    OpRecord record;
    Stream stream = Stream::planned(132, &record);
    Arena arena(Device::kCuda);
    const ParameterLayout layout(options.config);
    ShardedParameters parameters(layout, options.precision, {}, options.mode, nullptr, arena, stream);
    Llama llama(options, parameters, arena, stream);
    std::mt19937_64 generator(1);
    OwnedBatch batch = OwnedBatch::random(options.shape.tokens(), options.config.vocab_size, generator);
    record.clear();
    llama.warm_up(batch.views(), true);
    const Ops warm = ops_of(record);
    record.clear();
    llama.run(step_entries(2), {.count = 2, .micro_batch = [&](int64_t) { return batch.views(); }});
    const Ops step = ops_of(record);
    EXPECT_GT(step.size(), 20u);
    for (const auto& op : step) EXPECT_TRUE(warm.contains(op)) << uneven.property << ": " << std::get<0>(op);
  }
}

}  // namespace
}  // namespace octavo::layer_spec_test
