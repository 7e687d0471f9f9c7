// Tests of the loss over whole rows of logits, and over rows whose columns are divided among several ranks.
#include "kernels/layers/cross_entropy.h"

#include "kernels/layers/cross_entropy_parallel.h"
#include "tests/kernels/law.h"

namespace octavo::cross_entropy_test {
namespace {

constexpr float kScale = 0.125f;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Size {
  int64_t tokens, vocab;
};

class CrossEntropyTest : public LawTest {
 protected:
  // On a GPU the vocabularies fit one block, a cluster of each size, or no cluster. Some are multiples of 8. With many
  // rows each block iterates over several of them. On the CPU the float32 sum of exponentials is too imprecise for
  // large vocabularies.
  std::vector<Size> sizes() const {
    std::vector<Size> all = {{1, 1}, {3, 7}, {33, 17}, {130, 272}, {37, 1009}};
    if (on_gpu()) {
      for (const Size& size : {Size{1, 2},
                               {5, 32000},
                               {5, 50264},
                               {5, 50257},
                               {9, 128256},
                               {3, 128257},
                               {2, 151936},
                               {2, 262152},
                               {2, 300000},
                               {17001, 272},
                               {6403, 4112},
                               {1603, 16392}}) {
        all.push_back(size);
      }
    }
    return all;
  }

  // Returns targets of which the first is the last column, and some are ignored.
  Array random_targets(int64_t tokens, int64_t vocab) {
    Array targets = random_integers({tokens}, 0, static_cast<int32_t>(vocab));
    targets.set(0, static_cast<double>(vocab - 1));
    for (int64_t t = 1; t < tokens; t += 1 + t % 5) targets.set(t, -1);
    return targets;
  }

  Array losses_of(int64_t tokens) { return array(DType::kFloat32, {tokens}); }

