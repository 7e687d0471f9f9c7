// Tests the mean number of tokens that a token of a batch attends to.
#include "app/run/batch_buffers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "app/predict/predictor.h"

namespace octavo::batch_buffers_test {
namespace {

constexpr int64_t kSeqLen = 24;
constexpr int64_t kRows = 4000;

// Returns a batch in which a document ends after each token with probability 1 - exp(-1 / length). A length of 0 means
// that documents end with the sequence.
Batch batch_of(int64_t length) {
  Batch batch;
  batch.inputs.assign(kRows * kSeqLen, 1);
  batch.targets = batch.inputs;
  std::mt19937_64 generator(5);
  std::bernoulli_distribution ends(length == 0 ? 0 : 1 - std::exp(-1 / static_cast<double>(length)));
  for (int64_t row = 0; row < kRows; ++row) {
    for (int32_t t = 0, begin = 0; t < kSeqLen; ++t) {
      if (t > 0 && ends(generator)) begin = t;
      batch.document_start.push_back(begin);
    }
  }
  return batch;
}

double counted(const Batch& batch) {
  double pairs = 0;
  for (int64_t t = 0; t < kRows * kSeqLen; ++t) {
    pairs += static_cast<double>(t % kSeqLen + 1 - batch.document_start[static_cast<size_t>(t)]);
  }
  return pairs / (kRows * kSeqLen);
}

double attended(const Batch& batch, bool document_mask) {
  Stream stream = Stream::cpu();
  const BatchShape shape{.micro_batch_size = 1, .seq_len = kSeqLen, .document_mask = document_mask};
  Arena plan(Device::kCpu);
  { const BatchBuffers planned(shape, kRows, 9, plan, stream); }
  Arena arena(Device::kCpu, plan.used());
  BatchBuffers buffers(shape, kRows, 9, arena, stream);
  buffers.upload(batch);
  return buffers.attended_tokens();
}

// The expected number is that of plans.
TEST(BatchBuffers, CountAttendedTokens) {
  for (const int64_t length : {0, 1, 5, 300}) {
    const Batch batch = batch_of(length);
    const double tokens = attended(batch, length > 0);
    EXPECT_NEAR(tokens, counted(batch), 1e-12 * tokens) << length;
    EXPECT_NEAR(tokens, attended_tokens(kSeqLen, length), 0.02 * tokens) << length;
  }
}

}  // namespace
}  // namespace octavo::batch_buffers_test
