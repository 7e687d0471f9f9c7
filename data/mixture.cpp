#include "data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace octavo {

namespace {

// The weights times the smallest power of ten up to 10^9 that makes them whole; nothing where none does.
std::vector<int64_t> decimal_weights(std::span<const double> weights) {
  constexpr double kMostUnits = 1e15;  // integers that a double holds, and sums of them
  for (double scale = 1; scale <= 1e9; scale *= 10) {
    std::vector<int64_t> integers;
    for (const double weight : weights) {
      const double scaled = weight * scale;
      const double whole = std::round(scaled);
      if (scaled > kMostUnits || std::abs(scaled - whole) > 1e-12 * scaled) break;
      integers.push_back(static_cast<int64_t>(whole));
    }
    if (integers.size() == weights.size()) return integers;
  }
  return {};
}

std::vector<int64_t> rounded_weights(std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> integers;
  for (const double weight : weights) {
    const int64_t share = std::llround(weight / sum * 0x1p32);
    integers.push_back(weight > 0 ? std::max<int64_t>(share, 1) : 0);
  }
  return integers;
}

std::vector<int64_t> reduced(std::vector<int64_t> weights) {
  int64_t divisor = 0;
  for (const int64_t weight : weights) divisor = std::gcd(divisor, weight);
  for (int64_t& weight : weights) weight /= divisor;
  return weights;
}

}  // namespace

std::vector<int64_t> integer_weights(std::span<const double> weights) {
  constexpr int64_t kLongestPeriod = int64_t{1} << 33;
  std::vector<int64_t> integers = reduced(decimal_weights(weights));
  const int64_t total = std::accumulate(integers.begin(), integers.end(), int64_t{0});
  return integers.empty() || total > kLongestPeriod ? reduced(rounded_weights(weights)) : integers;
}

Mixture::Mixture(std::vector<int64_t> weights) : total_(std::accumulate(weights.begin(), weights.end(), int64_t{0})) {
  CHECK(total_ > 0, "weights that sum to {}, expected more than 0", total_);
  for (size_t d = 0; d < weights.size(); ++d) {
    CHECK(weights[d] >= 0, "dataset {} has weight {}, expected at least 0", d, weights[d]);
    if (weights[d] > 0) shares_.push_back({.dataset = static_cast<int64_t>(d), .weight = weights[d]});
  }
}

int64_t Mixture::next() {
  Share* furthest = &shares_.front();
  for (Share& share : shares_) {
    if (share.behind > furthest->behind) furthest = &share;
  }
  ++furthest->taken;
  furthest->behind -= total_;
  for (Share& share : shares_) share.behind += share.weight;
  const int64_t dataset = furthest->dataset;
  if (++next_sample_ == period_begin_ + total_) rewind();
  return dataset;
}

// To the beginning of a period, where the counts are exact.
void Mixture::rewind() {
  period_begin_ = next_sample_ - next_sample_ % total_;
  next_sample_ = period_begin_;
  for (Share& share : shares_) share.taken = share.behind = 0;
}

void Mixture::seek(int64_t g) {
  CHECK(g >= 0, "sample {}, expected at least 0", g);
  if (g < next_sample_ || g - period_begin_ >= total_) {
    next_sample_ = g;
    rewind();
  }
  while (next_sample_ < g) next();
}

int64_t Mixture::taken(int64_t dataset) const {
  for (const Share& share : shares_) {
    if (share.dataset == dataset) return period_begin_ / total_ * share.weight + share.taken;
  }
  return 0;
}

}  // namespace octavo
