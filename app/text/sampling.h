// Draws a token from the logits of a model with the probabilities softmax(logits / temperature), restricted to the most
// likely tokens. As in Hugging Face's generate(), the restrictions are applied in this order, each to the tokens that
// the previous one keeps:
//
//   top_k   the k most likely tokens
//   top_p   the most likely tokens whose probabilities add up to p (Holtzman et al., arXiv 1904.09751)
//   min_p   tokens at least min_p times as likely as the most likely one (Nguyen et al., arXiv 2407.01082)
//
// Among equally likely tokens, the token with the lower id comes first.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace octavo {

// Maximum number of texts that are sampled at the same time.
inline constexpr int64_t kMaxSamples = 256;

struct SamplingOptions {
  double temperature = 0.8;  // 0 always takes the most likely token.
  int64_t top_k = 0;         // Number of most likely tokens to draw from. 0 means all.
  double top_p = 1.0;        // Total probability of the tokens to draw from. 1 means all tokens.
  double min_p = 0.0;        // Smallest allowed ratio to the largest probability. 0 means all tokens.
};

class Sampler {
 public:
  Sampler(const SamplingOptions& options, uint64_t seed) : options_(options), random_(seed) {}

  // Draws an index of `logits`.
  int32_t draw(std::span<const float> logits);

 private:
  struct Candidate {
    int32_t token;
    float logit;
    double weight;  // Probability, up to a common factor.
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
