#include "parallel/mesh.h"

#include "core/error.h"

namespace octavo {

Mesh::Mesh(const ParallelConfig& config, ProcessGroup& group, Stream& stream) {
  group.agree([&] { shape_ = config.mesh_shape(group.size()); });
  tensor_rank_ = group.rank() % shape_.tensor;
  shard_rank_ = group.rank() / shape_.tensor % shape_.shard;
  replicate_rank_ = group.rank() / shape_.tensor / shape_.shard;

  const auto connect = [&](const char* name, int64_t color, int64_t rank, int64_t size) {
    const RankGroup ranks{name, static_cast<int>(color), static_cast<int>(rank), static_cast<int>(size)};
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

std::vector<std::unique_ptr<Registration>> Mesh::register_memory(const Buffer& memory, NcclMemory how) {
  std::vector<std::unique_ptr<Registration>> registrations;
  for (const auto& communicator : communicators_) {
    const bool wanted = how == NcclMemory::kAuto ? communicator.get() == shard_ : how != NcclMemory::kPlain;
    if (!wanted) continue;
    if (auto registration = communicator->register_memory(memory)) registrations.push_back(std::move(registration));
  }
  return registrations;
}

}  // namespace octavo
