#include "app/run/weights.h"

#include <gtest/gtest.h>

#include <vector>

#include "app/memory/training_model.h"
#include "checkpoint/checkpoint_writer.h"
#include "core/error.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

Config tiny_config() {
  Config config;
  config.model = {.hidden_size = 32,
                  .intermediate_size = 32,
                  .num_layers = 1,
                  .num_heads = 1,
                  .num_kv_heads = 1,
                  .head_dim = 32,
                  .vocab_size = 272,
                  .rope_scaling = std::nullopt};
  config.data.seq_len = 16;
  config.training.global_batch_size = 1;
  config.training.micro_batch_size = 1;
  config.device = DeviceChoice::kCpu;
  return config;
}

TEST(LoadOptimizer, RefusesACheckpointOfARunWithoutItsMoments) {
  Config config = tiny_config();
  ProcessGroup group;
  Runtime runtime(config, group);
  TrainingModel model(config, false, runtime);
  TrainingState& state = model.state();
  load_initial_weights(config, nullptr, state.parameters, runtime.stream());
  std::vector<CheckpointTensor> weights;
  for (const ParameterPiece& piece : state.parameters.pieces()) {
    weights.push_back({.name = piece.spec->name,
                       .shape = piece.spec->whole_shape,
                       .begin = piece.begin,
                       .end = piece.end,
                       .data = state.parameters.master(piece)});
  }
  const TempDir dir;
  CheckpointWriter writer({dir / "checkpoints", 0, false}, group, runtime.stream());
  const auto load = [&](const nlohmann::json& meta) {
    writer.save(1, config.model, meta, weights);
    Checkpoint checkpoint(*writer.last_saved());
    load_optimizer(checkpoint, state.parameters, state.optimizer, runtime.stream());
  };
  load(nlohmann::json::object());  // an imported model
  expect_mentions(
      message_of<InputError>([&] {
        load({{"config", {{"training", {{"steps", 1}}}}}});
      }),
      {"step_00000001", "has the config of a run, but not the exp_avg of its optimizer", "model.init_from"});
}

}  // namespace
}  // namespace octavo
