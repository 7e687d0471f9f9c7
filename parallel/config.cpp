#include "parallel/config.h"

#include <string>

#include "core/error.h"

namespace octavo {

namespace {

template <typename Wanted>
int64_t ranks_along(const MeshShape& shape, const Wanted& wanted) {
  int64_t product = 1;
  for (const MeshAxis& axis : kMeshAxes) product *= wanted(axis) ? shape.*axis.size : 1;
  return product;
}

// The multiple of `unit` that is nearest to `ranks`, itself not one.
int64_t nearest_multiple(int64_t ranks, int64_t unit) {
  const int64_t below = ranks / unit * unit;
  return below > 0 && ranks - below <= unit / 2 ? below : below + unit;
}

}  // namespace

int64_t MeshShape::data() const {
  return ranks_along(*this, [](const MeshAxis& axis) { return axis.divides_samples; });
}

int64_t MeshShape::shards() const {
  return ranks_along(*this, [](const MeshAxis& axis) { return axis.shards_state; });
}

int64_t MeshShape::ranks() const {
  return ranks_along(*this, [](const MeshAxis&) { return true; });
}

MeshShape ParallelConfig::mesh_shape(int64_t ranks) const {
  const MeshAxis& filling = kMeshAxes[static_cast<size_t>(kFillingAxis)];
  MeshShape shape;
  int64_t fixed = 1;
  std::string others;     // "parallel.tensor_parallel 2 times ..."
  std::string all_sizes;  // of the sentence about all of them
  for (const MeshAxis& axis : kMeshAxes) {
    const int64_t size = this->*axis.configured;
    if (&axis == &filling) {
      CHECK_INPUT(size == -1 || size >= 1, "parallel.{} is {}, expected a positive number or -1 for all that is left",
                  axis.key, size);
      continue;
    }
    CHECK_INPUT(size >= 1, "parallel.{} is {}, expected a positive number", axis.key, size);
    shape.*axis.size = size;
    fixed *= size;
    others += fmt::format("{}parallel.{} {}", others.empty() ? "" : " times ", axis.key, size);
    all_sizes += fmt::format(" times {} {}", axis.key, size);
  }
  int64_t& filled = shape.*filling.size;
  filled = this->*filling.configured;
  CHECK_INPUT(filled != -1 || ranks % fixed == 0,
              "{} is {}, which does not divide the {} ranks of this run; the nearest number that it divides is {}",
              others, fixed, ranks, nearest_multiple(ranks, fixed));
  if (filled == -1) filled = ranks / fixed;
  CHECK_INPUT(shape.ranks() == ranks, "parallel.{} {}{} is {}, but this run has {} ranks", filling.key, filled,
              all_sizes, shape.ranks(), ranks);
  return shape;
}

// Registered gathers and reductions of shards are faster, 2% of a step of 8B; those of tensor parallelism are slower.
// Between machines neither was measured.
bool ParallelConfig::registers_memory(const MeshShape& mesh, bool one_machine) const {
  if (nccl_memory == NcclMemory::kAuto) return one_machine && mesh.shards() > 1;
  return nccl_memory != NcclMemory::kPlain && mesh.ranks() > 1;
}

}  // namespace octavo
