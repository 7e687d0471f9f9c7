// Tests that losses and gradients do not depend on which activations a block saves, and that a block saves what its
// list of tensors says.
#include "model/architecture/activation_checkpointing.h"

#include <cstring>
#include <set>
#include <string>

#include "model/architecture/block_spec.h"
#include "parallel/ranks/process_group.h"
#include "tests/model/llama_fixture.h"

namespace octavo::activation_checkpointing_test {
namespace {

using Mode = ActivationCheckpointing::Mode;

constexpr BatchShape kShape{.micro_batch_size = 2, .seq_len = 64};

constexpr ActivationCheckpointing kNone{.mode = Mode::kNone};
constexpr ActivationCheckpointing kSelective{.mode = Mode::kSelective};
constexpr ActivationCheckpointing kFull{.mode = Mode::kFull};
constexpr ActivationCheckpointing block_mode(double ratio) { return {.mode = Mode::kBlock, .ratio = ratio}; }

TEST(ActivationTables, RowsAreInTheOrderOfTheirEnumerations) {
  for (size_t i = 0; i < std::size(kProducers); ++i) EXPECT_EQ(static_cast<size_t>(kProducers[i].producer), i);
  for (size_t i = 0; i < std::size(kActivationPasses); ++i)
    EXPECT_EQ(static_cast<size_t>(kActivationPasses[i].activation), i);
}

// Returns the linears of a block, each with the pass that makes its input for backward.
std::string input_passes(LinearPrecision recipe, Recompute recompute) {
  constexpr const char* kNames[] = {"forward", "recompute", "backward"};
  std::string text;
  for (const LinearSpec& linear : block_linears(tiny_config())) {
    const BlockPass pass = made_in(linear_input(linear.input, recipe), recompute);
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", linear.names.forward, kNames[static_cast<size_t>(pass)]);
  }
  return text;
}

TEST(ActivationTables, PassOfEachLinearInput) {
  for (const RecipeTraits& row : kRecipes) {
    const bool by_row = row.recipe == LinearPrecision::kFp8Rowwise;
    EXPECT_EQ(input_passes(row.recipe, Recompute::kNothing),
              by_row ? "qkv forward, o backward, gate_up forward, down forward"
                     : "qkv forward, o backward, gate_up forward, down backward");
    EXPECT_EQ(input_passes(row.recipe, Recompute::kCheap), "qkv backward, o backward, gate_up backward, down backward");
    EXPECT_EQ(input_passes(row.recipe, Recompute::kBlock),
              "qkv recompute, o backward, gate_up recompute, down backward");
  }
}

struct Recipe {
  const char* name;
  DType compute;
  LinearPrecision linear = LinearPrecision::kBFloat16;
  int64_t bf16_layers = 0;  // Number of layers at the start of the model that use bfloat16.
  bool qk_norm = false;
};

LlamaOptions options_of(const Recipe& recipe, const ActivationCheckpointing& checkpointing) {
  ModelConfig config = fp8_config();
  config.num_layers = 4;
  config.qk_norm = recipe.qk_norm;
  return {.config = config,
          .shape = kShape,
          .precision = {.compute = recipe.compute, .linear = recipe.linear, .bf16_first_layers = recipe.bf16_layers},
          .fp8_stats = is_fp8(recipe.linear),
          .checkpointing = checkpointing};
}

// Runs two steps of three micro-batches and returns losses, gradients, amaxes and statistics of casts.
constexpr int64_t kMicroBatches = 3;

struct Order {
  std::vector<StepEntry> entries = step_entries(kMicroBatches);
  int64_t in_flight = 1;
  bool splits_backward = false;
};

std::vector<float> numbers_of(const Recipe& recipe, const ActivationCheckpointing& checkpointing, bool warm = false,
                              const Order& order = {}) {
  LlamaOptions options = options_of(recipe, checkpointing);
  options.in_flight = {order.in_flight};
  options.splits_backward = order.splits_backward;
  TinyLlama model(options);
  Llama& llama = model.llama();
  std::mt19937_64 others(8);
  // Some documents of this batch are larger than those of the measured batches.
  OwnedBatch other = OwnedBatch::random(kShape.tokens(), llama.config().vocab_size, others);
  if (warm) llama.warm_up(other.views(), true);
  std::mt19937_64 generator(7);
  std::vector<float> numbers;
  const auto add = [&](const Tensor& values) {
    numbers.insert(numbers.end(), values.data<float>(), values.data<float>() + values.numel());
  };
  ProcessGroup group;
  const std::unique_ptr<Communicator> alone = make_communicator(group, model.stream());
  for (int step = 0; step < 2; ++step) {
    // The first step measures statistics. Casts without statistics use a shorter path.
    const bool measures = llama.fp8_stats() != nullptr && step == 0;
    if (measures) llama.fp8_stats()->begin(model.stream());
    std::vector<OwnedBatch> batches;
    for (int64_t i = 0; i < kMicroBatches; ++i) {
      batches.push_back(OwnedBatch::random(kShape.tokens(), llama.config().vocab_size, generator));
      if (i > 0) batches.back().mask_documents(24, kShape.seq_len);
    }
    llama.run(order.entries, {.count = kMicroBatches,
                              .micro_batch = [&](int64_t i) { return batches[static_cast<size_t>(i)].views(); },
                              .scale = 1.0f / 128,
                              .after_losses = [&](int64_t) { add(llama.losses()); }});
    add(model.parameters().gradients());
    if (measures) llama.fp8_stats()->end(*alone, model.stream());
    if (measures) add(llama.fp8_stats()->values());
    llama.end_step({});
    model.cast_weights();
    if (llama.amaxes() != nullptr && llama.amaxes()->delayed()) add(llama.amaxes()->history());
  }
  return numbers;
}

// Compares the bytes, so that equal NaNs count as equal.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class RecipeTest : public ::testing::TestWithParam<Recipe> {};

TEST_P(RecipeTest, ModesGiveTheSameBits) {
  const std::vector<float> expected = numbers_of(GetParam(), kNone);
  for (const float number : expected) ASSERT_TRUE(std::isfinite(number));
  EXPECT_TRUE(same_bits(numbers_of(GetParam(), kSelective), expected)) << "selective";
  EXPECT_TRUE(same_bits(numbers_of(GetParam(), kFull), expected)) << "full";
  for (const double ratio : {0.25, 0.75}) {
    EXPECT_TRUE(same_bits(numbers_of(GetParam(), block_mode(ratio)), expected)) << "block, ratio " << ratio;
  }
}

TEST_P(RecipeTest, SeveralMicroBatchesInFlightGiveTheSameBits) {
  const std::vector<float> expected = numbers_of(GetParam(), kNone);
  constexpr std::pair<ActivationCheckpointing, int64_t> kCases[] = {
      {kNone, 2}, {kNone, 3}, {kSelective, 2}, {kFull, 3}, {block_mode(0.5), 2}};
  for (const auto& [mode, in_flight] : kCases) {
    const Order order{.entries = step_entries(kMicroBatches, in_flight), .in_flight = in_flight};
    EXPECT_TRUE(same_bits(numbers_of(GetParam(), mode, false, order), expected)) << in_flight << " in flight";
  }
}

TEST_P(RecipeTest, BackwardInTwoPartsGivesTheSameBits) {
  using Kind = StepEntry::Kind;
  constexpr Kind kForward = Kind::kForward;
  constexpr Kind kInput = Kind::kBackwardInput;
  constexpr Kind kWeights = Kind::kBackwardWeights;
  const Order weights_last{.entries = {{kForward, 0},
                                       {kForward, 1},
                                       {kForward, 2},
                                       {kInput, 0},
                                       {kInput, 1},
                                       {kInput, 2},
                                       {kWeights, 0},
                                       {kWeights, 1},
                                       {kWeights, 2}},
                           .in_flight = 3,
                           .splits_backward = true};
  const Order mixed{.entries = {{kForward, 0},
                                {kForward, 1},
                                {kInput, 0},
                                {kInput, 1},
                                {kWeights, 0},
                                {kForward, 2},
                                {kWeights, 1},
                                {Kind::kBackward, 2}},
                    .in_flight = 2,
                    .splits_backward = true};
  const std::vector<float> expected = numbers_of(GetParam(), kNone);
  for (const ActivationCheckpointing& mode : {kNone, block_mode(0.5)}) {
    EXPECT_TRUE(same_bits(numbers_of(GetParam(), mode, false, weights_last), expected)) << "weights last";
    EXPECT_TRUE(same_bits(numbers_of(GetParam(), mode, false, mixed), expected)) << "mixed";
  }
  EXPECT_TRUE(same_bits(numbers_of(GetParam(), kSelective, false, mixed), expected)) << "mixed, selective";
  EXPECT_TRUE(same_bits(numbers_of(GetParam(), kFull, false, weights_last), expected)) << "weights last, full";
}

// Backward in two parts copies what a later op overwrites. Activations that a block shares with others are copied too.
TEST(ActivationCheckpointingTest, BackwardInTwoPartsCopiesOnlyWhatIsOverwritten) {
  const auto copies = [](const ActivationCheckpointing& mode) {
    LlamaOptions options = options_of({.name = "", .compute = DType::kBFloat16}, mode);
    options.splits_backward = true;
    const Arena plan = TinyLlama::plan(options);
    std::set<std::string> names;
    for (const Arena::Item& item : plan.items()) {
      if (item.name.find(" saved ") != std::string::npos) names.insert(item.name.substr(std::strlen("activations ")));
    }
    return fmt::format("{}", fmt::join(names, ", "));
  };
  EXPECT_EQ(copies(kNone), "down saved gradient, down saved input, o saved gradient");
  EXPECT_EQ(copies(kSelective),
            "down saved gradient, down saved input, gate_up saved input, o saved gradient, qkv saved input");
  EXPECT_EQ(copies(kFull),
            "down saved gradient, down saved input, gate_up saved gradient, gate_up saved input, o saved gradient, "
            "o saved input, qkv saved gradient, qkv saved input");
}

TEST_P(RecipeTest, WarmingUpLeavesNoTrace) {
  const std::vector<float> expected = numbers_of(GetParam(), kNone);
  for (const ActivationCheckpointing& mode : {kNone, block_mode(0.5)}) {
    EXPECT_TRUE(same_bits(numbers_of(GetParam(), mode, true), expected));
  }
}

TEST_P(RecipeTest, MoreRecomputationTakesLessMemory) {
  const auto bytes = [](const ActivationCheckpointing& checkpointing) {
    return TinyLlama::plan(options_of(GetParam(), checkpointing)).used();
  };
  EXPECT_EQ(bytes(block_mode(0)), bytes(kNone));
  EXPECT_EQ(bytes(block_mode(1)), bytes(kFull));
  EXPECT_GT(bytes(kNone), bytes(kSelective));
  EXPECT_GT(bytes(kSelective), bytes(kFull));
  EXPECT_GT(bytes(kNone), bytes(block_mode(0.5)));
  EXPECT_GT(bytes(block_mode(0.5)), bytes(block_mode(0.75)));
  EXPECT_GT(bytes(block_mode(0.75)), bytes(kFull));
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, RecipeTest,
    ::testing::Values(
        Recipe{.name = "float32", .compute = DType::kFloat32}, Recipe{.name = "bfloat16", .compute = DType::kBFloat16},
        Recipe{.name = "tensorwise", .compute = DType::kBFloat16, .linear = LinearPrecision::kFp8Tensorwise},
        Recipe{.name = "delayed", .compute = DType::kBFloat16, .linear = LinearPrecision::kFp8Delayed},
        Recipe{.name = "rowwise", .compute = DType::kFloat32, .linear = LinearPrecision::kFp8Rowwise},
        Recipe{.name = "blockwise", .compute = DType::kBFloat16, .linear = LinearPrecision::kFp8Blockwise},
        Recipe{.name = "tensorwise_mixed",
               .compute = DType::kBFloat16,
               .linear = LinearPrecision::kFp8Tensorwise,
               .bf16_layers = 1},
        Recipe{.name = "qk_norm_float32", .compute = DType::kFloat32, .qk_norm = true},
        Recipe{.name = "qk_norm_rowwise",
               .compute = DType::kBFloat16,
               .linear = LinearPrecision::kFp8Rowwise,
               .qk_norm = true},
        Recipe{.name = "qk_norm_tensorwise_mixed",
               .compute = DType::kBFloat16,
               .linear = LinearPrecision::kFp8Tensorwise,
               .bf16_layers = 1,
               .qk_norm = true}),
    [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace octavo::activation_checkpointing_test
