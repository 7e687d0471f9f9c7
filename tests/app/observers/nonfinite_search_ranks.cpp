// Tests on several ranks, with random models, meshes and recipes (tests/app/run/mesh_draw.h), that a broken element of
// a weight is found wherever it lies, and that the search does not change the training.
#include <limits>
#include <nlohmann/json.hpp>

#include "app/observers/nonfinite_search.h"
#include "tests/app/observers/drawn_training.h"

namespace octavo::nonfinite_search_ranks {
namespace {

class SearchedTraining : public DrawnTraining {
 public:
  SearchedTraining(const MeshDraw& draw, ProcessGroup& group, Stream& stream)
      : DrawnTraining(draw, group, stream), group_(group) {}

  // Returns the results of the step.
  std::vector<float> step(int64_t number) {
    upload(number);
    training_step(state_, step_of(number));
    return results();
  }

  // Returns the first result of all ranks that is not finite, or an empty text.
  std::string search(int64_t number) {
    const auto found = find_nonfinite(state_, step_of(number));
    nlohmann::json first;
    for (const std::string& text :
         group_.all_gather(found ? nlohmann::json{found->order, found->text}.dump() : "null")) {
      const nlohmann::json result = nlohmann::json::parse(text);
      if (!result.is_null() && (first.is_null() || result[0] < first[0])) first = result;
    }
    return first.is_null() ? "" : first[1].get<std::string>();
  }

  // Sets the last element of a parameter on the ranks that hold it. Returns the value before.
  float spoil(const std::string& name, float value) {
    float before = 0;
    for (const ParameterSlice& slice : state_.parameters.slices()) {
      if (slice.spec->name != name || slice.end != slice.spec->numel()) continue;
      const Tensor weight = state_.parameters.master(slice);
      const Tensor last = weight.rows(weight.numel() - 1, weight.numel());
      stream_.copy(&before, last.raw(), sizeof(before));
      stream_.copy(last.raw(), &value, sizeof(value));
      stream_.synchronize();
    }
    cast_weights(state_);
    stream_.synchronize();
    return before;
  }

 private:
  ProcessGroup& group_;
};

class NonfiniteSearchRanks : public DeviceRanksTest {};
INSTANTIATE_ON_DEVICES(NonfiniteSearchRanks);

TEST_P(NonfiniteSearchRanks, ABrokenWeightIsFoundAndNothingChanges) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr std::pair<const char*, const char*> kWeights[] = {{"self_attn.q_proj.weight", "qkv"},
                                                              {"self_attn.o_proj.weight", "o"},
                                                              {"mlp.up_proj.weight", "gate_up"},
                                                              {"mlp.down_proj.weight", "down"}};
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const MeshDraw draw = MeshDraw::of(seed, size_, GetParam());
    SCOPED_TRACE(fmt::format("seed {} on {} ranks: {}", seed, size_, draw.describe()));
    SearchedTraining plain(draw, group_, stream_);
    SearchedTraining searched(draw, group_, stream_);
    const int64_t layer = draw.config.model.num_layers - 1;
    for (int64_t number = 1; number <= 3; ++number) {
      const std::vector<float> expected = plain.step(number);
      EXPECT_EQ(searched.step(number), expected) << "step " << number;
      EXPECT_EQ(searched.search(number), "");
      const auto& [weight, op] = kWeights[(seed + static_cast<uint64_t>(number)) % std::size(kWeights)];
      const std::string name = fmt::format("model.layers.{}.{}", layer, weight);
      const float before = searched.spoil(name, nan);
      const std::string found = searched.search(number);
      EXPECT_TRUE(found.starts_with(fmt::format("{} in layer {}, forward of micro-batch 0; ", op, layer)))
          << name << ": " << found;
      EXPECT_NE(found.find("nan in its weight"), std::string::npos) << found;
      searched.spoil(name, before);
    }
  }
}

}  // namespace
}  // namespace octavo::nonfinite_search_ranks
