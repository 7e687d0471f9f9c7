// The gradients of kv heads that several tensor-parallel ranks hold copies of (model/architecture/tensor_parallel.h):
// each copy saw the query heads of its rank alone, so the gradient of the head is the sum over its copies, which then
// stay equal.
#pragma once

#include <vector>

#include "core/arena.h"
#include "model/architecture/tensor_parallel.h"
#include "parallel/tensor_group.h"

namespace octavo {

class KvCopies {
 public:
  // Memory for the k and v rows of all kv heads of one layer, float32.
  KvCopies(const ModelConfig& config, TensorRank tensor, Arena& arena);

  // d_qkv [(heads + 2 kv heads) * head_dim, hidden] of this rank, float32 or bfloat16: every k and v row becomes its
  // sum over all copies, in float32. A collective of the group; queued.
  void sum(const Tensor& d_qkv, TensorGroup& group, Stream& stream) const;

 private:
  struct HeadRows {
    Tensor local;   // [head_dim * hidden] of d_qkv
    Tensor global;  // of sums_
  };
  std::vector<HeadRows> head_rows(const Tensor& d_qkv) const;

  ModelConfig config_;
  TensorRank tensor_;
  Tensor sums_;  // [2, num_kv_heads * head_dim * hidden] float32: k, v
};

}  // namespace octavo
