#include "kernels/layers/cross_entropy_parallel.h"

#include <limits>

#include "kernels/layers/cross_entropy.h"
#include "tests/kernels/op_fixture.h"

namespace octavo::cross_entropy_parallel_test {
namespace {

constexpr float kScale = 0.37f;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Results for logits [tokens, vocab], computed by one rank or by several.
struct Result {
  std::vector<Array> losses;    // Losses that each rank computes.
  std::vector<Array> z_losses;  // Z-losses that each rank computes.
  Array d_logits;               // Gradients of all ranks, joined along the vocabulary.
};

// Returns columns [begin, begin + width) of x. set_columns does the reverse.
Array columns_of(const Array& x, int64_t tokens, int64_t begin, int64_t width) {
  Array part(x.dtype(), {tokens, width});
  const int64_t vocab = x.size() / tokens;
  for (int64_t i = 0; i < part.size(); ++i) part.set(i, x.at(i / width * vocab + begin + i % width));
  return part;
}
void set_columns(Array& x, int64_t tokens, int64_t begin, const Array& part) {
  const int64_t width = part.size() / tokens;
  const int64_t vocab = x.size() / tokens;
  for (int64_t i = 0; i < part.size(); ++i) x.set(i / width * vocab + begin + i % width, part.at(i));
}

class CrossEntropyParallelTest : public OpTest {
 protected:
  Result whole(const Array& logits, const Array& targets) {
    const int64_t tokens = targets.size();
    const Array losses(DType::kFloat32, {tokens});
    const Array z_losses(DType::kFloat32, {tokens});
    const Array d_logits(dtype(), {tokens, logits.size() / tokens});
    cross_entropy({.losses = losses,
                   .d_logits = d_logits,
                   .logits = logits,
                   .targets = targets,
                   .scale = kScale,
                   .z_loss = z_loss_,
                   .z_losses = z_losses},
                  stream_);
    return {{losses}, {z_losses}, d_logits};
  }

  // Returns the stats of all ranks, one rank after the other, as an all-gather orders them.
  Array gathered_stats(const std::vector<Array>& parts, const Array& targets) {
    const auto ranks = static_cast<int64_t>(parts.size());
    const int64_t tokens = targets.size();
    Array all(DType::kFloat32, {ranks, tokens, kCrossEntropyStats});
    int64_t vocab_begin = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const Array& logits = parts[static_cast<size_t>(rank)];
      const Array stats(DType::kFloat32, {tokens, kCrossEntropyStats});
      cross_entropy_stats({.stats = stats, .logits = logits, .targets = targets, .vocab_begin = vocab_begin}, stream_);
      for (int64_t i = 0; i < stats.size(); ++i) all.set(rank * stats.size() + i, stats.at(i));
      vocab_begin += logits.size() / tokens;
    }
    return all;
  }

  // Computes the loss on ranks that have `widths[rank]` columns each.
  Result split(const Array& logits, const Array& targets, const std::vector<int64_t>& widths) {
    const int64_t tokens = targets.size();
    std::vector<Array> parts;
    int64_t vocab = 0;
    for (const int64_t width : widths) {
      parts.push_back(columns_of(logits, tokens, vocab, width));
      vocab += width;
    }
    EXPECT_EQ(vocab * tokens, logits.size());
    const Array stats = gathered_stats(parts, targets);
    Result result{{}, {}, Array(dtype(), {tokens, vocab})};
    int64_t vocab_begin = 0;
    for (const Array& part : parts) {
      const Array losses(DType::kFloat32, {tokens});
      const Array z_losses(DType::kFloat32, {tokens});
      const Array d_logits(dtype(), {tokens, part.size() / tokens});
      cross_entropy_parallel({.losses = losses,
                              .d_logits = d_logits,
                              .logits = part,
                              .targets = targets,
                              .stats = stats,
                              .vocab_begin = vocab_begin,
                              .scale = kScale,
                              .z_loss = z_loss_,
                              .z_losses = z_losses},
                             stream_);
      set_columns(result.d_logits, tokens, vocab_begin, d_logits);
      result.losses.push_back(losses);
      result.z_losses.push_back(z_losses);
      vocab_begin += part.size() / tokens;
    }
    return result;
  }

