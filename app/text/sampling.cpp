#include "app/text/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace octavo {

namespace {

constexpr auto kLikelier = [](const auto& a, const auto& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
};

template <typename Candidates>
double total_weight(const Candidates& candidates) {
  return std::accumulate(candidates.begin(), candidates.end(), 0.0,
                         [](double sum, const auto& candidate) { return sum + candidate.weight; });
}

}  // namespace

void Sampler::weigh(std::span<const float> logits) {
  const auto max = static_cast<double>(*std::ranges::max_element(logits));
  candidates_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    const double weight = std::exp((static_cast<double>(logits[i]) - max) / options_.temperature);
    candidates_[i] = {static_cast<int32_t>(i), logits[i], weight};
  }
}

void Sampler::keep_top_k() {
  if (options_.top_k <= 0 || options_.top_k >= static_cast<int64_t>(candidates_.size())) return;
  const auto end = candidates_.begin() + options_.top_k;
  std::nth_element(candidates_.begin(), end - 1, candidates_.end(), kLikelier);
  candidates_.erase(end, candidates_.end());
}

// Tokens with a probability below (1 - top_p) / n have less than 1 - top_p in total and come last, so they are never
// kept. Removing them first avoids sorting most of the vocabulary. The limit is half of that, to allow for rounding of
// the sums.
void Sampler::keep_top_p() {
  if (options_.top_p >= 1) return;
  const double total = total_weight(candidates_);
  const double negligible = 0.5 * (1 - options_.top_p) * total / static_cast<double>(candidates_.size());
  std::erase_if(candidates_, [&](const Candidate& candidate) { return candidate.weight < negligible; });
  std::ranges::sort(candidates_, kLikelier);
  double mass = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    mass += candidates_[i].weight;
    if (mass >= options_.top_p * total) candidates_.resize(i + 1);
  }
}

void Sampler::keep_min_p() {
  std::erase_if(candidates_, [&](const Candidate& candidate) { return candidate.weight < options_.min_p; });
}

int32_t Sampler::draw(std::span<const float> logits) {
  const auto likeliest = std::ranges::max_element(logits);
  if (options_.temperature <= 0) return static_cast<int32_t>(likeliest - logits.begin());
  weigh(logits);
  keep_top_k();
  keep_top_p();
  keep_min_p();
  double left = std::uniform_real_distribution<double>(0, total_weight(candidates_))(random_);
  for (const Candidate& candidate : candidates_) {
    left -= candidate.weight;
    if (left < 0) return candidate.token;
  }
  return candidates_.back().token;  // Reached if rounding made the sum smaller than the drawn number.
}

}  // namespace octavo
