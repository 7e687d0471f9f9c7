#include "app/text/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

namespace octavo {
namespace {

// Unsorted probabilities at temperature 1.
const std::vector<double> kProbabilities{0.15, 0.4, 0.05, 0.3, 0.1};

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  logits.reserve(probabilities.size());
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + 7));
  return logits;
}

// Returns the fraction of draws that give each token.
std::map<int32_t, double> shares(const SamplingOptions& options, const std::vector<double>& probabilities) {
  constexpr int kDraws = 20000;
  const std::vector<float> logits = logits_of(probabilities);
  Sampler sampler(options, 3);
  std::map<int32_t, double> shares;
  for (int i = 0; i < kDraws; ++i) shares[sampler.draw(logits)] += 1.0 / kDraws;
  return shares;
}

void expect_shares(const SamplingOptions& options, const std::map<int32_t, double>& expected) {
  const std::map<int32_t, double> found = shares(options, kProbabilities);
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [token, share] : expected) {
    ASSERT_EQ(found.count(token), 1U) << token;
    // The tolerance is four standard deviations.
    EXPECT_NEAR(found.at(token), share, 0.015) << token;
  }
}

TEST(Sampling, DrawsByProbability) {
  expect_shares({.temperature = 1}, {{0, 0.15}, {1, 0.4}, {2, 0.05}, {3, 0.3}, {4, 0.1}});
  // Halving the temperature squares the probabilities, and doubling it takes their square roots. Both are then
  // normalized.
  expect_shares({.temperature = 0.5}, {{0, 0.0789}, {1, 0.5614}, {2, 0.0088}, {3, 0.3158}, {4, 0.0351}});
  expect_shares({.temperature = 2}, {{0, 0.1848}, {1, 0.3018}, {2, 0.1067}, {3, 0.2614}, {4, 0.1509}});
}

TEST(Sampling, TopK) {
  expect_shares({.temperature = 1, .top_k = 1}, {{1, 1.0}});
  expect_shares({.temperature = 1, .top_k = 2}, {{1, 4.0 / 7}, {3, 3.0 / 7}});
  expect_shares({.temperature = 1, .top_k = 99}, {{0, 0.15}, {1, 0.4}, {2, 0.05}, {3, 0.3}, {4, 0.1}});
}

TEST(Sampling, TopP) {
  expect_shares({.temperature = 1, .top_p = 0}, {{1, 1.0}});
  expect_shares({.temperature = 1, .top_p = 0.39}, {{1, 1.0}});
  expect_shares({.temperature = 1, .top_p = 0.41}, {{1, 4.0 / 7}, {3, 3.0 / 7}});
  expect_shares({.temperature = 1, .top_p = 0.84}, {{0, 0.15 / 0.85}, {1, 0.4 / 0.85}, {3, 0.3 / 0.85}});
  // After top_k the probabilities are 4/7 and 3/7.
  expect_shares({.temperature = 1, .top_k = 2, .top_p = 0.57}, {{1, 1.0}});
}

TEST(Sampling, MinP) {
  expect_shares({.temperature = 1, .min_p = 1}, {{1, 1.0}});
  expect_shares({.temperature = 1, .min_p = 0.74}, {{1, 4.0 / 7}, {3, 3.0 / 7}});
  expect_shares({.temperature = 1, .min_p = 0.3}, {{0, 0.15 / 0.85}, {1, 0.4 / 0.85}, {3, 0.3 / 0.85}});
  // At half the temperature the ratio of 0.3 to 0.4 is squared, so it falls below 0.74.
  expect_shares({.temperature = 0.5, .min_p = 0.74}, {{1, 1.0}});
}

TEST(Sampling, TopPOfManyTokensThatAreAlike) {
  const std::vector<double> alike(1000, 0.001);
  for (const auto& [token, share] : shares({.temperature = 1, .top_p = 0.5}, alike)) {
    EXPECT_LT(token, 501) << "ties keep the tokens with the smallest ids";
  }
  EXPECT_EQ(shares({.temperature = 1, .top_p = 0}, alike).begin()->first, 0);
}

TEST(Sampling, TheLikeliestWithoutTemperature) {
  Sampler sampler({.temperature = 0}, 1);
  EXPECT_EQ(sampler.draw(logits_of(kProbabilities)), 1);
  EXPECT_EQ(sampler.draw(std::vector<float>{-5, -5, -7}), 0);
}

TEST(Sampling, ExtremeLogits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Sampler sampler({.temperature = 1e-6, .top_p = 0.9, .min_p = 0.1}, 1);
  EXPECT_EQ(sampler.draw(std::vector<float>{1, -kInfinity, 3e38f, -3e38f}), 2);
  EXPECT_EQ(sampler.draw(std::vector<float>{4}), 0);
}

TEST(Sampling, IsAFunctionOfTheSeed) {
  const std::vector<float> logits = logits_of(kProbabilities);
  const auto draws = [&](uint64_t seed) {
    Sampler sampler({.temperature = 1}, seed);
    std::vector<int32_t> tokens(40);
    for (int32_t& token : tokens) token = sampler.draw(logits);
    return tokens;
  };
  EXPECT_EQ(draws(1), draws(1));
  EXPECT_NE(draws(1), draws(2));
}

}  // namespace
}  // namespace octavo
