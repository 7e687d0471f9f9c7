// Gradients of kv heads that several tensor-parallel ranks hold replicas of (model/architecture/tensor_parallel.h).
// Each replica receives gradients only from the query heads of its rank, so the gradient of the head is the sum over
// its replicas. The replicas then stay equal.
#pragma once

#include <vector>

#include "core/arena.h"
#include "model/architecture/tensor_parallel.h"
#include "parallel/tensor_group.h"

namespace octavo {

class KvCopies {
 public:
  // Allocates float32 memory for the k and v rows of all kv heads of one layer.
  KvCopies(const ModelConfig& config, TensorRank tensor, Arena& arena);

  // Replaces every k and v row of d_qkv [(heads + 2 kv heads) * head_dim, hidden] (float32 or bfloat16) of this rank
  // with its sum over all replicas, added in float32. A collective of the group; queued.
  void sum(const Tensor& d_qkv, TensorGroup& group, Stream& stream) const;

 private:
  struct HeadRows {
    Tensor local;   // [head_dim * hidden], view of d_qkv.
    Tensor global;  // View of the head's rows in sums_.
  };
  std::vector<HeadRows> head_rows(const Tensor& d_qkv) const;

  ModelConfig config_;
  TensorRank tensor_;
  Tensor sums_;  // [2, num_kv_heads * head_dim * hidden] float32: k, v.
};

}  // namespace octavo
