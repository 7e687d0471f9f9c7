#include "model/architecture/tensor_parallel.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "model/parameters/parameters.h"

namespace octavo {

namespace {

ModelConfig config_with_heads(int64_t num_heads, int64_t num_kv_heads) {
  ModelConfig config;
  config.hidden_size = 20;
  config.intermediate_size = 36;
  config.num_layers = 2;
  config.num_heads = num_heads;
  config.num_kv_heads = num_kv_heads;
  config.head_dim = 6;
  config.vocab_size = 37;  // On four ranks: 16, 16 and 5 rows, and none on the last rank.
  return config;
}

// Returns the key/value heads of a rank as text, such as "0 (1)". Replicas that do not count are in parentheses.
std::string kv_heads(int64_t num_heads, int64_t num_kv_heads, TensorRank tensor) {
  std::string text;
  for (const auto& [head, counts] : local_kv_heads(config_with_heads(num_heads, num_kv_heads), tensor)) {
    if (!text.empty()) text += ' ';
    text += counts ? fmt::format("{}", head) : fmt::format("({})", head);
  }
  return text;
}

}  // namespace

TEST(TensorParallelTest, RanksHaveTheKvHeadsThatTheirQueryHeadsRead) {
  EXPECT_EQ(kv_heads(8, 4, {0, 1}), "0 1 2 3");
  EXPECT_EQ(kv_heads(8, 4, {1, 2}), "2 3");
  EXPECT_EQ(kv_heads(8, 2, {0, 4}), "0");
  EXPECT_EQ(kv_heads(8, 2, {1, 4}), "(0)");
  EXPECT_EQ(kv_heads(8, 2, {2, 4}), "1");
  EXPECT_EQ(kv_heads(6, 2, {0, 3}), "0 (0)");
  EXPECT_EQ(kv_heads(6, 2, {1, 3}), "(0) 1");
  EXPECT_EQ(kv_heads(6, 2, {2, 3}), "(1) (1)");
  EXPECT_FALSE(has_kv_copies(config_with_heads(8, 4), 4));
  EXPECT_TRUE(has_kv_copies(config_with_heads(8, 4), 8));
  EXPECT_TRUE(has_kv_copies(config_with_heads(6, 2), 3));
}

TEST(TensorParallelTest, EachQueryHeadReadsItsOwnKvHead) {
  for (const auto& [heads, kv] : {std::pair{8, 4}, {8, 2}, {6, 2}, {12, 4}, {12, 3}}) {
    const ModelConfig config = config_with_heads(heads, kv);
    for (const int64_t size : {1, 2, 3, 4, 6, 8, 12}) {
      if (heads % size != 0) continue;
      for (int64_t rank = 0; rank < size; ++rank) {
        const ModelConfig local = local_config(config, {rank, size});
        const std::vector<KvHead> held = local_kv_heads(config, {rank, size});
        ASSERT_EQ(std::ssize(held), local.num_kv_heads);
        for (int64_t i = 0; i < local.num_heads; ++i) {
          const auto read = static_cast<size_t>(i / (local.num_heads / local.num_kv_heads));
          EXPECT_EQ(held[read].head, (rank * local.num_heads + i) / (heads / kv)) << heads << " " << kv << " " << size;
        }
      }
    }
  }
}

// Over all ranks, every element of every parameter counts exactly once.
TEST(TensorParallelTest, PartsMakeUpTheParameters) {
  for (const auto& [heads, kv, size] : {std::tuple{8, 4, 2}, {8, 2, 4}, {6, 2, 3}, {4, 4, 1}}) {
    const ModelConfig config = config_with_heads(heads, kv);
    std::map<std::string, std::vector<int>> times;
    const ParameterLayout whole(config);
    for (const ParameterSpec& spec : whole.specs()) {
      times[spec.name].assign(static_cast<size_t>(spec.numel()), 0);
    }
    for (int64_t rank = 0; rank < size; ++rank) {
      const ParameterLayout part(config, {rank, size});
      for (const ParameterSpec& spec : part.specs()) {
        for (int64_t i = 0; spec.counts && i < spec.numel(); ++i) {
          ++times.at(spec.name).at(static_cast<size_t>(spec.whole_index(i)));
        }
      }
    }
    for (const auto& [name, counts] : times) EXPECT_EQ(counts, std::vector<int>(counts.size(), 1)) << name;
  }
}

// Padding rows make the tables of all ranks equally long.
TEST(TensorParallelTest, RanksHaveTheSameOffsets) {
  const ModelConfig config = config_with_heads(8, 2);
  const ParameterLayout first(config, {0, 4});
  for (int64_t rank = 1; rank < 4; ++rank) {
    const ParameterLayout other(config, {rank, 4});
    ASSERT_EQ(other.specs().size(), first.specs().size());
    for (size_t i = 0; i < first.specs().size(); ++i) {
      EXPECT_EQ(other.specs()[i].offset, first.specs()[i].offset);
      const auto rows = [i](const ParameterLayout& of) { return of.specs()[i].shape[0] + of.specs()[i].padding_rows; };
      EXPECT_EQ(rows(other), rows(first)) << first.specs()[i].name;
      EXPECT_EQ(other.specs()[i].shape.back(), first.specs()[i].shape.back());
    }
  }
}

TEST(TensorParallelTest, VocabulariesArePaddedToWhatRanksAndKernelsDivide) {
  ModelConfig config = config_with_heads(8, 2);
  // The vocabulary, the ranks, the rows of each rank and the entries of the vocabulary on the last rank.
  for (const auto& [vocab, ranks, rows, last] : {std::array<int64_t, 4>{128256, 8, 16032, 16032},
                                                 {50257, 1, 50272, 50257},
                                                 {50257, 4, 12576, 12529},
                                                 {272, 2, 144, 128},
                                                 {17, 4, 16, 0},
                                                 {1, 1, 16, 1}}) {
    config.vocab_size = vocab;
    EXPECT_EQ(local_config(config, {0, ranks}).vocab_size, rows) << vocab;
    const ParameterLayout layout(config, {ranks - 1, ranks});
    const ParameterSpec& lm_head = layout.find("lm_head.weight");
    EXPECT_EQ(lm_head.shape[0], last) << vocab;
    EXPECT_EQ(lm_head.padding_rows, rows - last) << vocab;
    EXPECT_EQ(lm_head.row_begin, vocab - last) << vocab;
    EXPECT_LE(lm_head.offset + rows * config.hidden_size, layout.units().back().end);
  }
}

TEST(TensorParallelTest, InitialValuesAreThoseOfTheWholeParameter) {
  const ModelConfig config = config_with_heads(8, 2);
  const ParameterLayout whole(config);
  const ParameterLayout part(config, {1, 4});
  for (const ParameterSpec& spec : part.specs()) {
    Stream stream = Stream::cpu();
    std::vector<float> all(static_cast<size_t>(whole.find(spec.name).numel()));
    initialize_parameter(whole.find(spec.name), 5, 0, Tensor(all.data(), DType::kFloat32, {std::ssize(all)}), stream);
    const int64_t begin = spec.numel() / 3;
    std::vector<float> some(static_cast<size_t>(spec.numel() - begin));
    initialize_parameter(spec, 5, begin, Tensor(some.data(), DType::kFloat32, {std::ssize(some)}), stream);
    for (int64_t i = begin; i < spec.numel(); ++i) {
      EXPECT_EQ(some[static_cast<size_t>(i - begin)], all[static_cast<size_t>(spec.whole_index(i))]) << spec.name;
    }
  }
}

TEST(TensorParallelTest, ColumnsArePlacesInTheFlattenedColumns) {
  const ParameterLayout part(config_with_heads(8, 2), {1, 4});
  const ParameterSpec& o = part.find("model.layers.0.self_attn.o_proj.weight");
  EXPECT_EQ(o.columns(), (ColumnRange{12, 24}));
  EXPECT_EQ(o.column_offset(), 0);
  const ParameterSpec& up = part.find("model.layers.1.mlp.up_proj.weight");
  EXPECT_TRUE(up.columns().none());
  EXPECT_EQ(up.column_offset(), 9 * 20);
  EXPECT_EQ(up.whole_index(3), 9 * 20 + 3);
}

}  // namespace octavo
