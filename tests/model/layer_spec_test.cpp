// Tests which recipe and which recomputation each layer of a model has, and that the model reads every property of its
// layers.
#include "model/architecture/layer_spec.h"

#include <optional>
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

// The different ops that are queued, each with its FLOPs, bytes and precision.
using Ops = std::set<std::tuple<std::string, double, double, std::string>>;

// A model with two micro-batches in flight whose work is recorded instead of running.
class RecordedLlama {
 public:
  explicit RecordedLlama(const UnevenLayers& uneven, bool recomputes_all = false) {
    LlamaOptions options{.config = model_of(4), .shape = kShape, .precision = {}, .in_flight = {2}};
    uneven.change(options.config, options.precision, options.checkpointing);
    if (recomputes_all) options.checkpointing = {.mode = Mode::kFull};
    layout_.emplace(options.config);
    parameters_.emplace(*layout_, options.precision, ShardingOptions(), options.mode, nullptr, arena_, stream_);
    llama_.emplace(options, *parameters_, arena_, stream_);
    record_.clear();
  }

  void warm_up() { llama_->warm_up(batch_.views(), true); }
  void run_step() {
    llama_->run(step_entries(2, 2), {.count = 2, .micro_batch = [&](int64_t) { return batch_.views(); }});
  }

  // Returns all ops since the last call.
  Ops take_ops() {
    const Ops ops = ops_of({});
    record_.clear();
    return ops;
  }
  // Returns the ops that are within a range of each name, such as "backward" and "block 1".
  Ops ops_of(const std::vector<std::string>& names) const {
    Ops ops;
    std::vector<std::string> open;
    for (const OpRecord::Entry& entry : record_.entries()) {
      if (entry.action == OpRecord::Action::kBegin) open.push_back(record_.ranges()[entry.index]);
      if (entry.action == OpRecord::Action::kEnd) open.pop_back();
      const bool counts =
          std::ranges::all_of(names, [&](const auto& name) { return std::ranges::find(open, name) != open.end(); });
      if (entry.action != OpRecord::Action::kOp || !counts) continue;
      const Op& op = record_.ops()[entry.index];
      ops.emplace(op.name, op.flops, op.bytes, op.precision);
    }
    return ops;
  }

 private:
  static constexpr BatchShape kShape{.micro_batch_size = 2, .seq_len = 64};
  OpRecord record_;
  Stream stream_ = Stream::planned(132, &record_);
  Arena arena_{Device::kCuda};
  std::optional<ParameterLayout> layout_;
  std::optional<ShardedParameters> parameters_;
  std::optional<Llama> llama_;
  std::mt19937_64 generator_{1};
  OwnedBatch batch_ = OwnedBatch::random(kShape.tokens(), model_of(4).vocab_size, generator_);
};

// A GPU would load the kernels that warm_up() omits during transfers between pipeline stages, and could wait forever.
TEST(LayerSpecs, WarmingUpRunsEveryOpOfAStep) {
  for (const UnevenLayers& uneven : kUnevenLayers) {
    RecordedLlama model(uneven);
    model.warm_up();
    const Ops warm = model.take_ops();
    model.run_step();
    const Ops step = model.take_ops();
    EXPECT_GT(step.size(), 20u);
    for (const auto& op : step) EXPECT_TRUE(warm.contains(op)) << uneven.property << ": " << std::get<0>(op);
  }
}

TEST(LayerSpecs, EveryPropertyChangesTheOpsOfALayer) {
  for (const UnevenLayers& uneven : kUnevenLayers) {
    RecordedLlama model(uneven);
    model.run_step();
    EXPECT_GT(model.ops_of({"block 1"}).size(), 10u);
    EXPECT_NE(model.ops_of({"block 1"}), model.ops_of({"block 2"})) << uneven.property;
  }
}

TEST(LayerSpecs, RecomputationRunsTheOpsOfForward) {
  for (const UnevenLayers& uneven : kUnevenLayers) {
    RecordedLlama model(uneven, true);
    model.run_step();
    for (const char* block : {"block 1", "block 2"}) {
      const Ops backward = model.ops_of({"backward", block});
      size_t recomputed = 0;
      for (const auto& op : model.ops_of({"forward", block})) {
        const std::string& name = std::get<0>(op);
        if (name != "qkv" && name != "sdpa_forward" && name != "gate_up") continue;
        EXPECT_TRUE(backward.contains(op)) << uneven.property << ": " << name << " in " << block;
        ++recomputed;
      }
      EXPECT_EQ(recomputed, 3u) << uneven.property;
    }
  }
}

}  // namespace
}  // namespace octavo::layer_spec_test
