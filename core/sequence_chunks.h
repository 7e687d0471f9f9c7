// Division of a sequence among the N ranks that share it under context parallelism. The sequence has 2 N chunks of
// equal length, and rank r has chunks r and 2 N - 1 - r. A token attends to all earlier ones, so early chunks are cheap
// and late ones expensive; this division gives every rank the same amount of work (Llama 3, arXiv 2407.21783, section
// 3.3.2). With one rank the sequence is one chunk.
#pragma once

#include <cstdint>

namespace octavo {

// One of the ranks that share each sequence.
struct ContextRank {
  int64_t rank = 0;
  int64_t size = 1;

  constexpr int64_t chunks() const { return size == 1 ? 1 : 2; }      // Returns the number of chunks per rank.
  constexpr int64_t whole_chunks() const { return chunks() * size; }  // Returns the number of chunks per sequence.
  constexpr int64_t share(int64_t seq_len) const { return seq_len / size; }  // Returns the number of tokens per rank.
  // Returns the position, counted in chunks, of the rank's chunk i in the whole sequence.
  constexpr int64_t chunk(int64_t i) const { return i == 0 ? rank : 2 * size - 1 - rank; }
  // Returns the position of the rank's token t in a sequence of seq_len tokens.
  constexpr int64_t position(int64_t t, int64_t seq_len) const {
    const int64_t length = seq_len / whole_chunks();
    return chunk(t / length) * length + t % length;
  }
  bool operator==(const ContextRank&) const = default;
};

}  // namespace octavo
