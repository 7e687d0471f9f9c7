// The shapes that a model runs at.
#pragma once

#include <cstdint>

#include "parallel/context_group.h"

namespace octavo {

struct BatchShape {
  int64_t micro_batch_size = 0;  // sequences in one forward pass
  int64_t seq_len = 0;           // of each, tokens of this rank, or of all that divide the layers with it
  int64_t tensor_ranks = 1;      // that divide the layers and share the tokens between them
  bool document_mask = false;    // a token attends within its own document only
  ContextRank context = {};      // among those that share each sequence
  int64_t tokens() const { return micro_batch_size * seq_len; }
  int64_t share() const { return tokens() / tensor_ranks; }
  int64_t whole_seq_len() const { return seq_len * context.size; }
};

}  // namespace octavo
