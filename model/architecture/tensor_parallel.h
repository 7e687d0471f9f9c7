// How tensor parallelism divides a Llama (Shoeybi et al., arXiv 1909.08053). Each rank of a group computes
//
//   qkv, gate_up        its heads and its part of the intermediate width: rows of the weights ("column parallel")
//   o, down             a term of the sum over ranks, from the same heads and part: columns of the weights ("row
//                       parallel")
//   embedding, lm_head  its part of the vocabulary: rows of the tables, followed by padding up to a size that all ranks
//                       share
//
// Every rank has the norm weights. A rank has the kv heads that its query heads read. If several ranks read one kv
// head, each of them has a copy. The gradients of the copies are summed (model/parameters/kv_copies.h), so the copies
// stay equal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/architecture/config.h"

namespace octavo {

// This rank among the ranks that divide each layer.
struct TensorRank {
  int64_t rank = 0;
  int64_t size = 1;
};

// The dimension of a weight W [out, in] that the ranks divide.
enum class Divided : uint8_t {
  kOutputs,  // rows of W
  kInputs,   // columns of W
};

// Columns [begin, end) of a matrix, such as a rank's part of the weight of a row-parallel linear. (0, 0) means a whole
// tensor with any number of dimensions.
struct ColumnRange {
  int64_t begin = 0;
  int64_t end = 0;

  bool none() const { return begin == 0 && end == 0; }
  bool operator==(const ColumnRange& other) const = default;
};

// The number of rows of the embedding and of lm_head on each rank is a multiple of this number. FP8 matmuls require
// this, and it lets kernels read rows of logits as vectors of 16 bytes.
inline constexpr int64_t kVocabAlignment = 16;

struct DividedSize {
  std::string name;
  int64_t size = 0;
};
// Returns the dimensions of a model that the ranks of a group must divide evenly. Kv heads are not among them, because
// several ranks may have the same kv head.
std::vector<DividedSize> tensor_parallel_sizes(const ModelConfig& config);

// Returns the config of the part of the model that a rank computes, with the rank's heads and intermediate width. Its
// vocabulary is an equal share for every rank, rounded up to kVocabAlignment, so the last ranks have padding. The
// config is meant only for the shapes of tensors.
ModelConfig local_config(const ModelConfig& config, TensorRank tensor);

struct KvHead {
  int64_t head = 0;    // Index in the whole model.
  bool counts = true;  // Whether this is the first copy of the head, ordered by rank and then by position.
};
// Returns the kv heads of a rank in order. Each is read by equally many of the rank's query heads. A rank may have a
// head twice if neither the number of its query heads nor the number of query heads per kv head divides the other (6
// query heads, 2 kv heads, 3 ranks).
std::vector<KvHead> local_kv_heads(const ModelConfig& config, TensorRank tensor);
// Returns whether any kv head has copies.
bool has_kv_copies(const ModelConfig& config, int64_t size);

}  // namespace octavo
