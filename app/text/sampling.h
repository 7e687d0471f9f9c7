// Draws a token from the logits of a model: softmax(logits / temperature), restricted to the likeliest tokens in the
// order of Hugging Face's generate(), each restriction applied to what the one before leaves:
//
//   top_k   the k likeliest
//   top_p   the likeliest whose probabilities together make up p (Holtzman et al., arXiv 1904.09751)
//   min_p   those at least min_p times as likely as the likeliest (Nguyen et al., arXiv 2407.01082)
//
// Among equally likely tokens the one with the lower id comes first.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace octavo {

// Maximum number of texts that are sampled at the same time.
inline constexpr int64_t kMaxSamples = 256;

struct SamplingOptions {
  double temperature = 0.8;  // 0 always takes the likeliest token.
  int64_t top_k = 0;         // 0 means all.
  double top_p = 1.0;        // 1 means all.
  double min_p = 0.0;        // 0 means all.
};

class Sampler {
 public:
  Sampler(const SamplingOptions& options, uint64_t seed) : options_(options), random_(seed) {}

  // Returns an index of the logits.
  int32_t draw(std::span<const float> logits);

 private:
  struct Candidate {
    int32_t token;
    float logit;
    double weight;  // Probability up to a common factor.
  };

  void weigh(std::span<const float> logits);
  void keep_top_k();
  void keep_top_p();
  void keep_min_p();

  SamplingOptions options_;
  std::mt19937_64 random_;
  std::vector<Candidate> candidates_;
};

}  // namespace octavo
