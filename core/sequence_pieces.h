// How context parallelism deals the tokens of a sequence to the ranks that share it: in 2 N pieces of one length to N
// ranks, of which rank r has pieces r and 2 N - 1 - r. A token attends to those before it, so an early piece is little
// work and a late one much, and every rank has as much as any other (Llama 3, arXiv 2407.21783, section 3.3.2). One
// rank has the whole sequence, as one piece.
#pragma once

#include <cstdint>

namespace octavo {

// One of the ranks that share each sequence.
struct ContextRank {
  int64_t rank = 0;
  int64_t size = 1;

  constexpr int64_t pieces() const { return size == 1 ? 1 : 2; }             // of a rank
  constexpr int64_t whole_pieces() const { return pieces() * size; }         // of the sequence
  constexpr int64_t share(int64_t seq_len) const { return seq_len / size; }  // tokens of a rank
  // Which of the sequence's pieces a rank's piece i is.
  constexpr int64_t piece(int64_t i) const { return i == 0 ? rank : 2 * size - 1 - rank; }
  // The position in a sequence of seq_len of token t of this rank's share.
  constexpr int64_t position(int64_t t, int64_t seq_len) const {
    const int64_t length = seq_len / whole_pieces();
    return piece(t / length) * length + t % length;
  }
  bool operator==(const ContextRank&) const = default;
};

}  // namespace octavo
