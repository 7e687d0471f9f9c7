#include "parallel/mesh.h"

#include <algorithm>

#include "core/error.h"

namespace octavo {

Mesh::Mesh(const ParallelConfig& config, ProcessGroup& group, Stream& stream)
    : stream_(&stream), watchdog_(&group.watchdog()) {
  group.throw_on_all_ranks([&] { shape_ = config.mesh_shape(group.size()); });
  all_to_all_load_ = shape_.all_to_all_load(group.all_reduce_max(group.local_size()));
  find_places(group.rank());
  connect(true, [&](const RankGroup& ranks) {
    return communicators_.empty() ? make_communicator(group, stream) : communicators_.back()->split(ranks);
  });
  if (shape_.pipeline > 1) watchdog_->set_stage(rank(Axis::kPipeline));
}

Mesh::Mesh(const MeshShape& shape, int64_t all_to_all_load, Stream& stream, Watchdog& watchdog, int64_t rank)
    : shape_(shape), all_to_all_load_(all_to_all_load), stream_(&stream), watchdog_(&watchdog) {
  find_places(rank);
  connect(false, [&](const RankGroup& ranks) {
    return std::make_unique<Communicator>(watchdog, ranks.name, ranks.rank, ranks.size);
  });
}

void Mesh::find_places(int64_t rank) {
  for (size_t i = places_.size(); i-- > 0;) {
    const int64_t size = shape_.*kMeshAxes[i].size;
    places_[i] = rank % size;
    rank /= size;
  }
}

void Mesh::connect(bool shares, const MakeCommunicator& make) {
  const auto add = [&](const char* group, bool shares_with_others) {
    const auto same = std::ranges::find_if(
        communicators_, [&](const auto& one) { return shares_with_others && are_same(one->name(), group); });
    if (same == communicators_.end()) communicators_.push_front(make(ranks_of(group)));
    groups_[group] = same == communicators_.end() ? communicators_.front().get() : same->get();
  };
  for (const char* group : {"world", "tokens", "micro-batch"}) add(group, shares);
  for (size_t i = std::size(kMeshAxes); i-- > 0;) {
    // Collectives of one communicator run one after the other, even on different streams. Ranks that share sequences
    // exchange keys and values (context) and gather units (shard) while amaxes are reduced (micro-batch), so context
    // and shard have communicators of their own. Groups that are added later have other ranks, so they share neither.
    const MeshAxis& axis = kMeshAxes[i];
    const bool overlaps = shape_.context > 1 && (axis.size == &MeshShape::context || axis.size == &MeshShape::shard);
    add(axis.name, shares && !overlaps);
  }
  if (shape_.pipeline == 1) return;
  RankGroup link = ranks_of("pipeline");
  link.max_multiprocessors = kLinkMultiprocessors;
  for (int64_t i = 0; i < 2 * shape_.link_colors(); ++i) {
    communicators_.push_front(make(link));
    stage_links_.push_back(communicators_.front().get());
  }
}

RankGroup Mesh::ranks_of(const char* group) const {
  RankGroup ranks{.name = group};
  for (size_t i = 0; i < places_.size(); ++i) {
    const auto size = static_cast<int>(shape_.*kMeshAxes[i].size);
    const bool spanned = spans(group, kMeshAxes[i]);
    int& place = spanned ? ranks.rank : ranks.color;
    place = place * size + static_cast<int>(places_[i]);
    if (spanned) ranks.size *= size;
  }
  return ranks;
}

// Returns whether two groups have the same ranks. They do if every axis that only one of them spans has size 1.
bool Mesh::are_same(std::string_view group, std::string_view other) const {
  return std::ranges::all_of(kMeshAxes, [&](const MeshAxis& axis) {
    return shape_.*axis.size == 1 || spans(group, axis) == spans(other, axis);
  });
}

std::vector<Registration> Mesh::register_memory(const Buffer& memory, NcclMemory how) {
  std::vector<Registration> registrations;
  for (const auto& communicator : communicators_) {
    const bool wanted = how == NcclMemory::kAuto ? communicator.get() == &shard() : how != NcclMemory::kPlain;
    // Pipeline stages have memory of different sizes.
    const bool over_stages =
        shape_.pipeline > 1 && (communicator->name() == "world" || communicator->name() == "pipeline");
    if (!wanted || over_stages) continue;
    if (auto registration = communicator->register_memory(memory)) registrations.push_back(std::move(registration));
  }
  return registrations;
}

}  // namespace octavo
