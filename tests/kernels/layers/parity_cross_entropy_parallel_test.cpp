// Cross entropy on the GPU with a vocabulary that ranks share, compared with float64 and with the CPU.
#include "kernels/layers/cross_entropy_parallel.h"
#include "tests/kernels/parity.h"

namespace octavo::parity_cross_entropy_parallel_test {
namespace {

constexpr int64_t kRanks = 3;

// Returns the exact stats [kRanks, tokens, 3] of the logits of each rank. The sum of exponentials may be off by 5e-6 of
// itself. The largest logit and that of the target must be exact.
Exact exact_stats(const std::vector<Twin>& logits, const Twin& targets) {
  Exact stats(kRanks * targets.cpu().numel() * kCrossEntropyStats);
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    const Twin& x = logits[static_cast<size_t>(rank)];
    const int64_t vocab = x.cpu().dim(1);
    for (int64_t row = 0; row < x.cpu().dim(0); ++row) {
      const int32_t target = targets.cpu().data<int32_t>()[row];
      const int64_t column = target - rank * vocab;
      const auto logit = [&](int64_t v) { return static_cast<double>(x.at(row * vocab + v)); };
      double max = logit(0);
      for (int64_t v = 0; v < vocab; ++v) max = std::max(max, logit(v));
      double sum = 0;
      for (int64_t v = 0; v < vocab; ++v) sum += std::exp(logit(v) - max);
      const double at_target = column >= 0 && column < vocab ? logit(column) : 0.0;
      if (target < 0) continue;  // The stats of an ignored token are zero.
      const int64_t first = (rank * targets.cpu().numel() + row) * kCrossEntropyStats;
      stats.set(first, max, 0);
      stats.set(first + 1, sum, 5e-6 * sum);
      stats.set(first + 2, at_target, 0);
    }
  }
  return stats;
}

class CrossEntropyParallelParity : public ComputeDtypeParity {
 protected:
  // Returns the part of `stats` that belongs to a rank.
  static Tensor stats_of(const Tensor& stats, int64_t rank) {
    return stats.rows(rank, rank + 1).view({stats.dim(1), kCrossEntropyStats});
  }

  void compute_stats(const Twin& stats, const std::vector<Twin>& logits, const Twin& targets) {
    poison(stats);
    on_both([&](Stream& s) {
      for (int64_t rank = 0; rank < kRanks; ++rank) {
        const Tensor x = logits[static_cast<size_t>(rank)].on(s);
        cross_entropy_stats({stats_of(stats.on(s), rank), x, targets.on(s), rank * x.dim(1)}, s);
      }
    });
  }

  // Compares the GPU with the CPU. The logits start `offset` elements, and d_logits `d_offset` elements, after an
  // aligned address.
  void compare(int64_t tokens, int64_t vocab, int64_t offset, int64_t d_offset, float z_loss = 0) {
    SCOPED_TRACE(std::to_string(tokens) + " x " + std::to_string(vocab) + ", offsets " + std::to_string(offset) +
                 " and " + std::to_string(d_offset));
    std::vector<Twin> logits;
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      logits.push_back(Twin(dtype(), {tokens, vocab}, offset));
      fill(logits.back(), 3.0f);
    }
    Twin targets(DType::kInt32, {tokens});
    fill_integers(targets, 0, static_cast<int32_t>(kRanks * vocab));
    for (int64_t t = 2; t < tokens; t += 1 + t % 5) targets.set(t, -1);
    upload(targets);

    const Twin stats(DType::kFloat32, {kRanks, tokens, kCrossEntropyStats});
    compute_stats(stats, logits, targets);
    expect_exact(stats, "cross_entropy_stats", exact_stats(logits, targets));
    std::vector<Tensor> parts;
    for (const Twin& x : logits) parts.push_back(x.cpu());
    const ExactCrossEntropy exact = exact_cross_entropy(parts, targets.cpu(), 0.125, static_cast<double>(z_loss));

