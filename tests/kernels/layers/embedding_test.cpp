#include "kernels/layers/embedding.h"

#include <algorithm>
#include <numeric>

#include "tests/kernels/op_fixture.h"

namespace octavo::embedding_test {
namespace {

class EmbeddingTest : public OpTest {
 protected:
  static Array sorted_positions(const Array& ids) {
    Array order(DType::kInt32, {ids.size()});
    std::vector<int32_t> positions(static_cast<size_t>(ids.size()));
    std::iota(positions.begin(), positions.end(), 0);
    std::stable_sort(positions.begin(), positions.end(), [&](int32_t a, int32_t b) { return ids.at(a) < ids.at(b); });
    for (int64_t i = 0; i < ids.size(); ++i) order.set(i, positions[static_cast<size_t>(i)]);
    return order;
  }
};
INSTANTIATE_COMPUTE_DTYPES(EmbeddingTest);

struct Size {
  int64_t tokens, vocab, hidden;
};
constexpr Size kSizes[] = {{1, 1, 1}, {7, 3, 5}, {37, 272, 67}, {13, 5, 131}};

Values definition(const Values& table, const Array& ids, int64_t hidden) {
  Values out;
  for (int64_t t = 0; t < ids.size(); ++t) {
    const auto row = table.begin() + static_cast<int64_t>(ids.at(t)) * hidden;
    out.insert(out.end(), row, row + hidden);
  }
  return out;
}

TEST_P(EmbeddingTest, ForwardCopiesRows) {
  for (const auto& [tokens, vocab, hidden] : kSizes) {
    const Array table = random({vocab, hidden});
    Array ids = random_integers({tokens}, 0, static_cast<int32_t>(vocab));
    ids.set(0, static_cast<double>(vocab - 1));
    const Array out(dtype(), {tokens, hidden});
    embedding_forward({.out = out, .ids = ids, .table = table}, stream_);
    EXPECT_EQ(out.values(), definition(table.values(), ids, hidden));
  }
}

TEST_P(EmbeddingTest, BackwardAddsTheGradientOfTheTable) {
  for (const auto& [tokens, vocab, hidden] : kSizes) {
    const Array table = random({vocab, hidden});
    const Array ids = random_integers({tokens}, 0, static_cast<int32_t>(vocab));
    const Array d_out = random({tokens, hidden});
    const Array d_table = random(DType::kFloat32, {vocab, hidden});
    const Values before = d_table.values();
    embedding_backward({.d_table = d_table, .d_out = d_out, .ids = ids, .order = sorted_positions(ids)}, stream_);
    const auto f = [&, width = hidden](const Values& x) { return dot(d_out, definition(x, ids, width)); };
    // The gradient is summed in float32 for every dtype.
    expect_gradient(d_table, f, table, 1e-6, "d_table", 3, before);
  }
}

// Each rank has the rows of the table between two cuts. Some ranks have no row that occurs in the ids.
TEST_P(EmbeddingTest, PartsOfTheTableAddUpToTheWhole) {
  constexpr int64_t kTokens = 53;
  constexpr int64_t kVocab = 40;
  constexpr int64_t kHidden = 67;
  Array table = random({kVocab, kHidden});
  Array d_table = random(DType::kFloat32, {kVocab, kHidden});
  const Array ids = random_integers({kTokens}, 5, 35);
  const Array order = sorted_positions(ids);
  const Array d_out = random({kTokens, kHidden});
  const Values expected_out = definition(table.values(), ids, kHidden);
  const Array expected_d_table = d_table;
  embedding_backward({.d_table = expected_d_table, .d_out = d_out, .ids = ids, .order = order}, stream_);
  Values sum(expected_out.size(), 0.0);
  int64_t begin = 0;
  for (const int64_t end : {3, 10, 11, 30, 40}) {
    const auto part = [&](const Tensor& whole) { return whole.rows(begin, end); };
    const Array out(dtype(), {kTokens, kHidden});
    embedding_forward({.out = out, .ids = ids, .table = part(table), .vocab_begin = begin}, stream_);
    for (int64_t i = 0; i < out.size(); ++i) {
      const double id = ids.at(i / kHidden);
      const bool inside = id >= static_cast<double>(begin) && id < static_cast<double>(end);
      ASSERT_EQ(out.at(i), inside ? expected_out[static_cast<size_t>(i)] : 0.0) << i << ", rows from " << begin;
    }
    sum = sum_of(sum, out.values());
    embedding_backward({.d_table = part(d_table), .d_out = d_out, .ids = ids, .order = order, .vocab_begin = begin},
                       stream_);
    begin = end;
  }
  EXPECT_EQ(sum, expected_out);
  EXPECT_EQ(d_table.bits(), expected_d_table.bits());
}

TEST_P(EmbeddingTest, BackwardDoesNotDependOnThreads) {
  const Array ids = random_integers({211}, 0, 5);
  const Array d_out = random({211, 193});
  const Array order = sorted_positions(ids);
  expect_thread_independent([&] {
    Array d_table(DType::kFloat32, {5, 193});
    d_table.fill(0.25);
    embedding_backward({.d_table = d_table, .d_out = d_out, .ids = ids, .order = order}, stream_);
    return d_table;
  });
}

TEST_P(EmbeddingTest, WrongShapesThrow) {
  const Array table = random({3, 5});
  const Array ids = random_integers({2}, 0, 3);
  const Array short_out(dtype(), {2, 4});
  const Array d_table = random(DType::kFloat32, {3, 5});
  expect_error([&] { embedding_forward({.out = short_out, .ids = ids, .table = table}, stream_); },
               "embedding_forward out is " + std::string(dtype_name(dtype())) + " [2, 4], expected");
  expect_error([&] { embedding_backward({.d_table = d_table, .d_out = short_out, .ids = ids, .order = ids}, stream_); },
               "[2, 4], expected");
  expect_error([&] { embedding_backward({.d_table = d_table, .d_out = short_out, .ids = ids, .order = {}}, stream_); },
               "embedding_backward order is missing, expected int32 [2]");
}

}  // namespace
}  // namespace octavo::embedding_test
