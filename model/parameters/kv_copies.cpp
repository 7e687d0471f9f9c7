#include "model/parameters/kv_copies.h"

#include "kernels/math/cast.h"
#include "kernels/math/sum_terms.h"

namespace octavo {

KvCopies::KvCopies(const ModelConfig& config, TensorRank tensor, Arena& arena)
    : config_(config),
      tensor_(tensor),
      sums_(arena.allocate("gradients of replicated kv heads", DType::kFloat32,
                           {2 * config.num_kv_heads * config.head_dim * config.hidden_size}, Lifetime::kBlock)) {}

std::vector<KvCopies::HeadRows> KvCopies::head_rows(const Tensor& d_qkv) const {
  const std::vector<KvHead> heads = local_kv_heads(config_, tensor_);
  const int64_t elements = config_.head_dim * config_.hidden_size;  // Number of elements of a kv head.
  const Tensor flat = d_qkv.view({d_qkv.numel()});
  const int64_t query_heads = config_.num_heads / tensor_.size;
  std::vector<HeadRows> rows;
  for (int64_t part = 0; part < 2; ++part) {
    for (size_t i = 0; i < heads.size(); ++i) {
      const int64_t local = query_heads + part * std::ssize(heads) + static_cast<int64_t>(i);
      const int64_t global = part * config_.num_kv_heads + heads[i].head;
      rows.push_back({flat.rows(local * elements, (local + 1) * elements),
                      sums_.rows(global * elements, (global + 1) * elements)});
    }
  }
  return rows;
}

void KvCopies::sum(const Tensor& d_qkv, TensorGroup& group, Stream& stream) const {
  const std::vector<HeadRows> rows = head_rows(d_qkv);
  stream.zero(sums_);
  for (const auto& [local, global] : rows) sum_terms({.out = global, .terms = local, .accumulate = true}, stream);
  group.ranks().all_reduce_sum(sums_, stream, "gradients of replicated kv heads");
  for (const auto& [local, global] : rows) cast({.out = local, .x = global}, stream);
}

}  // namespace octavo
