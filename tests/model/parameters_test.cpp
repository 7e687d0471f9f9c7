#include "model/parameters/parameters.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "model/architecture/block_spec.h"
#include "model/parameters/sharded_parameters.h"
#include "tests/kernels/op_fixture.h"

namespace octavo::parameters_test {
namespace {

// No dimension divides another: the hidden size, the widths and the vocabulary are odd or prime.
ModelConfig odd_config() {
  return {.hidden_size = 13,
          .intermediate_size = 17,
          .num_layers = 3,
          .num_heads = 3,
          .num_kv_heads = 1,
          .head_dim = 2,
          .vocab_size = 31,
          .rope_theta = 10000,
          .rope_scaling = std::nullopt,
          .rms_norm_eps = 1e-5,
          .tie_word_embeddings = false};
}

TEST(ParameterLayout, CountsAreThePublishedOnes) {
  const std::map<std::string, int64_t> published{
      {"llama3_1b", 1'235'814'400},
      {"llama3_3b", 3'212'749'824},
      {"llama3_8b", 8'030'261'248},
      {"llama3_70b", 70'553'706'496},
      {"llama3_405b", 405'853'388'800},
      // The count is 2 * 128256 * 2048 + 24 (2 * 2048^2 + 2 * 1024 * 2048 + 3 * 7168 * 2048 + 2 * 2048) + 2048.
      {"llama3_1.8b", 1'884'391'424},
      {"qwen3_0.6b", 596'049'920},
      {"qwen3_8b", 8'190'735'360},
  };
  for (const std::string& name : model_preset_names()) {
    const ModelConfig config = model_preset(name);
    const ParameterLayout layout(config);
    int64_t total = 0;
    for (const ParameterSpec& spec : layout.specs()) total += spec.numel();
    EXPECT_EQ(total, published.at(name)) << name;
    EXPECT_EQ(config.num_parameters(), published.at(name)) << name;
    const int64_t padding = config.qk_norm ? config.num_layers * 2 * (kParameterAlignment - config.head_dim) : 0;
    EXPECT_EQ(layout.units().back().end, total + padding) << name << " has padding that the head norms do not explain";
    const int64_t table = config.tie_word_embeddings ? 0 : config.vocab_size * config.hidden_size;
    EXPECT_EQ(config.num_matmul_parameters(), total - table) << name;
  }
}

TEST(ParameterLayout, HasTheNamesAndShapesOfHuggingFace) {
  using Shapes = std::map<std::string, std::vector<int64_t>>;
  Shapes expected{{"model.embed_tokens.weight", {31, 13}}, {"model.norm.weight", {13}}, {"lm_head.weight", {31, 13}}};
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    expected[prefix + "input_layernorm.weight"] = {13};
    expected[prefix + "post_attention_layernorm.weight"] = {13};
    expected[prefix + "self_attn.q_proj.weight"] = {6, 13};
    expected[prefix + "self_attn.k_proj.weight"] = {2, 13};
    expected[prefix + "self_attn.v_proj.weight"] = {2, 13};
    expected[prefix + "self_attn.o_proj.weight"] = {13, 6};
    expected[prefix + "mlp.gate_proj.weight"] = {17, 13};
    expected[prefix + "mlp.up_proj.weight"] = {17, 13};
    expected[prefix + "mlp.down_proj.weight"] = {13, 17};
  }
  const auto shapes_of = [](const ModelConfig& config) {
    Shapes shapes;
    const ParameterLayout layout(config);
    for (const ParameterSpec& spec : layout.specs()) {
      shapes[spec.name] = spec.shape;
      EXPECT_EQ(spec.decayed(), spec.shape.size() == 2) << spec.name;
    }
    EXPECT_EQ(shapes.size(), layout.specs().size()) << "a name occurs twice";
    return shapes;
  };
  EXPECT_EQ(shapes_of(odd_config()), expected);
  ModelConfig tied = odd_config();
  tied.tie_word_embeddings = true;
  expected.erase("lm_head.weight");
  EXPECT_EQ(shapes_of(tied), expected);
  ModelConfig qk_norm = tied;
  qk_norm.qk_norm = true;
  for (int layer = 0; layer < 3; ++layer) {
    for (const char* norm : {"q_norm", "k_norm"}) {
      expected[fmt::format("model.layers.{}.self_attn.{}.weight", layer, norm)] = {2};
    }
  }
  EXPECT_EQ(shapes_of(qk_norm), expected);
}

TEST(ParameterLayout, IsInOrderAlignedAndPacked) {
  const ParameterLayout layout(odd_config());
  // Parameters that follow q_proj or gate_proj in memory without a gap.
  const std::set<std::string> packed{"k_proj", "v_proj", "up_proj"};
  int64_t end = 0;
  for (const ParameterSpec& spec : layout.specs()) {
    const size_t last_dot = spec.name.rfind('.');
    const size_t dot_before = spec.name.rfind('.', last_dot - 1);
    if (packed.count(spec.name.substr(dot_before + 1, last_dot - dot_before - 1)) == 1) {
      EXPECT_EQ(spec.offset, end) << spec.name;
    } else {
      EXPECT_EQ(spec.offset % kParameterAlignment, 0) << spec.name;
      EXPECT_GE(spec.offset, end) << spec.name;
      EXPECT_LT(spec.offset, end + kParameterAlignment) << spec.name;
    }
    end = spec.offset + spec.numel() + spec.padding_rows * spec.shape.back();
  }
  EXPECT_GE(layout.units().back().end, end);
  EXPECT_EQ(layout.units().back().end % kParameterAlignment, 0);
  EXPECT_EQ(layout.find("model.layers.2.mlp.up_proj.weight").shape, (std::vector<int64_t>{17, 13}));
  expect_error([&] { layout.find("model.layers.3.mlp.up_proj.weight"); }, "no parameter model.layers.3.mlp.up_proj");
}

// The matrix of a linear consists of its parameters, stacked row-wise in memory.
TEST(LinearMatrix, ViewsTheParametersOfItsLayer) {
  const ModelConfig config = odd_config();
  const ParameterLayout layout(config);
  Array flat(DType::kFloat32, {layout.units().back().end});
  const auto view = [&](const ParameterSpec& spec) { return parameter_view(flat, spec); };
  std::map<std::string, Tensor> matrices;
  for (const LinearSpec& linear : block_linears(config)) {
    matrices[linear.names.forward] = linear_matrix(view, layout, linear, 1);
  }
  const auto expect_part = [&](const std::string& linear, int64_t row, const char* name) {
    EXPECT_EQ(matrices.at(linear).rows(row, row + 1).raw(), view(layout.find(layer_parameter(1, name))).raw()) << name;
  };
  ASSERT_EQ(matrices.size(), 4u);
  EXPECT_EQ(matrices.at("qkv").describe(), "float32 [10, 13]");
  expect_part("qkv", 0, "self_attn.q_proj.weight");
  expect_part("qkv", 6, "self_attn.k_proj.weight");
  expect_part("qkv", 8, "self_attn.v_proj.weight");
  EXPECT_EQ(matrices.at("gate_up").describe(), "float32 [34, 13]");
  expect_part("gate_up", 0, "mlp.gate_proj.weight");
  expect_part("gate_up", 17, "mlp.up_proj.weight");
  EXPECT_EQ(matrices.at("o").describe(), "float32 [13, 6]");
  expect_part("o", 0, "self_attn.o_proj.weight");
  EXPECT_EQ(matrices.at("down").describe(), "float32 [13, 17]");
  expect_part("down", 0, "mlp.down_proj.weight");
}

// The backward of two linears may be adjacent, within a block or across blocks. The first one may still read the cast
// of its output gradient when the second one casts, so they need different scratch.
TEST(BlockLinears, NeighboursCastTheirOutputGradientsIntoOtherScratch) {
  const std::vector<LinearSpec> linears = block_linears(odd_config());
  for (size_t i = 0; i < linears.size(); ++i) {
    const LinearSpec& next = linears[(i + 1) % linears.size()];
    EXPECT_NE(linears[i].gradient_slot, next.gradient_slot) << linears[i].names.forward << " " << next.names.forward;
  }
}

TEST(ParameterLayout, UnitsCoverTheFlatOrder) {
  const ParameterLayout layout(odd_config());
  int64_t end = 0;
  for (const ParameterUnit& unit : layout.units()) {
    EXPECT_EQ(unit.begin, end) << unit.name;
    EXPECT_EQ(unit.end % kParameterAlignment, 0) << unit.name;
    end = unit.end;
  }
  EXPECT_EQ(end, layout.units().back().end);
  for (const ParameterSpec& spec : layout.specs()) {
    const ParameterUnit& unit = layout.units()[spec.unit];
    EXPECT_GE(spec.offset, unit.begin) << spec.name;
    EXPECT_LE(spec.offset + spec.numel(), unit.end) << spec.name;
    EXPECT_EQ(unit.is_norms, !spec.decayed()) << spec.name;
  }
  EXPECT_EQ(layout.units()[layout.head_unit()].name, "lm_head");
  EXPECT_EQ(layout.find("model.layers.1.self_attn.v_proj.weight").linear,
            static_cast<int64_t>(block_linears(odd_config()).size()));
}

TEST(ParameterLayout, AStageHasItsBlocksAndWhatIsAtItsEnds) {
  ModelConfig config = odd_config();
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

std::vector<float> initialized(const ParameterSpec& spec, uint64_t seed, int64_t begin, int64_t end) {
  std::vector<float> values(static_cast<size_t>(end - begin));
  Stream stream = Stream::cpu();
  initialize_parameter(spec, seed, begin, Tensor(values.data(), DType::kFloat32, {end - begin}), stream);
  return values;
}

TEST(InitializeParameter, DoesNotDependOnTheRangesOrThreads) {
  const ParameterSpec spec{
      .name = "model.layers.0.mlp.up_proj.weight", .shape = {101, 97}, .init_std = 0.02, .whole_shape = {101, 97}};
  const std::vector<float> whole = initialized(spec, 7, 0, spec.numel());
  std::vector<float> pieces;
  for (int64_t begin = 0; begin < spec.numel(); begin += 1013) {
    const std::vector<float> piece = initialized(spec, 7, begin, std::min(begin + 1013, spec.numel()));
    pieces.insert(pieces.end(), piece.begin(), piece.end());
  }
  EXPECT_EQ(pieces, whole);
  // The offset of the parameter does not change its initial values.
  ParameterSpec moved = spec;
  moved.offset = 4096;
  EXPECT_EQ(initialized(moved, 7, 0, spec.numel()), whole);
  const int before = omp_get_max_threads();
  omp_set_num_threads(3);
  EXPECT_EQ(initialized(spec, 7, 0, spec.numel()), whole);
  omp_set_num_threads(before);
}

TEST(InitializeParameter, DependsOnSeedAndName) {
  const ParameterSpec up{
      .name = "model.layers.0.mlp.up_proj.weight", .shape = {10, 10}, .init_std = 0.02, .whole_shape = {10, 10}};
  ParameterSpec gate = up;
  gate.name = "model.layers.0.mlp.gate_proj.weight";
  const std::vector<float> values = initialized(up, 7, 0, 100);
  EXPECT_NE(initialized(up, 8, 0, 100), values);
  EXPECT_NE(initialized(gate, 7, 0, 100), values);
  EXPECT_EQ(std::set<float>(values.begin(), values.end()).size(), values.size());
}

// The limits for mean and variance over a million elements are five standard deviations. The tests of random_normal
// check the distribution itself.
TEST(InitializeParameter, HasTheStandardDeviationOfItsSpec) {
  constexpr int64_t kCount = 1'000'000;
  const ParameterSpec spec{.name = "x", .shape = {1000, 1000}, .init_std = 0.5, .whole_shape = {1000, 1000}};
  double mean = 0;
  double second = 0;
  for (const float value : initialized(spec, 1, 0, kCount)) {
    const double z = static_cast<double>(value) / 0.5;
    mean += z / kCount;
    second += z * z / kCount;
  }
  EXPECT_NEAR(mean, 0, 0.005);
  EXPECT_NEAR(second, 1, 0.0075);
}

// The parameter is the lm_head of a large vocabulary, divided among ranks by rows or by columns. Only some elements
// of it are initialized, so the test needs little memory.
TEST(InitializeParameter, PartsOfMoreThan32BitsOfElementsAreThoseOfTheWhole) {
  const std::vector<int64_t> whole_shape{500'000, 16'384};
  const ParameterSpec whole{.name = "x", .shape = whole_shape, .init_std = 1, .whole_shape = whole_shape};
  ParameterSpec rows = whole;
  rows.shape = {125'000, 16'384};
  rows.row_begin = 375'000;
  ParameterSpec columns = whole;
  columns.shape = {500'000, 4'096};
  columns.column_begin = 8'192;
  for (const ParameterSpec& part : {rows, columns}) {
    const int64_t begin = part.numel() - 10'000;
    const std::vector<float> values = initialized(part, 3, begin, part.numel());
    for (int64_t i : {0, 1, 4'095, 4'096, 9'999}) {
      const int64_t index = part.whole_index(begin + i);
      EXPECT_GT(index, int64_t{1} << 32);
      EXPECT_EQ(initialized(whole, 3, index, index + 1).front(), values[static_cast<size_t>(i)]) << i;
    }
  }
}

TEST(InitializeParameter, NormsAreOnesAndOutputsOfTheResidualAreSmaller) {
  ModelConfig config = odd_config();
  config.num_layers = 8;
  const ParameterLayout layout(config);
  EXPECT_EQ(initialized(layout.find("model.layers.0.input_layernorm.weight"), 7, 0, 13), std::vector<float>(13, 1.0f));
  EXPECT_EQ(initialized(layout.find("model.norm.weight"), 7, 0, 13), std::vector<float>(13, 1.0f));
  EXPECT_DOUBLE_EQ(layout.find("model.layers.0.self_attn.q_proj.weight").init_std, 0.02);
  // Linears that add to the residual stream have a standard deviation divided by sqrt(2 * num_layers) = 4.
  EXPECT_DOUBLE_EQ(layout.find("model.layers.0.self_attn.o_proj.weight").init_std, 0.02 / 4);
  EXPECT_DOUBLE_EQ(layout.find("model.layers.0.mlp.down_proj.weight").init_std, 0.02 / 4);
}

TEST(ExchangedTable, IsOfWholeRows) {
  const EmbeddingSharding embedding{.vocab_size = 128256, .hidden_size = 4096, .tokens = 16384, .ranks = 8};
  const std::optional<TableSpec> table = exchanged_table(embedding);
  ASSERT_TRUE(table);
  EXPECT_EQ(table->slice_rows, 16032);
  for (const int64_t ranks : {2, 3, 5, 8}) {
    for (const int64_t hidden : {48, 61, 64, 4096}) {
      EmbeddingSharding small = embedding;
      small.vocab_size = 20'011, small.hidden_size = hidden, small.tokens = 50, small.ranks = ranks;
      const std::optional<TableSpec> found = exchanged_table(small);
      ASSERT_TRUE(found) << hidden << " on " << ranks;
      EXPECT_EQ(found->slice_rows * hidden % kParameterAlignment, 0);
      EXPECT_GE(found->padded_rows(), small.vocab_size);
      EXPECT_LT(found->padded_rows(), small.vocab_size + ranks * kParameterAlignment);
    }
  }
}

TEST(ExchangedTable, IsNoneWhereTheWholeIsAsGood) {
  const EmbeddingSharding embedding{.vocab_size = 128256, .hidden_size = 4096, .tokens = 16384, .ranks = 8};
  const auto none = [&](const std::function<void(EmbeddingSharding&)>& change) {
    EmbeddingSharding other = embedding;
    change(other);
    return !exchanged_table(other);
  };
  EXPECT_FALSE(none([](EmbeddingSharding&) {}));
  EXPECT_TRUE(none([](EmbeddingSharding& e) { e.tied = true; }));
  EXPECT_TRUE(none([](EmbeddingSharding& e) { e.ranks = 1; }));
  EXPECT_TRUE(none([](EmbeddingSharding& e) { e.tokens = 0; }));
  EXPECT_TRUE(none([](EmbeddingSharding& e) { e.tokens = 1'000'000; }));
  EXPECT_TRUE(none([](EmbeddingSharding& e) { e.vocab_size = 272; }));
  EXPECT_TRUE(none([](EmbeddingSharding& e) { e.all_to_all_load = 8; }));
}

}  // namespace
}  // namespace octavo::parameters_test
