#include "kernels/layers/embedding.h"

#include <numeric>

#include "tests/kernels/law.h"

namespace octavo::embedding_test {
namespace {

// A part of a vocabulary, as a rank of a tensor-parallel group has it.
struct Case {
  int64_t tokens, hidden;
  int32_t used;  // The ids are in [0, used).
  int64_t begin, rows;
};

class EmbeddingTest : public LawTest {
 protected:
  // Returns the positions sorted by id. Positions with equal ids are in ascending order.
  Array sorted_positions(const Array& ids) {
    std::vector<int32_t> positions(static_cast<size_t>(ids.size()));
    std::iota(positions.begin(), positions.end(), 0);
    std::stable_sort(positions.begin(), positions.end(), [&](int32_t a, int32_t b) { return ids.at(a) < ids.at(b); });
    Array order = array(DType::kInt32, {ids.size()});
    for (int64_t i = 0; i < ids.size(); ++i) order.set(i, positions[static_cast<size_t>(i)]);
    return order;
  }

  // The cases have one id for all tokens, runs around the length at which the GPU kernel splits them, and many short
  // runs. Where the table is a part of the vocabulary, ids are below, in and above its range, and some do not occur.
  std::vector<Case> cases() const {
    std::vector<Case> all = {{1, 1, 1, 0, 1},     {7, 5, 3, 0, 3},        {37, 67, 272, 0, 272}, {13, 131, 5, 0, 5},
                             {1, 8, 3, 1, 1},     {53, 67, 40, 10, 20},   {4099, 64, 1, 0, 272}, {4099, 64, 4, 1, 2},
                             {777, 127, 5, 0, 9}, {500, 64, 100, 200, 72}};
    if (on_gpu()) {
      for (const Case& c : {Case{1000, 256, 59, 0, 272},
                            {777, 127, 5, 0, 1009},
                            {1500, 2048, 83, 0, 1009},
                            {2048, 1000, 5003, 0, 5003},
                            {5, 16384, 11, 0, 11},
                            {1000, 256, 59, 20, 20},
                            {777, 127, 1009, 300, 300},
                            {2048, 1000, 5003, 4000, 1003},
                            {2048, 512, 128000, 64000, 1000}}) {
        all.push_back(c);
      }
    }
    return all;
  }
};
INSTANTIATE_DEVICES_AND_DTYPES(EmbeddingTest);

// Forward copies rows. Ids outside of the table give zeros.
TEST_P(EmbeddingTest, ForwardAndBackward) {
  for (const auto& [tokens, hidden, used, begin, rows] : cases()) {
    SCOPED_TRACE(fmt::format("{} tokens of {} ids, rows from {}", tokens, used, begin));
    const Array table = random({rows, hidden}), d_out = random({tokens, hidden});
    const Array ids = random_integers({tokens}, 0, used);
    const Array order = sorted_positions(ids);
    const Array out = array({tokens, hidden}), d_table = random(DType::kFloat32, {rows, hidden});
    embedding_forward({.out = out, .ids = ids, .table = table, .vocab_begin = begin}, stream());
    for (int64_t i = 0; i < out.size(); ++i) {
      const int64_t row = static_cast<int64_t>(ids.at(i / hidden)) - begin;
      ASSERT_EQ(out.at(i), row >= 0 && row < rows ? table.at(row * hidden + i % hidden) : 0.0) << i;
    }
    const Exact exact = exact_embedding_backward(d_table.host(), d_out.host(), ids.host(), begin);
    embedding_backward({d_table, d_out, ids, order, begin}, stream());
    expect_exact(d_table, "embedding_backward d_table", exact);
    expect_reproducible([&, h = hidden, r = rows, b = begin] {
      const Array zeros = filled(DType::kFloat32, {r, h}, 0.25);
      embedding_backward({zeros, d_out, ids, order, b}, stream());
      return zeros;
    });
  }
}

// Each rank has the rows of the table between two boundaries. Some ranks have no row that occurs in the ids, and id 31,
// which occurs most often, is the last row of its rank.
TEST_P(EmbeddingTest, PartsOfTheTableEqualTheWhole) {
  constexpr int64_t kTokens = 3001, kVocab = 90, kHidden = 264;
  const Array table = random({kVocab, kHidden}), d_out = random({kTokens, kHidden});
  const Array d_table = random(DType::kFloat32, {kVocab, kHidden}), expected_d_table = d_table;
  Array ids = random_integers({kTokens}, 5, 80);
  for (int64_t t = 0; t < kTokens; t += 3) ids.set(t, 31);
  const Array order = sorted_positions(ids);
  embedding_backward({expected_d_table, d_out, ids, order}, stream());
  int64_t begin = 0;
  for (const int64_t end : {3, 32, 33, 90}) {
    const Tensor part = static_cast<const Tensor&>(d_table).rows(begin, end);
    embedding_backward({.d_table = part, .d_out = d_out, .ids = ids, .order = order, .vocab_begin = begin}, stream());
    begin = end;
  }
  EXPECT_TRUE(d_table.bits() == expected_d_table.bits());
}

TEST_P(EmbeddingTest, WrongShapesThrow) {
  const Array table = random({3, 5}), short_out = array({2, 4}), d_table = random(DType::kFloat32, {3, 5});
  const Array ids = random_integers({2}, 0, 3);
  expect_error(
      [&] {
        embedding_forward({short_out, ids, table}, stream());
      },
      fmt::format("embedding_forward out is {} [2, 4], expected", dtype_name(dtype())));
  expect_error([&] { embedding_backward({d_table, short_out, ids, ids}, stream()); }, "[2, 4], expected");
  expect_error(
      [&] {
        embedding_backward({d_table, short_out, ids, {}}, stream());
      },
      "embedding_backward order is missing, expected int32 [2]");
}

}  // namespace
}  // namespace octavo::embedding_test
