#include "data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace octavo {

namespace {

__extension__ typedef unsigned __int128 Wide;

// Returns the weights multiplied by the smallest power of ten up to 10^9 that makes all of them integers, or nothing.
std::vector<int64_t> decimal_weights(std::span<const double> weights) {
  constexpr double kMostUnits = 1e15;  // Maximum sum of weights that a double holds exactly.
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
  CHECK(total_ > 0, "the weights sum to {}, expected more than 0", total_);
  for (size_t d = 0; d < weights.size(); ++d) {
    CHECK(weights[d] >= 0, "dataset {} has weight {}, expected at least 0", d, weights[d]);
    if (weights[d] == 0) continue;
    datasets_.push_back(static_cast<int64_t>(d));
    weights_.push_back(weights[d]);
  }
  taken_.resize(weights_.size());
  behind_.resize(weights_.size());
}

size_t Mixture::take_furthest(int64_t behind) {
  const auto share = static_cast<size_t>(std::ranges::find(behind_, behind) - behind_.begin());
  ++taken_[share];
  behind_[share] -= total_;
  return share;
}

void Mixture::advance() {
  for (size_t i = 0; i < weights_.size(); ++i) behind_[i] += weights_[i];
  ++next_sample_;
}

int64_t Mixture::next() {
  const size_t share = take_furthest(std::ranges::max(behind_));
  advance();
  if (next_sample_ == period_begin_ + total_) rewind();
  return datasets_[share];
}

void Mixture::rewind() {
  period_begin_ = next_sample_ - next_sample_ % total_;
  next_sample_ = period_begin_;
  std::ranges::fill(taken_, 0);
  std::ranges::fill(behind_, 0);
}

bool Mixture::settle(int64_t begin, int64_t end) {
  const Wide total = static_cast<Wide>(total_);
  int64_t excess = period_begin_ - begin;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const Wide due = static_cast<Wide>(weights_[i]) * static_cast<Wide>(begin - period_begin_);
    const Wide bound = (due + total - 1) / total;
    taken_[i] = static_cast<int64_t>(bound);
    behind_[i] = -static_cast<int64_t>(bound * total - due);
    excess += taken_[i];
  }
  for (next_sample_ = begin; excess > 0 && next_sample_ < end; advance()) {
    const auto [least, most] = std::ranges::minmax(behind_);
    if (most - least < total_) {
      --excess;
    } else {
      take_furthest(most);
    }
  }
  if (excess > 0) rewind();
  return excess == 0;
}

void Mixture::seek(int64_t g) {
  CHECK(g >= 0, "the sample is {}, expected at least 0", g);
  if (g < next_sample_ || g - period_begin_ >= total_) {
    next_sample_ = g;
    rewind();
  }
  // A walk that does not determine the counts is followed by a longer one, and finally by one from the beginning of the
  // period.
  int64_t walk = 1 + total_ / *std::ranges::min_element(weights_) / 8;
  while (g - next_sample_ > walk && !settle(g - walk, g)) walk *= 4;
  while (next_sample_ < g) next();
}

int64_t Mixture::taken(int64_t dataset) const {
  const auto found = std::ranges::find(datasets_, dataset);
  if (found == datasets_.end()) return 0;
  const auto share = static_cast<size_t>(found - datasets_.begin());
  return period_begin_ / total_ * weights_[share] + taken_[share];
}

}  // namespace octavo
