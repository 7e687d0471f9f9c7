#include "app/memory/planned_rank.h"

#include <utility>

namespace octavo {

namespace {

std::unique_ptr<Communicator> axis(Watchdog& watchdog, const char* name, int64_t size) {
  return make_planned_communicator(watchdog, {.name = name, .color = 0, .rank = 0, .size = static_cast<int>(size)});
}

}  // namespace

PlannedRank::PlannedRank(const Config& config, const MeshShape& mesh, int64_t all_to_all_load, Stream stream,
                         Watchdog& watchdog)
    : all_to_all_load_(all_to_all_load),
      stream_(std::move(stream)),
      shard_(axis(watchdog, "shard", mesh.shards())),
      replicate_(axis(watchdog, "replicate", mesh.replicate)),
      tensor_(axis(watchdog, "tensor", mesh.tensor)),
      context_(axis(watchdog, "context", mesh.context)),
      micro_batch_(axis(watchdog, "micro-batch", mesh.context * mesh.tensor)),
      tokens_(axis(watchdog, "tokens", mesh.data() * mesh.context)),
      world_(axis(watchdog, "world", mesh.ranks())) {
  stream_.set_deterministic(config.training.deterministic);
}

TrainingRank PlannedRank::rank() {
  return {.stream = stream_,
          .data_parallel = {shard_.get(), replicate_.get(), all_to_all_load_},
          .tensor = *tensor_,
          .context = *context_,
          .micro_batch = *micro_batch_,
          .tokens = *tokens_,
          .world = *world_};
}

}  // namespace octavo
