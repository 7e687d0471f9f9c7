#include "model/architecture/tensor_parallel.h"

#include <numeric>

namespace octavo {

namespace {

// Returns the number of query heads of a rank that read one of its kv heads.
int64_t query_heads_per_kv_head(const ModelConfig& config, int64_t size) {
  return std::gcd(config.num_heads / size, config.num_heads / config.num_kv_heads);
}

int64_t num_local_kv_heads(const ModelConfig& config, int64_t size) {
  return config.num_heads / size / query_heads_per_kv_head(config, size);
}

}  // namespace

std::vector<DividedSize> tensor_parallel_sizes(const ModelConfig& config) {
  return {{"model.num_heads", config.num_heads}, {"model.intermediate_size", config.intermediate_size}};
}

ModelConfig local_config(const ModelConfig& config, TensorRank tensor) {
  ModelConfig local = config;
  local.num_heads = config.num_heads / tensor.size;
  local.num_kv_heads = num_local_kv_heads(config, tensor.size);
  local.intermediate_size = config.intermediate_size / tensor.size;
  const int64_t unit = tensor.size * kVocabAlignment;
  local.vocab_size = (config.vocab_size + unit - 1) / unit * kVocabAlignment;
  return local;
}

std::vector<KvHead> local_kv_heads(const ModelConfig& config, TensorRank tensor) {
  const int64_t local_heads = config.num_heads / tensor.size;
  const int64_t sharing = config.num_heads / config.num_kv_heads;  // Query heads per kv head.
  const int64_t step = query_heads_per_kv_head(config, tensor.size);
  std::vector<KvHead> heads;
  for (int64_t query = tensor.rank * local_heads; query < (tensor.rank + 1) * local_heads; query += step) {
    heads.push_back({.head = query / sharing, .counts = query % sharing == 0});
  }
  return heads;
}

bool has_kv_copies(const ModelConfig& config, int64_t size) {
  return num_local_kv_heads(config, size) * size > config.num_kv_heads;
}

}  // namespace octavo
