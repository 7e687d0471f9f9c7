#include "parallel/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "core/error.h"
#include "core/suggestions.h"

namespace octavo {

namespace {

template <typename Wanted>
int64_t ranks_along(const MeshShape& shape, const Wanted& wanted) {
  int64_t product = 1;
  for (const MeshAxis& axis : kMeshAxes) product *= wanted(axis) ? shape.*axis.size : 1;
  return product;
}

// Returns the product of the sizes that the config gives.
int64_t given_ranks(const ParallelConfig& config) {
  int64_t product = 1;
  for (const MeshAxis& axis : kMeshAxes) product *= config.*axis.configured == -1 ? 1 : config.*axis.configured;
  return product;
}

// Returns the suggestion of an error message, such as "; 3 or 6 ranks would work, or parallel.tensor_parallel 2". The
// suggestion names other numbers of ranks, or another size for one axis. `fixed` is the product of the given sizes,
// which does not divide `ranks`.
std::string what_would_fill(const ParallelConfig& config, int64_t ranks, int64_t fixed) {
  std::string sentence = would_work(multiples_near(ranks, fixed), " ranks");
  for (const MeshAxis& axis : kMeshAxes) {
    const int64_t size = config.*axis.configured;
    if (size <= 1 || ranks % (fixed / size) != 0) continue;
    sentence +=
        fmt::format(", or parallel.{} {}", axis.key, fmt::join(divisors_near(size, ranks / (fixed / size)), " or "));
  }
  return sentence;
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

const MeshAxis* filling_axis(const ParallelConfig& config) {
  for (const Axis axis : kFillingAxes) {
    const MeshAxis& one = kMeshAxes[static_cast<size_t>(axis)];
    if (config.*one.configured == -1) return &one;
  }
  return nullptr;
}

bool ParallelConfig::suits(int64_t ranks) const {
  const int64_t given = given_ranks(*this);
  return filling_axis(*this) != nullptr ? ranks % given == 0 : ranks == given;
}

MeshShape ParallelConfig::mesh_shape(int64_t ranks) const {
  const MeshAxis* filling = filling_axis(*this);
  MeshShape shape;
  std::string given;  // Given sizes as text: "parallel.tensor_parallel 2 times ..."
  // Sizes of all axes as text, for the message about their product.
  std::string all_sizes;
  for (const MeshAxis& axis : kMeshAxes) {
    const int64_t size = this->*axis.configured;
    const bool may_fill =
        std::ranges::any_of(kFillingAxes, [&](Axis one) { return &kMeshAxes[static_cast<size_t>(one)] == &axis; });
    CHECK_INPUT(size >= 1 || (may_fill && size == -1), "parallel.{} is {}, expected a positive number{}", axis.key,
                size, may_fill ? " or -1 for all remaining ranks" : "");
    if (size == -1) continue;
    shape.*axis.size = size;
    if (axis.divides_blocks && size == 1) continue;  // Messages name the axis only if it is used.
    given += fmt::format("{}parallel.{} {}", given.empty() ? "" : " times ", axis.key, size);
    all_sizes += fmt::format("{}{} {}", all_sizes.empty() ? "parallel." : " times ", axis.key, size);
  }
  if (filling != nullptr) {
    const int64_t fixed = given_ranks(*this);
    CHECK_INPUT(ranks % fixed == 0, "{} is {}, which does not divide the {} ranks of this run{}", given, fixed, ranks,
                what_would_fill(*this, ranks, fixed));
    shape.*filling->size = ranks / fixed;
  }
  CHECK_INPUT(shape.ranks() == ranks, "{} is {}, but this run has {} ranks", all_sizes, shape.ranks(), ranks);
  return shape;
}

// Registered memory makes gathers and reductions of shards faster (2% of a step of an 8B model) and those of tensor
// parallelism slower. Several machines were not measured.
bool ParallelConfig::registers_memory(const MeshShape& mesh, bool one_machine) const {
  if (nccl_memory == NcclMemory::kAuto) return one_machine && mesh.shards() > 1;
  return nccl_memory != NcclMemory::kPlain && mesh.ranks() > 1;
}

}  // namespace octavo
