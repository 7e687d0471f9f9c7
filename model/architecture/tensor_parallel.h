// How tensor parallelism divides a Llama (Shoeybi et al., arXiv 1909.08053). Each rank of a group computes
//
//   qkv, gate_up        its heads and its share of the intermediate width: rows of the weights ("column parallel")
//   o, down             the same heads and share as inputs: columns of the weights ("row parallel"), a sum over ranks
//   embedding, lm_head  its share of the vocabulary: rows of the tables
//
// Norm weights are on every rank. A rank has the kv heads that its query heads read. Where several ranks read one kv
// head, each has a copy of it; the copies' gradients are summed (model/parameters/kv_copies.h), so they stay equal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/architecture/config.h"

namespace octavo {

// One of the ranks that divide each layer.
struct TensorRank {
  int64_t rank = 0;
  int64_t size = 1;
};

// What of a weight W [out, in] the ranks divide.
enum class Divided : uint8_t {
  kOutputs,  // rows of W
  kInputs,   // columns of W
};

struct DividedSize {
  std::string name;
  int64_t size = 0;
};
// What the ranks of a group divide evenly. Kv heads are not among it: ranks may have copies.
std::vector<DividedSize> tensor_parallel_sizes(const ModelConfig& config);

// The model that a rank computes: with its heads, intermediate width and vocabulary. For shapes of tensors only.
ModelConfig local_config(const ModelConfig& config, TensorRank tensor);

struct KvHead {
  int64_t head = 0;    // of the whole model
  bool counts = true;  // the first copy of it, by rank and then by place
};
// A rank's kv heads, each read by as many of its query heads, in order. Mostly distinct; a rank has a head twice where
// its query heads and those that share a kv head do not fit into each other (6 query heads, 2 kv heads, 3 ranks).
std::vector<KvHead> local_kv_heads(const ModelConfig& config, TensorRank tensor);
// Whether any kv head has copies.
bool has_kv_copies(const ModelConfig& config, int64_t size);

}  // namespace octavo
