// Division of a sequence among the N ranks that share it under context parallelism. The sequence has 2 N pieces of
// equal length, and rank r has pieces r and 2 N - 1 - r. A token attends to all earlier ones, so early pieces are cheap
// and late ones expensive; this division gives every rank the same amount of work (Llama 3, arXiv 2407.21783, section
// 3.3.2). With one rank the sequence is one piece.
#pragma once

#include <cstdint>

namespace octavo {

// One of the ranks that share each sequence.
struct ContextRank {
  int64_t rank = 0;
  int64_t size = 1;

  constexpr int64_t pieces() const { return size == 1 ? 1 : 2; }             // Number of pieces of a rank.
  constexpr int64_t whole_pieces() const { return pieces() * size; }         // Number of pieces of the sequence.
  constexpr int64_t share(int64_t seq_len) const { return seq_len / size; }  // Number of tokens of a rank.
  // Returns the index in the sequence of a rank's piece i.
  constexpr int64_t piece(int64_t i) const { return i == 0 ? rank : 2 * size - 1 - rank; }
  // Returns the position of the rank's token t in a sequence of seq_len tokens.
  constexpr int64_t position(int64_t t, int64_t seq_len) const {
    const int64_t length = seq_len / whole_pieces();
    return piece(t / length) * length + t % length;
  }
  bool operator==(const ContextRank&) const = default;
};

}  // namespace octavo
