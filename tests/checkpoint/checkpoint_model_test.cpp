// Tests of the model config in a manifest.
#include <gtest/gtest.h>

#include <string>

#include "checkpoint/checkpoint.h"
#include "core/error.h"
#include "model/architecture/model_fields.h"
#include "tests/checkpoint/checkpoint_fixture.h"

namespace octavo {
namespace {

TEST(CheckpointModel, NamesTheFirstDifference) {
  ModelConfig run = small_model();
  check_same_model(small_model(), run, "checkpoints");
  run.vocab_size = 20;
  run.num_layers = 3;
  expect_mentions(message_of<InputError>([&] { check_same_model(small_model(), run, "checkpoints"); }),
                  {"checkpoints: is a checkpoint of another model: its num_layers is 1", "model.num_layers is 3"});
  run = small_model();
  run.rope_scaling = RopeScaling{};
  EXPECT_THROW(check_same_model(small_model(), run, "checkpoints"), InputError);
  EXPECT_EQ(model_config_from_json(model_config_to_json(run)), run);
}

// Every field has a distinct value, so the test fails if a field is lost or keeps its default.
TEST(CheckpointModel, EveryFieldComesBack) {
  const ModelConfig config{512, 384, 3, 8, 2, 32, 40, 7.0, RopeScaling{16, 2, 3, 64}, 1e-3, true, true};
  const nlohmann::json json = model_config_to_json(config);
  for_each_field(config, [&](const auto& field, const auto& value) {
    EXPECT_EQ(json.at(field.name), shape_to_json<nlohmann::json>(value)) << field.name;
    EXPECT_NE(json.at(field.name), model_config_to_json({}).at(field.name)) << field.name;
  });
  for_each_field(*config.rope_scaling, [&](const auto& field, const auto&) {
    EXPECT_NE(json.at("rope_scaling").at(field.name), shape_to_json<nlohmann::json>(RopeScaling{}).at(field.name));
  });
  EXPECT_EQ(model_config_from_json(json), config);
}

TEST(CheckpointModel, FieldsWithADefaultMayBeMissing) {
  const ModelConfig config = small_model();
  for_each_field(config, [&](const auto& field, const auto&) {
    nlohmann::json json = model_config_to_json(config);
    json.erase(field.name);
    if (field.presence == Presence::kDefault) {
      EXPECT_NO_THROW(model_config_from_json(json)) << field.name;
    } else {
      EXPECT_THROW(model_config_from_json(json), InputError) << field.name;
    }
  });
  nlohmann::json json = model_config_to_json(config);
  for (const char* field : {"rope_theta", "rope_scaling", "rms_norm_eps", "tie_word_embeddings", "qk_norm"}) {
    json.erase(field);
  }
  const ModelConfig read = model_config_from_json(json);
  EXPECT_EQ(read.num_layers, config.num_layers);
  EXPECT_EQ(read.rope_theta, ModelConfig{}.rope_theta);
  EXPECT_EQ(read.rms_norm_eps, ModelConfig{}.rms_norm_eps);
  EXPECT_FALSE(read.tie_word_embeddings);
  EXPECT_FALSE(read.qk_norm);
}

}  // namespace
}  // namespace octavo