  // Returns the losses of logits without a gradient.
  Values losses_alone(const Array& logits, const Array& targets) {
    const Array losses = losses_of(targets.size());
    cross_entropy({.losses = losses, .d_logits = {}, .logits = logits, .targets = targets}, stream());
    return losses.values();
  }
};
INSTANTIATE_DEVICES_AND_DTYPES(CrossEntropyTest);

// The gradient is optional and may overwrite the logits.
TEST_P(CrossEntropyTest, LossAndGradient) {
  for (const auto& [tokens, vocab] : sizes()) {
    const Array logits = random({tokens, vocab}, 3.0), targets = random_targets(tokens, vocab);
    const Array losses = losses_of(tokens), losses_in_place = losses, in_place = logits;
    const Array d_logits = array({tokens, vocab});
    const ExactCrossEntropy exact = exact_cross_entropy({logits.host()}, targets.host(), double{kScale});
    cross_entropy({losses, d_logits, logits, targets, kScale}, stream());
    expect_exact(losses, "cross_entropy losses", exact.losses);
    expect_exact(d_logits, "cross_entropy d_logits", exact.d_logits[0]);
    EXPECT_EQ(losses_alone(logits, targets), losses.values()) << "losses change with d_logits, " << vocab;
    cross_entropy({losses_in_place, in_place, in_place, targets, kScale}, stream());
    EXPECT_TRUE(losses_in_place.bits() == losses.bits()) << "in place differs, vocabulary " << vocab;
    EXPECT_TRUE(in_place.bits() == d_logits.bits()) << "in place differs, vocabulary " << vocab;
  }
}

TEST_P(CrossEntropyTest, ZLoss) {
  constexpr float kZLoss = 0.05f;
  for (const auto& [tokens, vocab] : sizes()) {
    const Array logits = random({tokens, vocab}, 3.0), targets = random_targets(tokens, vocab);
    const Array losses = losses_of(tokens), z_losses = losses_of(tokens);
    const ExactCrossEntropy exact =
        exact_cross_entropy({logits.host()}, targets.host(), double{kScale}, double{kZLoss});
    cross_entropy({losses, logits, logits, targets, kScale, kZLoss, z_losses}, stream());
    expect_exact(losses, "cross_entropy losses", exact.losses);
    expect_exact(z_losses, "cross_entropy z_losses", exact.z_losses);
    expect_exact(logits, "cross_entropy d_logits with z-loss", exact.d_logits[0]);
  }
}

TEST(CrossEntropyFormula, Gradient) {
  std::mt19937_64 generator(7);
  std::normal_distribution<double> normal(0, 2);
  Array logits(DType::kFloat32, {3, 19}), targets(DType::kInt32, {3});
  for (int64_t i = 0; i < logits.size(); ++i) logits.set(i, normal(generator));
  for (int64_t t = 0; t < 3; ++t) targets.set(t, static_cast<double>(t == 1 ? -1 : 9 * t));
  for (const double z_loss : {0.0, 0.05}) {
    const auto exact = [&] { return exact_cross_entropy({logits.host()}, targets.host(), 0.37, z_loss); };
    const auto loss = [&] {
      const ExactCrossEntropy now = exact();
      double sum = 0;
      for (size_t t = 0; t < 3; ++t) sum += 0.37 * (now.losses.values[t] + now.z_losses.values[t]);
      return sum;
    };
    expect_gradient(exact().d_logits[0], logits, loss, "d_logits");
  }
}

// Masked columns, which may hold anything before, change no loss and no other gradient. Their own gradients are zero.
TEST_P(CrossEntropyTest, PaddingIsNoPartOfTheVocabulary) {
  for (const auto& [tokens, vocab] : sizes()) {
    for (const int64_t padding : {1, 15}) {
      const int64_t columns = vocab + padding;
      const Array logits = random({tokens, vocab}, 3.0), targets = random_targets(tokens, vocab);
      Array padded = array({tokens, columns}), unpadded = logits;
      for (int64_t i = 0; i < logits.size(); ++i) padded.set(i / vocab * columns + i % vocab, logits.at(i));
      const Array losses = losses_of(tokens);
      const ExactCrossEntropy exact = exact_cross_entropy({logits.host()}, targets.host(), double{kScale});
      mask_padding({.logits = padded, .vocab = vocab}, stream());
      cross_entropy({losses, padded, padded, targets, kScale}, stream());
      expect_exact(losses, "cross_entropy losses", exact.losses);
      for (int64_t i = 0; i < logits.size(); ++i) unpadded.set(i, padded.at(i / vocab * columns + i % vocab));
      expect_exact(unpadded, "cross_entropy d_logits", exact.d_logits[0]);
      for (int64_t i = 0; i < padded.size(); ++i) {
        ASSERT_TRUE(i % columns < vocab || padded.at(i) == 0) << i << " of " << tokens << " x " << columns;
      }
    }
  }
}

// In each kernel the cast of the gradient has the bits of quantizing the gradient. Some columns are padding.
TEST_P(CrossEntropyTest, CastsItsGradient) {
  if (on_gpu() && dtype() == DType::kFloat32) return;  // GPUs cast only bfloat16.
  for (const auto& [tokens, vocab] : sizes()) {
    if (on_gpu() && vocab % 16 != 0) continue;  // as the config requires
    const int64_t padding = std::min<int64_t>(vocab - 1, 3);
    const Array logits = random({tokens, vocab}, 3.0), targets = random_targets(tokens, vocab - padding);
    const Array losses = losses_of(tokens), losses_beside = losses_of(tokens), d_logits = array({tokens, vocab});
    mask_padding({.logits = logits, .vocab = vocab - padding}, stream());
    cross_entropy({losses, d_logits, logits, targets, kScale}, stream());
    for (const DType format : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      const Array expected = array(format, {tokens, vocab}), made = expected;
      const Array expected_scale = array(DType::kFloat32, {1}), made_scale = expected_scale, in_place = logits;
      quantize({.cast = {.rows = {expected, expected_scale}, .bound = kScale}, .x = d_logits}, stream());
      cross_entropy({.losses = losses_beside,
                     .d_logits = in_place,
                     .logits = in_place,
                     .targets = targets,
                     .scale = kScale,
                     .cast = {.rows = {made, made_scale}, .columns = {}, .amax = {}, .bound = kScale}},
                    stream());
      EXPECT_TRUE(made.bits() == expected.bits()) << tokens << " x " << vocab << " " << dtype_name(format);
      EXPECT_EQ(made_scale.bits(), expected_scale.bits());
      EXPECT_TRUE(losses_beside.bits() == losses.bits());
    }
  }
}

TEST_P(CrossEntropyTest, IgnoredTargetsGiveZeros) {
  Array logits = random({2, 5});
  logits.set(1, kNan);
  const Array targets = filled(DType::kInt32, {2}, -1), losses = losses_of(2), d_logits = array({2, 5});
  cross_entropy({losses, d_logits, logits, targets}, stream());
  EXPECT_EQ(losses.values(), Values(2, 0.0));
  EXPECT_EQ(d_logits.values(), Values(10, 0.0));
}

TEST_P(CrossEntropyTest, LargeLogitsDoNotOverflow) {
  Array logits = array({2, 3});
  const double values[] = {30000, 29990, -30000, -20000, -20000, -30000};
  for (int64_t i = 0; i < 6; ++i) logits.set(i, values[i]);
  const Values losses = losses_alone(logits, filled(DType::kInt32, {2}, 1));
  const double gap = logits.at(0) - logits.at(1);  // The gap after rounding to the dtype.
  // The float32 logit of 30000 has an error of up to 2^-9.
  EXPECT_NEAR(losses[0], gap + std::log(1 + std::exp(-gap)), 4e-3);
  EXPECT_NEAR(losses[1], std::log(2.0), 4e-3);
}

// The broken logit is that of the target, of its neighbour or of the last column. Row 1 has no other logits.
TEST_P(CrossEntropyTest, BrokenLogitsGiveANanLoss) {
  for (const int64_t vocab : on_gpu() ? std::vector<int64_t>{67, 272, 1009, 128256} : std::vector<int64_t>{67, 1009}) {
    for (const double broken : {kNan, kInfinity}) {
      for (const int64_t at : {int64_t{0}, int64_t{2}, vocab - 1}) {
        Array logits = random({3, vocab}), targets = filled(DType::kInt32, {3}, 0);
        logits.set(at, broken);
        for (int64_t v = 0; v < vocab; ++v) logits.set(vocab + v, kNan);
        const Values losses = losses_alone(logits, targets);
        EXPECT_TRUE(std::isnan(losses[0])) << broken << " at " << at << " of " << vocab << ": " << losses[0];
        EXPECT_TRUE(std::isnan(losses[1])) << vocab;
        EXPECT_TRUE(std::isfinite(losses[2])) << vocab;
      }
    }
  }
}

TEST_P(CrossEntropyTest, MinusInfinityIsProbabilityZero) {
  Array logits = random({2, 7}), targets = filled(DType::kInt32, {2}, 5);
  logits.set(3, -kInfinity);
  logits.set(7 + 3, -kInfinity);
  targets.set(1, 3);
  const Array losses = losses_of(2), d_logits = array({2, 7});
  cross_entropy({losses, d_logits, logits, targets}, stream());
  EXPECT_NEAR(losses.at(0), exact_cross_entropy({logits.host()}, targets.host(), 1).losses.values[0], 1e-6);
  EXPECT_NEAR(d_logits.at(3), 0, 1e-30);
  EXPECT_EQ(losses.at(1), kInfinity);
}

TEST_P(CrossEntropyTest, IsReproducible) {
  const Array logits = random({31, 307}, 3.0), targets = random_targets(31, 307);
  for (const bool gradient : {false, true}) {
    expect_reproducible([&] {
      const Array losses = losses_of(31), d_logits = array({31, 307});
      cross_entropy({losses, d_logits, logits, targets}, stream());
      return gradient ? d_logits : losses;
    });
  }
}

TEST_P(CrossEntropyTest, WrongArgumentsThrow) {
  const Array logits = random({3, 5}), losses = losses_of(3), turned = array({5, 3});
  const Array targets = random_targets(3, 5), few_targets = random_targets(2, 5);
  const auto run = [&](const Tensor& d_logits, const Tensor& of) {
    cross_entropy({losses, d_logits, logits, of}, stream());
  };
  expect_error([&] { run({}, few_targets); }, "cross_entropy targets is int32 [2], expected int32 [3]");
  expect_error([&] { run(turned, targets); }, "[5, 3], expected");
  const Array rows = array(DType::kFloat8E4M3, {3, 5}), columns = array(DType::kFloat8E4M3, {5, 3}), scale = single(1);
  for (const Fp8Cast& cast : {Fp8Cast{.rows = {rows, scale}, .columns = {columns, scale}, .bound = kScale},
                              Fp8Cast{.rows = {rows, scale}, .amax = scale}}) {
    EXPECT_THROW(
        cross_entropy({.losses = losses, .d_logits = logits, .logits = logits, .targets = targets, .cast = cast},
                      stream()),
        Error);
  }
}

// ---- A vocabulary that ranks share

// Logits of which each rank has some columns. They start `offset` elements after an aligned address.
class CrossEntropyParallelTest : public CrossEntropyTest {
 protected:
  struct Shared {
    std::vector<Array> parts;
    Array targets, stats;
  };

