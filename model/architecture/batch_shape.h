// The shape of a micro-batch.
#pragma once

#include <cstdint>

#include "parallel/context_group.h"

namespace octavo {

struct BatchShape {
  int64_t micro_batch_size = 0;  // Sequences in one micro-batch.
  int64_t seq_len = 0;           // Tokens of each sequence that this tensor-parallel group has.
  int64_t tensor_ranks = 1;      // Ranks that divide the layers. Between linears each has a share of the tokens.
  bool document_mask = false;    // Whether a token attends only to tokens of its document.
  ContextRank context = {};      // This rank among the ranks that share each sequence.
  int64_t tokens() const { return micro_batch_size * seq_len; }
  int64_t share() const { return tokens() / tensor_ranks; }
  int64_t whole_seq_len() const { return seq_len * context.size; }
};

}  // namespace octavo
