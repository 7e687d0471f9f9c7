#include "app/run/check_buffers.h"

#include "model/tensor_parallel.h"

namespace octavo {

// Of the master weights, the weights cast from them and each of the moments: every unit, and every kv head's k and v
// in every layer, of which a shard has one stretch at most. And of the FP8 history.
int64_t most_state_hashes(const ModelConfig& model, const ParameterLayout& layout, int64_t moments,
                          int64_t tensor_ranks) {
  const int64_t kv_heads = local_config(model, {.rank = 0, .size = tensor_ranks}).num_kv_heads;
  return (2 + moments) * (std::ssize(layout.units()) + 2 * model.num_layers * kv_heads) + 1;
}

CheckBuffers::CheckBuffers(const Config& config, const ParameterLayout& layout, int64_t moments, const Mesh& mesh,
                           Arena& arena)
    : hashes(arena.allocate(
          "hashes", DType::kInt32,
          {kCheckedPasses * pass_hashes(layout) + most_state_hashes(config.model, layout, moments, mesh.shape().tensor),
           2})),
      neighbor(batch_shape(config, mesh), config.training.micro_batch_size, config.model.vocab_size, arena,
               mesh.stream()) {}

}  // namespace octavo