  static std::vector<int64_t> equal_parts(int64_t vocab, int64_t ranks) {
    return std::vector<int64_t>(static_cast<size_t>(ranks), vocab / ranks);
  }

  void expect_as_whole(const Array& logits, const Array& targets, const std::vector<int64_t>& widths) {
    const Result expected = whole(logits, targets);
    const Result found = split(logits, targets, widths);
    for (const Array& losses : found.losses) {
      expect_close(losses, expected.losses[0].values(), 1e-6, "losses");
      EXPECT_EQ(losses.bits(), found.losses[0].bits()) << "ranks differ";
    }
    for (const Array& z_losses : found.z_losses) {
      expect_close(z_losses, expected.z_losses[0].values(), 1e-6, "z_losses");
      EXPECT_EQ(z_losses.bits(), found.z_losses[0].bits()) << "ranks differ";
    }
    expect_close(found.d_logits, expected.d_logits.values(), dtype() == DType::kBFloat16 ? tolerance() : 1e-6,
                 "d_logits");
  }

  float z_loss_ = 0;
};
INSTANTIATE_COMPUTE_DTYPES(CrossEntropyParallelTest);

TEST_P(CrossEntropyParallelTest, PartsEqualTheWholeRow) {
  for (const int64_t ranks : {1, 2, 4, 5}) {
    for (const int64_t width : {1, 7, 272, 1009}) {
      const int64_t vocab = ranks * width;
      Array targets = random_integers({11}, 0, static_cast<int32_t>(vocab));
      targets.set(0, 0);
      targets.set(1, -1);
      targets.set(2, static_cast<double>(vocab - 1));
      targets.set(3, static_cast<double>(vocab - width));
      expect_as_whole(random({11, vocab}, 3.0), targets, equal_parts(vocab, ranks));
    }
  }
}

TEST_P(CrossEntropyParallelTest, PartsMayDiffer) {
  expect_as_whole(random({5, 100}, 3.0), random_integers({5}, 0, 100), {1, 64, 35});
}

TEST_P(CrossEntropyParallelTest, ZLoss) {
  z_loss_ = 0.05f;
  Array targets = random_integers({11}, 0, 272);
  targets.set(4, -1);
  expect_as_whole(random({11, 272}, 3.0), targets, equal_parts(272, 4));
  expect_as_whole(random({11, 272}, 3.0), targets, {100, 1, 171});
}

TEST_P(CrossEntropyParallelTest, StatsByDefinition) {
  const Array logits = random({7, 67}, 3.0);
  Array targets = random_integers({7}, 0, 400);
  targets.set(0, 130);
  targets.set(1, 130 + 66);
  targets.set(2, 129);
  targets.set(3, 130 + 67);
  targets.set(4, -1);
  const Array stats(DType::kFloat32, {7, kCrossEntropyStats});
  cross_entropy_stats({.stats = stats, .logits = logits, .targets = targets, .vocab_begin = 130}, stream_);
  Values expected;
  for (int64_t t = 0; t < 7; ++t) {
    const int64_t column = static_cast<int64_t>(targets.at(t)) - 130;
    double max = -kInfinity;
    for (int64_t v = 0; v < 67; ++v) max = std::max(max, logits.at(t * 67 + v));
    double sum = 0;
    for (int64_t v = 0; v < 67; ++v) sum += std::exp(logits.at(t * 67 + v) - max);
    const double target = column >= 0 && column < 67 ? logits.at(t * 67 + column) : 0.0;
    const bool ignored = targets.at(t) < 0;
    for (const double value : {max, sum, target}) expected.push_back(ignored ? 0.0 : value);
  }
  expect_close(stats, expected, 1e-6, "stats");
}

TEST_P(CrossEntropyParallelTest, GradientIsOptionalAndMayAlias) {
  const Array logits = random({9, 35}, 3.0);
  const Array targets = random_integers({9}, -1, 35);
  const Array stats = gathered_stats({logits}, targets);
  const Result expected = split(logits, targets, {35});
  const Array losses(DType::kFloat32, {9});
  CrossEntropyParallel args{
      .losses = losses, .d_logits = {}, .logits = logits, .targets = targets, .stats = stats, .scale = kScale};
  cross_entropy_parallel(args, stream_);
  EXPECT_EQ(losses.bits(), expected.losses[0].bits());
  args.d_logits = logits;
  cross_entropy_parallel(args, stream_);
  EXPECT_EQ(losses.bits(), expected.losses[0].bits());
  EXPECT_EQ(logits.bits(), expected.d_logits.bits());
}

TEST_P(CrossEntropyParallelTest, IgnoredTargetsGiveZeros) {
  Array logits = random({2, 8});
  logits.set(1, kNan);
  Array targets(DType::kInt32, {2});
  targets.fill(-1);
  const Result result = split(logits, targets, {4, 4});
  for (const Array& losses : result.losses) EXPECT_EQ(losses.values(), Values(2, 0.0));
  EXPECT_EQ(result.d_logits.values(), Values(16, 0.0));
}

// Row 0 has the largest logit in one part, and in row 1 all logits of the first part are far below those of the other.
// Rows 2 and 3 contain infinities.
TEST_P(CrossEntropyParallelTest, ExtremeLogits) {
  Array logits = random({4, 12}, 3.0);
  for (int64_t v = 0; v < 12; ++v) {
    logits.set(v, v == 2 ? 30000 : -30000);
    logits.set(12 + v, v < 6 ? -30000 : 30000 - static_cast<double>(v));
    logits.set(24 + v, v % 5 == 0 ? -kInfinity : logits.at(24 + v));
    logits.set(36 + v, v < 6 ? -kInfinity : logits.at(36 + v));
  }
  Array targets(DType::kInt32, {4});
  const int32_t columns[] = {2, 7, 3, 11};
  for (int64_t t = 0; t < 4; ++t) targets.set(t, columns[t]);
  for (const int64_t ranks : {1, 2, 4}) expect_as_whole(logits, targets, equal_parts(12, ranks));

  targets.set(2, 5);  // The logit of this target is -infinity.
  EXPECT_EQ(split(logits, targets, {6, 6}).losses[0].at(2), kInfinity);
}

TEST_P(CrossEntropyParallelTest, BrokenLogitsGiveANanLossOnEveryRank) {
  for (const double broken : {kNan, kInfinity}) {
    for (const int64_t at : {0, 2, 66}) {
      Array logits = random({1, 68});
      logits.set(at, broken);
      Array targets(DType::kInt32, {1});
      targets.fill(0);
      for (const Array& losses : split(logits, targets, {34, 34}).losses) {
        EXPECT_TRUE(std::isnan(losses.at(0))) << broken << " at " << at << ": " << losses.at(0);
      }
    }
  }
}

TEST_P(CrossEntropyParallelTest, DoesNotDependOnThreads) {
  const Array logits = random({31, 308}, 3.0);
  const Array targets = random_integers({31}, -1, 308);
  expect_thread_independent([&] { return split(logits, targets, {154, 154}).losses[1]; });
  expect_thread_independent([&] { return split(logits, targets, {154, 154}).d_logits; });
}

TEST_P(CrossEntropyParallelTest, WrongShapesThrow) {
  const Array logits = random({3, 5});
  const Array targets = random_integers({3}, 0, 5);
  const Array losses(DType::kFloat32, {3});
  const Array flat(DType::kFloat32, {9});
  const Array stats(DType::kFloat32, {2, 4, kCrossEntropyStats});
  expect_error([&] { cross_entropy_stats({.stats = flat, .logits = logits, .targets = targets}, stream_); },
               "cross_entropy_stats stats is float32 [9], expected float32 [3, 3]");
  expect_error(
      [&] {
        cross_entropy_parallel({.losses = losses, .d_logits = {}, .logits = logits, .targets = targets, .stats = stats},
                               stream_);
      },
      "cross_entropy_parallel stats is float32 [2, 4, 3], expected float32 [2, 3, 3]");
}

}  // namespace
}  // namespace octavo::cross_entropy_parallel_test