  // Returns the stats of the ranks, as an all-gather orders them.
  Array gathered_stats(const std::vector<Array>& parts, const Array& targets) {
    const Array stats = array(DType::kFloat32, {std::ssize(parts), targets.size(), kCrossEntropyStats});
    int64_t begin = 0;
    for (int64_t rank = 0; rank < std::ssize(parts); ++rank) {
      const Array& part = parts[static_cast<size_t>(rank)];
      const Tensor own = static_cast<const Tensor&>(stats).rows(rank, rank + 1);
      cross_entropy_stats({own.view({targets.size(), kCrossEntropyStats}), part, targets, begin}, stream());
      begin += part.dim(1);
    }
    return stats;
  }

  Shared random_parts(int64_t ranks, const Size& size, int64_t offset = 0) {
    Shared shared{{}, random_targets(size.tokens, ranks * size.vocab), array(DType::kFloat32, {1})};
    for (int64_t rank = 0; rank < ranks; ++rank) {
      shared.parts.push_back(on_device(random({size.tokens, size.vocab}, 3.0), offset));
    }
    shared.stats = gathered_stats(shared.parts, shared.targets);
    return shared;
  }

  // Returns the losses of each rank.
  std::vector<Values> losses_of_ranks(const std::vector<Array>& parts, const Array& targets) {
    const Array stats = gathered_stats(parts, targets);
    std::vector<Values> losses;
    int64_t begin = 0;
    for (const Array& part : parts) {
      const Array of_rank = CrossEntropyTest::losses_of(targets.size());
      cross_entropy_parallel({of_rank, {}, part, targets, stats, begin}, stream());
      losses.push_back(of_rank.values());
      begin += part.dim(1);
    }
    return losses;
  }

