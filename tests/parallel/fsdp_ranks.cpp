// Tests of the gradient sums over replicas and shards of the model state (parallel/fsdp.h).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "parallel/fsdp.h"
#include "tests/parallel/ranks_fixture.h"

namespace octavo::fsdp_ranks {
namespace {

class FsdpRanks : public DeviceRanksTest {
 protected:
  // Returns the terms of `rank`. Their magnitudes differ so much that each order of summation rounds differently.
  static std::vector<float> terms_of(int rank, int64_t elements) {
    std::mt19937 generator(static_cast<unsigned>(31 + rank));
    std::normal_distribution<float> normal;
    std::vector<float> terms(static_cast<size_t>(elements));
    for (size_t i = 0; i < terms.size(); ++i) {
      terms[i] = normal(generator) * std::exp2(static_cast<float>(i % 7) - 3);
    }
    return terms;
  }

  // Returns this rank's gradients after the sum over ranks. Every rank has a replica of the whole state, and the state
  // has one unit per entry of `elements`.
  std::vector<std::vector<float>> sums(const std::vector<int64_t>& elements) {
    const std::unique_ptr<Communicator> world = make_communicator(group_, stream_);
    FsdpOptions options{.units = {}, .pools = {{.name = "units"}}, .groups = {.replicate = world.get()}};
    options.units.reserve(elements.size());
    for (const int64_t count : elements) {
      FsdpUnit& unit = options.units.emplace_back();
      unit.name = "unit";
      unit.shard_elements = count;
      unit.gradient_dtype = DType::kBFloat16;
    }
    Arena plan(stream_.device());
    { const Fsdp planned(options, plan, stream_); }
    Arena arena(stream_.device(), plan.used());
    Fsdp fsdp(options, arena, stream_);
    for (size_t u = 0; u < elements.size(); ++u) {
      const std::vector<float> terms = terms_of(rank_, elements[u]);
      fsdp.begin_gradient(u, {});
      stream_.copy(fsdp.gradient(u).raw(), terms.data(), fsdp.gradient(u).bytes());
      stream_.synchronize();
      fsdp.reduce(u, {});
    }
    fsdp.finish_reductions();
    std::vector<std::vector<float>> found;
    for (size_t u = 0; u < elements.size(); ++u) {
      found.emplace_back(static_cast<size_t>(elements[u]));
      stream_.copy(found.back().data(), fsdp.gradient_shard(u).raw(), fsdp.gradient_shard(u).bytes());
    }
    stream_.synchronize();
    return found;
  }

  std::string bytes_of(const std::vector<float>& values) const {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }
};

// Each term is rounded to bfloat16, the terms are summed in float32 in rank order, and the sum is rounded. All ranks
// and devices get equal bits.
TEST_P(FsdpRanks, ReplicasSumBFloat16WithTwoRoundings) {
  const std::vector<int64_t> elements = {1, 1000, 5000, 70001};
  const std::vector<std::vector<float>> found = sums(elements);
  for (size_t u = 0; u < elements.size(); ++u) {
    std::vector<float> expected(static_cast<size_t>(elements[u]));
    for (int rank = 0; rank < size_; ++rank) {
      const std::vector<float> terms = terms_of(rank, elements[u]);
      for (size_t i = 0; i < terms.size(); ++i) {
        const float term = size_ > 1 ? static_cast<float>(BFloat16(terms[i])) : terms[i];
        expected[i] = rank == 0 ? term : expected[i] + term;
      }
    }
    if (size_ > 1) {
      for (float& value : expected) value = static_cast<float>(BFloat16(value));
    }
    EXPECT_EQ(bytes_of(found[u]), bytes_of(expected)) << elements[u] << " elements";
    for (const std::string& other : group_.all_gather(bytes_of(found[u]))) EXPECT_TRUE(other == bytes_of(found[u]));
  }
}

// The sums are those in rank order wherever an element lies, over replicas and over shards, whether or not the full
// gradient is kept, and with several micro-batches.
TEST_P(FsdpRanks, SumsInRankOrder) {
  const std::unique_ptr<Communicator> world = make_communicator(group_, stream_);
  constexpr int64_t kElements = 5003;
  constexpr MicroBatchPosition kPositions[] = {{.first = true, .last = false}, {.first = false, .last = true}};
  for (const bool replicates : {false, true}) {
    for (const int64_t gradient_slots : {2, 4}) {  // Four slots keep the gradients of all units.
      const std::string name = fmt::format("replicates {}, {} slots", replicates, gradient_slots);
      FsdpOptions options{.units = std::vector<FsdpUnit>(3),
                          .pools = {{.name = "units", .weight_slots = 2, .gradient_slots = gradient_slots}},
                          .groups = {}};
      (replicates ? options.groups.replicate : options.groups.shard) = world.get();
      for (FsdpUnit& unit : options.units) {
        unit.name = "unit";
        unit.shard_elements = kElements;
        unit.in_rank_order = true;
      }
      Arena plan(stream_.device());
      { const Fsdp planned(options, plan, stream_); }
      Arena arena(stream_.device(), plan.used());
      Fsdp fsdp(options, arena, stream_);
      const int64_t full = fsdp.gradient(1).numel();
      for (const MicroBatchPosition& position : kPositions) {
        std::vector<float> terms = terms_of(rank_, full);
        // Ops add the terms of the second micro-batch to those of the first if the gradient is kept.
        if (fsdp.begin_gradient(1, position)) {
          std::ranges::transform(terms, terms.begin(), [](float x) { return x + x; });
        }
        stream_.copy(fsdp.gradient(1).raw(), terms.data(), fsdp.gradient(1).bytes());
        stream_.synchronize();
        fsdp.reduce(1, position);
      }
      fsdp.finish_reductions();
      std::vector<float> found(kElements);
      stream_.copy(found.data(), fsdp.gradient_shard(1).raw(), fsdp.gradient_shard(1).bytes());
      stream_.synchronize();
      std::vector<float> expected(kElements);
      for (int rank = 0; rank < size_; ++rank) {
        const std::vector<float> terms = terms_of(rank, full);
        for (size_t i = 0; i < expected.size(); ++i) {
          expected[i] += terms[i + (full > kElements ? static_cast<size_t>(rank_ * kElements) : 0)];
        }
      }
      // Both micro-batches have the same terms, so the sum of the step is exactly twice that of one.
      for (float& value : expected) value *= 2;
      EXPECT_EQ(bytes_of(found), bytes_of(expected)) << name;
    }
  }
}

INSTANTIATE_ON_DEVICES(FsdpRanks);

}  // namespace
}  // namespace octavo::fsdp_ranks
