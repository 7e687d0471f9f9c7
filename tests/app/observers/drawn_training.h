// Trains random models on random meshes (tests/app/run/mesh_draw.h) with random batches, for tests of observers.
#pragma once

#include <string_view>
#include <vector>

#include "app/run/weights.h"
#include "data/loader.h"
#include "model/parameters/pipeline_stages.h"
#include "parallel/mesh.h"
#include "tests/app/run/mesh_draw.h"
#include "tests/parallel/ranks_fixture.h"

namespace octavo {

class DrawnTraining {
 public:
  DrawnTraining(const MeshDraw& draw, ProcessGroup& group, Stream& stream)
      : draw_(draw),
        stream_(stream),
        mesh_(draw_.config.parallel, group, stream),
        rows_(draw_.config.training.global_batch_size / mesh_.shape().data()),
        arena_(stream.device(), plan_training(draw_.job(mesh_), mesh_).used()),
        state_(draw_.job(mesh_), mesh_, arena_) {
    stream.set_deterministic(true);
    initialize_parameters(state_.parameters, 42, stream);
    cast_weights(state_);
  }

  TrainingState& state() { return state_; }
  TrainingStep step_of(int64_t number) const { return {.number = number, .lr = 1e-3, .targets = draw_.targets()}; }

  // Uploads this rank's rows of the global batch of a step, and of each row the chunks of this context-parallel rank.
  void upload(int64_t step) {
    Batch rows;
    for (int64_t row = 0; row < rows_; ++row) {
      mesh_draw::Dice dice(static_cast<uint64_t>(step * 100000 + mesh_.data_rank() * rows_ + row));
      int64_t document = 0;
      for (int64_t t = 0; t < draw_.config.data.seq_len; ++t) {
        if (dice.number(0, 9) == 0) document = t;
        rows.inputs.push_back(static_cast<int32_t>(dice.number(0, draw_.config.model.vocab_size - 1)));
        rows.targets.push_back(static_cast<int32_t>(dice.number(0, draw_.config.model.vocab_size - 1)));
        rows.document_start.push_back(static_cast<int32_t>(document));
      }
    }
    Batch batch;
    append_share(rows, mesh_.context_rank(), draw_.config.data.seq_len, batch);
    state_.batch.upload(batch);
    if (step == 1 && stream_.is_cuda()) warm_up(state_);
  }

  // Returns the loss and the sum of squares of the gradients of the last step.
  std::vector<float> results() const {
    std::vector<float> values(2);
    stream_.copy(values.data(), state_.loss.raw(), sizeof(float));
    stream_.copy(values.data() + 1, state_.optimizer.grad_sum_of_squares().raw(), sizeof(float));
    stream_.synchronize();
    return values;
  }

  // Returns this rank's slice of a parameter, or null if it has none.
  const ParameterSlice* slice(std::string_view name) const {
    for (const ParameterSlice& slice : state_.parameters.slices()) {
      if (slice.spec->name == name) return &slice;
    }
    return nullptr;
  }

 protected:
  MeshDraw draw_;
  Stream& stream_;
  Mesh mesh_;
  int64_t rows_;
  Arena arena_;
  TrainingState state_;
};

}  // namespace octavo