    const Twin losses(DType::kFloat32, {tokens});
    const Twin z_losses(DType::kFloat32, {tokens});
    std::vector<float> first_losses;
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      const Twin& x = logits[static_cast<size_t>(rank)];
      const auto run = [&](Stream& s, const Tensor& d_logits) {
        cross_entropy_parallel({.losses = losses.on(s),
                                .d_logits = d_logits,
                                .logits = x.on(s),
                                .targets = targets.on(s),
                                .stats = stats.on(s),
                                .vocab_begin = rank * vocab,
                                .scale = 0.125f,
                                .z_loss = z_loss,
                                .z_losses = z_losses.on(s)},
                               s);
      };
      const Twin d_logits(dtype(), {tokens, vocab}, d_offset);
      poison(losses);
      poison(z_losses);
      poison(d_logits);
      on_both([&](Stream& s) { run(s, d_logits.on(s)); });
      const std::vector<float> values = gpu_values(losses);
      if (rank == 0) first_losses = values;
      EXPECT_EQ(values, first_losses) << "losses differ between ranks";
      expect_close(d_logits, "d_logits", std::max(tolerance(), 1e-4));
      expect_exact(d_logits, "cross_entropy_parallel d_logits", exact.d_logits[static_cast<size_t>(rank)]);
      expect_exact(losses, "cross_entropy_parallel losses", exact.losses);
      expect_exact(z_losses, "cross_entropy_parallel z_losses", exact.z_losses);
      poison(losses);
      on_both([&](Stream& s) { run(s, Tensor()); });
      EXPECT_EQ(gpu_values(losses), values) << "losses change with d_logits";
      // The gradient overwrites the logits.
      on_both([&](Stream& s) { run(s, x.on(s)); });
      EXPECT_EQ(gpu_bytes(x), gpu_bytes(d_logits)) << "in place differs";
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Ops, CrossEntropyParallelParity, ::testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST_P(CrossEntropyParallelParity, AnyWidth) {
  // The widths cover single elements, a few vectors, one iteration and several iterations of the block, and even and
  // odd numbers.
  for (const auto& [tokens, vocab] : {RowSize{1, 1},
                                      {1, 2},
                                      {33, 7},
                                      {33, 17},
                                      {130, 272},
                                      {37, 1009},
                                      {2001, 4104},
                                      {5, 16032},
                                      {5, 16033},
                                      {7, 32064},
                                      {9, 32061},
                                      {2, 128256},
                                      {3, 128257}}) {
    compare(tokens, vocab, 0, 0);
  }
}

TEST_P(CrossEntropyParallelParity, ZLoss) {
  for (const auto& [tokens, vocab] : {RowSize{33, 17}, {130, 272}, {37, 1009}, {7, 32064}}) {
    compare(tokens, vocab, 0, 0, 0.05f);
  }
}

TEST_P(CrossEntropyParallelParity, Unaligned) {
  for (const auto& [tokens, vocab] : {RowSize{3, 5}, {21, 272}, {13, 1009}, {3, 32003}}) {
    compare(tokens, vocab, 1, 1);
    compare(tokens, vocab, 3, 0);
  }
}

TEST_P(CrossEntropyParallelParity, ShowsNanAndInfinity) {
  for (const int64_t vocab : {7, 272, 1009, 32064}) {
    std::vector<Twin> logits;
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      logits.push_back(Twin(dtype(), {5, vocab}));
      fill(logits.back());
    }
    Twin targets(DType::kInt32, {5});
    fill_integers(targets, static_cast<int32_t>(vocab), static_cast<int32_t>(2 * vocab));
    logits[0].set(vocab - 1, std::numeric_limits<float>::quiet_NaN());
    logits[2].set(2 * vocab - 3, std::numeric_limits<float>::infinity());
    for (int64_t v = 0; v < vocab; ++v) logits[1].set(2 * vocab + v, std::numeric_limits<float>::quiet_NaN());
    for (int64_t v = 0; v < vocab; ++v) logits[0].set(3 * vocab + v, -std::numeric_limits<float>::infinity());
    for (const Twin& x : logits) upload(x);
    const Twin stats(DType::kFloat32, {kRanks, 5, kCrossEntropyStats});
    compute_stats(stats, logits, targets);
    const Twin losses(DType::kFloat32, {5});
    const Twin d_logits(dtype(), {5, vocab});
    on_both([&](Stream& s) {
      cross_entropy_parallel({losses.on(s), d_logits.on(s), logits[0].on(s), targets.on(s), stats.on(s)}, s);
    });
    const std::vector<float> values = gpu_values(losses);
    for (const size_t row : {0, 1, 2}) EXPECT_TRUE(std::isnan(values[row])) << "vocabulary " << vocab << ", " << row;
    for (const size_t row : {3, 4}) EXPECT_NEAR(values[row], losses.at(static_cast<int64_t>(row)), 1e-5f);
    const std::vector<float> gradients = gpu_values(d_logits);
    for (int64_t v = 0; v < vocab; ++v) EXPECT_EQ(gradients[static_cast<size_t>(3 * vocab + v)], 0.0f) << v;
  }
}

}  // namespace
}  // namespace octavo::parity_cross_entropy_parallel_test
