// Tests on several ranks, with random models, meshes and recipes (tests/app/run/mesh_draw.h), that a broken element of
// a weight is found wherever it lies, and that the search does not change the training.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "app/observers/nonfinite_search.h"
#include "app/run/weights.h"
#include "data/sample_batch.h"
#include "model/parameters/pipeline_stages.h"
#include "parallel/mesh.h"
#include "tests/app/run/mesh_draw.h"
#include "tests/parallel/ranks_fixture.h"

namespace octavo::nonfinite_search_ranks {
namespace {

class SearchedTraining {
 public:
  SearchedTraining(const MeshDraw& draw, ProcessGroup& group, Stream& stream)
      : draw_(draw),
        group_(group),
        stream_(stream),
        mesh_(draw_.config.parallel, group, stream),
        rows_(draw_.config.training.global_batch_size / mesh_.shape().data()),
        layout_(layout_of_rank(draw_.config.model, draw_.config.parallel, mesh_)),
        arena_(stream.device(), plan_training(draw_.options(layout_, rows_), mesh_).used()),
        state_(draw_.options(layout_, rows_), mesh_, arena_) {
    stream.set_deterministic(true);
    initialize_parameters(state_.parameters, 42, stream);
    publish_weights(state_);
  }

  // Returns the loss and the sum of squares of the gradients.
  std::vector<float> step(int64_t number) {
    upload(number);
    if (number == 1 && stream_.is_cuda()) warm_up(state_);
    training_step(state_, work(number));
    std::vector<float> values(2);
    stream_.copy(values.data(), state_.loss.raw(), sizeof(float));
    stream_.copy(values.data() + 1, state_.optimizer.grad_sum_of_squares().raw(), sizeof(float));
    stream_.synchronize();
    return values;
  }

  // Returns the first result of all ranks, or an empty text.
  std::string search(int64_t number) {
    const auto found = find_nonfinite(state_, work(number));
    nlohmann::json first;
    for (const std::string& text :
         group_.all_gather(found ? nlohmann::json{found->order, found->text}.dump() : "null")) {
      const nlohmann::json result = nlohmann::json::parse(text);
      if (!result.is_null() && (first.is_null() || result[0] < first[0])) first = result;
    }
    return first.is_null() ? "" : first[1].get<std::string>();
  }

  // Makes the last element of a parameter NaN, on the ranks that hold it. Returns the value before.
  float spoil(const std::string& name, float value) {
    float before = 0;
    for (const ParameterPiece& piece : state_.parameters.pieces()) {
      if (piece.spec->name != name || piece.end != piece.spec->numel()) continue;
      const Tensor weight = state_.parameters.master(piece);
      const Tensor last = weight.rows(weight.numel() - 1, weight.numel());
      stream_.copy(&before, last.raw(), sizeof(before));
      stream_.copy(last.raw(), &value, sizeof(value));
      stream_.synchronize();
    }
    publish_weights(state_);
    stream_.synchronize();
    return before;
  }

 private:
  TrainingStep work(int64_t number) const { return {.number = number, .lr = 1e-3, .targets = draw_.targets()}; }
  void upload(int64_t step) {
    Batch batch;
    for (int64_t row = 0; row < rows_; ++row) {
      mesh_draw::Dice dice(static_cast<uint64_t>(step * 100000 + mesh_.data_rank() * rows_ + row));
      int64_t document = 0;
      for (int64_t t = 0; t < draw_.config.data.seq_len; ++t) {
        if (dice.number(0, 9) == 0) document = t;
        batch.inputs.push_back(static_cast<int32_t>(dice.number(0, draw_.config.model.vocab_size - 1)));
        batch.targets.push_back(static_cast<int32_t>(dice.number(0, draw_.config.model.vocab_size - 1)));
        batch.document_start.push_back(static_cast<int32_t>(document));
      }
    }
    Batch share;
    append_share(batch, mesh_.context_rank(), draw_.config.data.seq_len, share);
    state_.batch.upload(share);
  }

  MeshDraw draw_;
  ProcessGroup& group_;
  Stream& stream_;
  Mesh mesh_;
  int64_t rows_;
  ParameterLayout layout_;
  Arena arena_;
  TrainingState state_;
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
