// Sequences with documents of random lengths, divided among ranks, for tests of attention within documents.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "core/error.h"
#include "kernels/attention_shapes/sdpa_args.h"

namespace octavo {

struct ShareCase {
  SdpaShape shape;  // Shape of the whole sequences.
  int64_t ranks;
};
// The cases have whole sequences, chunks of one token, odd and prime chunk lengths, numbers of ranks that are not
// powers of two, and groups of 1, of 2 and of all query heads per key/value head.
constexpr ShareCase kShareCases[] = {
    {{1, 1, 1, 1, 2}, 1},      {{3, 17, 4, 2, 8}, 1},      {{2, 263, 2, 1, 4}, 1},     {{1, 4, 1, 1, 2}, 2},
    {{2, 18, 3, 1, 5}, 3},     {{1, 56, 2, 2, 16}, 4},     {{2, 4 * 67, 4, 2, 8}, 2},  {{3, 30, 6, 3, 6}, 3},
    {{2, 10 * 7, 2, 1, 4}, 5}, {{2, 4 * 131, 2, 1, 4}, 2}, {{1, 6 * 200, 2, 1, 4}, 3}, {{1, 16 * 40, 1, 1, 4}, 8}};
// Mean lengths of documents. With the last one each sequence is a single document.
constexpr double kDocumentMeans[] = {1, 4, 30, 150, 1e9};

// Returns, for each token of whole sequences, the position at which its document begins.
inline std::vector<int32_t> random_starts(const SdpaShape& shape, double mean, std::mt19937_64& random) {
  std::exponential_distribution<double> length(1 / mean);
  std::vector<int32_t> starts;
  for (int64_t row = 0; row < shape.batch; ++row) {
    int64_t begin = 0;
    int64_t end = 0;
    for (int64_t t = 0; t < shape.seq_len; ++t) {
      if (t == end) begin = t, end += 1 + static_cast<int64_t>(std::min(length(random), 1e6));
      starts.push_back(static_cast<int32_t>(begin));
    }
  }
  return starts;
}

// Calls body(shape, documents, mean) for documents of several mean lengths in whole sequences of each shape.
template <typename Body>
void for_each_list(std::initializer_list<SdpaShape> shapes, const Body& body) {
  std::mt19937_64 random(7);
  for (const SdpaShape& shape : shapes) {
    for (const double mean : {1.0, 50.0, 1024.0, 1e9}) {
      std::vector<Document> list;
      append_documents(random_starts(shape, mean, random), shape.seq_len, list);
      body(shape, list, mean);
    }
  }
}

// The part of the sequences that one rank has, with its runs (parts of documents within a chunk).
struct Share {
  Share(const ShareCase& c, int64_t rank, const std::vector<int32_t>& whole_starts) : whole(c.shape), shape(c.shape) {
    shape.context = {.rank = rank, .size = c.ranks};
    shape.seq_len = shape.context.share(whole.seq_len);
    for (int64_t t = 0; t < tokens(); ++t) starts.push_back(whole_starts[static_cast<size_t>(row(t))]);
    append_documents(starts, shape.seq_len, list, shape.context);
    numbers.resize(list.size() * kNumbersOfDocument);
    write_documents(list, numbers.data());
  }

  int64_t tokens() const { return whole.batch * shape.seq_len; }
  // Returns the row of the rank's token t in the tensors of whole sequences.
  int64_t row(int64_t t) const {
    const int64_t share = shape.seq_len;
    return t / share * whole.seq_len + shape.context.position(t % share, whole.seq_len);
  }
  Documents documents() {
    return {.list = list, .device = Tensor(numbers.data(), DType::kInt32, {std::ssize(list), kNumbersOfDocument})};
  }

  SdpaShape whole;
  SdpaShape shape;
  std::vector<int32_t> starts;
  std::vector<Document> list;
  std::vector<int32_t> numbers;
};

template <typename Body>
void for_each_share(const Body& body) {
  std::mt19937_64 random(7);
  for (const ShareCase& c : kShareCases) {
    for (const double mean : kDocumentMeans) {
      const std::vector<int32_t> starts = random_starts(c.shape, mean, random);
      for (int64_t rank = 0; rank < c.ranks; ++rank) {
        SCOPED_TRACE(fmt::format("rank {} of {}, {} x {} tokens, documents of {}", rank, c.ranks, c.shape.batch,
                                 c.shape.seq_len, mean));
        Share share(c, rank, starts);
        body(share);
      }
    }
  }
}

}  // namespace octavo