  // Compares all ranks with the whole rows. The gradients start `d_offset` elements after an aligned address.
  void check(int64_t ranks, const Size& size, int64_t offset = 0, int64_t d_offset = 0, float z_loss = 0) {
    SCOPED_TRACE(fmt::format("{} ranks, {} x {}, offsets {} and {}", ranks, size.tokens, size.vocab, offset, d_offset));
    const Shared shared = random_parts(ranks, size, offset);
    std::vector<Tensor> parts;
    for (const Array& part : shared.parts) parts.push_back(part.host());
    const ExactCrossEntropy exact =
        exact_cross_entropy(parts, shared.targets.host(), double{kScale}, static_cast<double>(z_loss));
    Values first_losses;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const Array& logits = shared.parts[static_cast<size_t>(rank)];
      Array losses = losses_of(size.tokens), z_losses = losses;
      const auto run = [&](const Tensor& d_logits) {
        poison(losses);
        const int64_t begin = rank * size.vocab;
        cross_entropy_parallel(
            {losses, d_logits, logits, shared.targets, shared.stats, begin, kScale, z_loss, z_losses}, stream());
      };
      const Array d_logits = array(dtype(), {size.tokens, size.vocab}, d_offset);
      run(d_logits);
      expect_exact(losses, "cross_entropy_parallel losses", exact.losses);
      expect_exact(z_losses, "cross_entropy_parallel z_losses", exact.z_losses);
      expect_exact(d_logits, "cross_entropy_parallel d_logits", exact.d_logits[static_cast<size_t>(rank)]);
      if (rank == 0) first_losses = losses.values();
      EXPECT_EQ(losses.values(), first_losses) << "losses differ between ranks";
      run({});
      EXPECT_EQ(losses.values(), first_losses) << "losses change with d_logits";
      run(logits);  // The gradient overwrites the logits.
      EXPECT_TRUE(logits.bits() == d_logits.bits()) << "in place differs";
    }
  }
};
INSTANTIATE_DEVICES_AND_DTYPES(CrossEntropyParallelTest);

// The widths cover single elements, a few vectors, one iteration and several iterations of a GPU's block, and even and
// odd numbers.
TEST_P(CrossEntropyParallelTest, PartsEqualTheWholeRow) {
  for (const int64_t ranks : {1, 2, 5}) {
    for (const int64_t width : {1, 7, 272}) check(ranks, {11, width});
  }
  check(3, {37, 1009});
  if (!on_gpu()) return;
  for (const Size& size : {Size{1, 2},
                           {33, 17},
                           {130, 272},
                           {2001, 4104},
                           {5, 16032},
                           {5, 16033},
                           {7, 32064},
                           {9, 32061},
                           {2, 128256},
                           {3, 128257}}) {
    check(3, size);
  }
}

TEST_P(CrossEntropyParallelTest, ZLoss) {
  for (const Size& size : {Size{33, 17}, {130, 272}, {37, 1009}}) check(3, size, 0, 0, 0.05f);
  if (on_gpu()) check(3, {7, 32064}, 0, 0, 0.05f);
}

TEST_P(CrossEntropyParallelTest, Unaligned) {
  for (const Size& size : {Size{3, 5}, {21, 272}, {13, 1009}, {3, on_gpu() ? 32003 : 17}}) {
    check(3, size, 1, 1);
    check(3, size, 3, 0);
  }
}

// The largest logit and that of the target are exact. Targets are in the parts of several ranks.
TEST_P(CrossEntropyParallelTest, StatsByDefinition) {
  for (const Size& size : {Size{7, 67}, {33, 17}, {5, on_gpu() ? 32061 : 1009}}) {
    const Shared shared = random_parts(3, size);
    Exact exact(shared.stats.size());
    for (int64_t i = 0; i < 3 * size.tokens; ++i) {
      const Array& part = shared.parts[static_cast<size_t>(i / size.tokens)];
      const auto target = static_cast<int64_t>(shared.targets.at(i % size.tokens));
      const int64_t column = target - i / size.tokens * size.vocab;
      const auto logit = [&](int64_t v) { return part.at(i % size.tokens * size.vocab + v); };
      if (target < 0) continue;  // The stats of an ignored token are zero.
      double max = -kInfinity, sum = 0;
      for (int64_t v = 0; v < size.vocab; ++v) max = std::max(max, logit(v));
      for (int64_t v = 0; v < size.vocab; ++v) sum += std::exp(logit(v) - max);
      exact.set(i * kCrossEntropyStats, max, 0);
      exact.set(i * kCrossEntropyStats + 1, sum, 5e-6 * sum);
      exact.set(i * kCrossEntropyStats + 2, column >= 0 && column < size.vocab ? logit(column) : 0.0, 0);
    }
    expect_exact(shared.stats, "cross_entropy_stats", exact);
  }
}

TEST_P(CrossEntropyParallelTest, PartsMayDiffer) {
  const std::vector<Array> parts = {random({5, 1}, 3.0), random({5, 64}, 3.0), random({5, 35}, 3.0)};
  const Array targets = random_targets(5, 100);
  Array whole = array({5, 100});
  for (int64_t i = 0; i < 500; ++i) {
    const int64_t row = i / 100, c = i % 100;
    whole.set(i, c < 1 ? parts[0].at(row) : c < 65 ? parts[1].at(row * 64 + c - 1) : parts[2].at(row * 35 + c - 65));
  }
  const Values expected = losses_alone(whole, targets);
  for (const Values& losses : losses_of_ranks(parts, targets)) EXPECT_LT(relative_error(losses, expected), 1e-6);
}

// The vocabulary ends within the second part, so the third part has only padding.
TEST_P(CrossEntropyParallelTest, PartsMayHavePadding) {
  constexpr int64_t kTokens = 5, kColumns = 16, kVocab = 21;
  std::vector<Array> parts;
  const Array whole = random({kTokens, kVocab}, 3.0), targets = random_targets(kTokens, kVocab);
  for (int64_t begin = 0; begin < 3 * kColumns; begin += kColumns) {
    Array& part = parts.emplace_back(array({kTokens, kColumns}));
    const int64_t vocab = std::clamp<int64_t>(kVocab - begin, 0, kColumns);
    for (int64_t i = 0; i < kTokens * vocab; ++i) {
      part.set(i / vocab * kColumns + i % vocab, whole.at(i / vocab * kVocab + begin + i % vocab));
    }
    mask_padding({.logits = part, .vocab = vocab}, stream());
  }
  const Array losses = losses_of(kTokens), d_whole = whole, stats = gathered_stats(parts, targets);
  cross_entropy({losses, d_whole, whole, targets, kScale}, stream());
  for (int64_t rank = 0; rank < 3; ++rank) {
    const Array of_rank = losses_of(kTokens), d_part = parts[static_cast<size_t>(rank)];
    cross_entropy_parallel({of_rank, d_part, d_part, targets, stats, rank * kColumns, kScale}, stream());
    EXPECT_LT(relative_error(of_rank.values(), losses.values()), 1e-6);
    for (int64_t i = 0; i < d_part.size(); ++i) {
      const int64_t column = rank * kColumns + i % kColumns;
      if (column >= kVocab) {
        EXPECT_EQ(d_part.at(i), 0) << i;
      } else {
        const double expected = d_whole.at(i / kColumns * kVocab + column);
        EXPECT_NEAR(d_part.at(i), expected, (dtype() == DType::kBFloat16 ? 1e-2 : 1e-5) * std::abs(expected)) << i;
      }
    }
  }
}

// Row 0 has the largest logit in one part, and in row 1 all logits of the first part are far below those of the other.
// Rows 2 and 3 contain infinities, and the logit of the target of row 4 is -infinity.
TEST_P(CrossEntropyParallelTest, ExtremeLogits) {
  std::vector<Array> parts = {random({5, 6}, 3.0), random({5, 6}, 3.0)};
  Array targets = array(DType::kInt32, {5}), whole = array({5, 12});
  const int32_t columns[] = {2, 7, 3, 11, 5};
  for (int64_t t = 0; t < 5; ++t) targets.set(t, columns[t]);
  for (int64_t v = 0; v < 12; ++v) {
    Array& part = parts[static_cast<size_t>(v / 6)];
    part.set(v % 6, v == 2 ? 30000 : -30000);
    part.set(6 + v % 6, v < 6 ? -30000 : 30000 - static_cast<double>(v));
    if (v % 5 == 0) part.set(12 + v % 6, -kInfinity);
    if (v < 6) part.set(18 + v % 6, -kInfinity);
    if (v == 5) part.set(24 + v % 6, -kInfinity);
    for (int64_t row = 0; row < 5; ++row) whole.set(row * 12 + v, part.at(row * 6 + v % 6));
  }
  const Values expected = losses_alone(whole, targets);
  for (const Values& losses : losses_of_ranks(parts, targets)) {
    for (size_t row = 0; row < 4; ++row) EXPECT_NEAR(losses[row], expected[row], 1e-6 * (1 + expected[row])) << row;
    EXPECT_EQ(losses[4], kInfinity);
  }
}

TEST_P(CrossEntropyParallelTest, BrokenLogitsGiveANanLossOnEveryRank) {
  for (const int64_t width : {int64_t{34}, on_gpu() ? int64_t{32064} : int64_t{272}}) {
    std::vector<Array> parts = {random({4, width}), random({4, width})};
    const Array targets = filled(DType::kInt32, {4}, static_cast<double>(width));
    parts[0].set(width - 1, kNan);
    parts[1].set(width + 2, kInfinity);
    for (int64_t v = 0; v < width; ++v) parts[1].set(2 * width + v, kNan);
    for (int64_t v = 0; v < width; ++v) parts[0].set(3 * width + v, -kInfinity);
    for (const Values& losses : losses_of_ranks(parts, targets)) {
      for (const size_t row : {0, 1, 2}) EXPECT_TRUE(std::isnan(losses[row])) << row << " " << width;
      EXPECT_TRUE(std::isfinite(losses[3])) << width;
    }
  }
}

TEST_P(CrossEntropyParallelTest, IsReproducible) {
  const Shared shared = random_parts(2, {31, 154});
  for (const bool gradient : {false, true}) {
    expect_reproducible([&] {
      const Array stats = gathered_stats(shared.parts, shared.targets);
      const Array losses = losses_of(31), d_logits = array({31, 154});
      cross_entropy_parallel({losses, d_logits, shared.parts[1], shared.targets, stats, 154}, stream());
      return gradient ? d_logits : losses;
    });
  }
}

TEST_P(CrossEntropyParallelTest, WrongShapesThrow) {
  const Array logits = random({3, 5}), targets = random_targets(3, 5), losses = losses_of(3);
  const Array flat = array(DType::kFloat32, {9}), stats = array(DType::kFloat32, {2, 4, kCrossEntropyStats});
  expect_error(
      [&] {
        cross_entropy_stats({flat, logits, targets}, stream());
      },
      "cross_entropy_stats stats is float32 [9], expected float32 [3, 3]");
  expect_error(
      [&] {
        cross_entropy_parallel({losses, {}, logits, targets, stats}, stream());
      },
      "cross_entropy_parallel stats is float32 [2, 4, 3], expected float32 [2, 3, 3]");
}

}  // namespace
}  // namespace octavo::cross_entropy_test
