#include "parallel/mesh.h"

#include "core/error.h"

namespace octavo {

Mesh::Mesh(const ParallelConfig& config, ProcessGroup& group, Stream& stream) : machines_(group) {
  group.agree([&] { shape_ = config.mesh_shape(group.size()); });
  places_ = places_of(group.rank());
  const auto connect_where = [&](const char* name, const auto& wanted) {
    AxisSet axes;
    for (size_t i = 0; i < kAxes; ++i) axes[i] = wanted(kMeshAxes[i]);
    return connect(name, axes, group, stream);
  };
  const auto along = [&](Axis axis) {
    const MeshAxis& wanted = kMeshAxes[static_cast<size_t>(axis)];
    return connect_where(wanted.name, [&](const MeshAxis& some) { return &some == &wanted; });
  };
  world_ = connect_where("world", [](const MeshAxis&) { return true; });
  tokens_ = connect_where("tokens", [](const MeshAxis& axis) { return axis.divides_tokens; });
  micro_batch_ = connect_where("micro-batch", [](const MeshAxis& axis) { return !axis.divides_samples; });
  tensor_ = along(Axis::kTensor);
  context_ = along(Axis::kContext);
  shard_ = connect_where("shard", [](const MeshAxis& axis) { return axis.shards_state; });
  replicate_ = along(Axis::kReplicate);
}

std::array<int64_t, Mesh::kAxes> Mesh::places_of(int64_t rank) const {
  std::array<int64_t, kAxes> places = {};
  for (size_t i = kAxes; i-- > 0;) {
    const int64_t size = shape_.*kMeshAxes[i].size;
    places[i] = rank % size;
    rank /= size;
  }
  return places;
}

Communicator* Mesh::connect(const char* name, AxisSet axes, ProcessGroup& group, Stream& stream) {
  int64_t color = 0;  // of the groups of this name: the places on the other axes
  int64_t rank = 0;
  int64_t size = 1;
  for (size_t i = 0; i < kAxes; ++i) {
    const int64_t length = shape_.*kMeshAxes[i].size;
    (axes[i] ? rank : color) *= length;
    (axes[i] ? rank : color) += places_[i];
    size *= axes[i] ? length : 1;
    axes[i] = axes[i] && length > 1;
  }
  std::unique_ptr<Communicator>& communicator = communicators_[axes];
  if (!communicator) {
    const RankGroup ranks{name, static_cast<int>(color), static_cast<int>(rank), static_cast<int>(size)};
    communicator = world_ == nullptr ? make_communicator(group, stream) : world_->split(ranks);
  }
  return communicator.get();
}

std::vector<std::unique_ptr<Registration>> Mesh::register_memory(const Buffer& memory, NcclMemory how) {
  std::vector<std::unique_ptr<Registration>> registrations;
  for (const auto& [axes, communicator] : communicators_) {
    const bool wanted = how == NcclMemory::kAuto ? communicator.get() == &shard() : how != NcclMemory::kPlain;
    if (!wanted) continue;
    if (auto registration = communicator->register_memory(memory)) registrations.push_back(std::move(registration));
  }
  return registrations;
}

}  // namespace octavo
