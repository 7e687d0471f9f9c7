#include "parallel/mesh.h"

#include "kernels/core/error.h"

namespace octavo {

namespace {

int as_int(int64_t value) { return static_cast<int>(value); }

// A collective. Gathers of weights go along the shard axis.
void require_copy_engine(ProcessGroup& group, const MeshShape& shape, const Stream& stream) {
  const std::vector<std::string> machines = group.all_gather(std::to_string(group.machine()));
  group.agree([&] {
    CHECK_INPUT(stream.is_cuda(), "parallel.copy_engine is true, but this run is on the CPU, expected auto or false");
    const int64_t rank = group.rank();
    const int64_t first = rank - rank / shape.tensor % shape.shard * shape.tensor;
    for (int64_t other = first; other < first + shape.shard * shape.tensor; other += shape.tensor) {
      CHECK_INPUT(machines[static_cast<size_t>(other)] == machines[static_cast<size_t>(rank)],
                  "parallel.copy_engine is true, but ranks {} and {}, which share a copy of the model "
                  "(parallel.data_parallel_shard {}), are on different machines, expected auto or false",
                  rank, other, shape.shard);
    }
  });
}

}  // namespace

Mesh::Mesh(const ParallelConfig& config, ProcessGroup& group, Stream& stream) {
  group.agree([&] { shape_ = config.mesh_shape(group.size()); });
  if (config.copy_engine == CopyEngine::kTrue) require_copy_engine(group, shape_, stream);
  tensor_rank_ = group.rank() % shape_.tensor;
  shard_rank_ = group.rank() / shape_.tensor % shape_.shard;
  replicate_rank_ = group.rank() / shape_.tensor / shape_.shard;

  const auto connect = [&](const char* name, int64_t color, int64_t rank, int64_t size) {
    const RankGroup ranks{name, as_int(color), as_int(rank), as_int(size)};
    communicators_.push_back(make_communicator(group, ranks, stream, config));
    return communicators_.back().get();
  };
  world_ = connect("world", 0, group.rank(), group.size());
  data_ = shape_.tensor == 1 ? world_ : connect("data", tensor_rank_, data_rank(), shape_.data());
  tensor_ = shape_.data() == 1 ? world_ : connect("tensor", data_rank(), tensor_rank_, shape_.tensor);
  shard_ = shape_.replicate == 1
               ? data_
               : connect("shard", replicate_rank_ * shape_.tensor + tensor_rank_, shard_rank_, shape_.shard);
  replicate_ = shape_.shard == 1 ? data_
                                 : connect("replicate", shard_rank_ * shape_.tensor + tensor_rank_, replicate_rank_,
                                           shape_.replicate);
}

}  // namespace octavo
