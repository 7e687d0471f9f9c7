#include "app/inputs/same_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_files.h"
#include "core/error.h"
#include "data/loader.h"
#include "data/tokens/token_writer.h"
#include "model/parameters/parameters.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

using Json = nlohmann::json;

class ResumableTest : public testing::Test {
 protected:
  ResumableTest() {
    manifest_.step = 3;
    manifest_.model = {.hidden_size = 32,
                       .intermediate_size = 32,
                       .num_layers = 1,
                       .num_heads = 1,
                       .num_kv_heads = 1,
                       .head_dim = 32,
                       .vocab_size = 272,
                       .rope_scaling = std::nullopt};
    manifest_.shards = {{"shard", 4, "0"}};
    manifest_.meta = {{"config", {{"training", {{"steps", 9}}}}}, {"loader", loader_state()}};
    add("");
    add("exp_avg.");
    add("exp_avg_sq.");
  }

  Json loader_state() {
    TokenFileWriter writer(dir_ / "tokens", TokenDtype::kU8);
    writer.add_document(std::vector<int32_t>(100, 7));
    writer.finish();
    DataConfig data;
    data.train = {{.paths = {dir_ / "tokens"}}};
    data.seq_len = 8;
    return Loader(data, {}).state_json();
  }

  void add(const std::string& prefix) {
    const ParameterLayout layout(manifest_.model);
    for (const ParameterSpec& spec : layout.specs()) {
      const std::string name = prefix + spec.name;
      manifest_.tensors.push_back(
          {name, spec.whole_shape, DType::kFloat32, {{"shard", name, 0, slice_numel(spec.whole_shape, {}), "0"}}});
    }
  }

  // Returns the message with which the manifest is refused after `change` edits it, or an empty string.
  template <typename Change>
  std::string said(const Change& change) const {
    CheckpointManifest changed = manifest_;
    change(changed);
    const Checkpoint checkpoint(ManifestFile{"saved/step_00000003", manifest_to_text(changed)});
    try {
      check_resumable(checkpoint);
    } catch (const DamagedCheckpoint& damage) {
      return damage.what();
    }
    return "";
  }
  std::string said_without(const std::string& prefix) const {
    return said([&](CheckpointManifest& manifest) {
      std::erase_if(manifest.tensors, [&](const auto& tensor) { return tensor.name.starts_with(prefix); });
    });
  }
  std::string said_of_loader(const Json& patch) const {
    return said([&](CheckpointManifest& manifest) { manifest.meta["loader"].merge_patch(patch); });
  }

  TempDir dir_;
  CheckpointManifest manifest_;
};

void import_meta(CheckpointManifest& manifest) { manifest.meta = {{"imported_from", "model"}}; }

TEST_F(ResumableTest, WhatARunSavesIsResumable) {
  EXPECT_EQ(said([](CheckpointManifest&) {}), "");
  add("ema.");
  EXPECT_EQ(said([](CheckpointManifest&) {}), "");
}

TEST_F(ResumableTest, AnImportedModelHasWeightsAlone) {
  EXPECT_EQ(said([](CheckpointManifest& manifest) {
              import_meta(manifest);
              std::erase_if(manifest.tensors, [](const auto& tensor) { return tensor.name.starts_with("exp_avg"); });
            }),
            "");
}

TEST_F(ResumableTest, OneStateOfAMatrixIsEnoughForMuon) {
  EXPECT_EQ(said([](CheckpointManifest& manifest) {
              for (CheckpointTensorInfo& tensor : manifest.tensors) {
                if (tensor.name == "exp_avg.model.layers.0.mlp.up_proj.weight") {
                  tensor.name = "momentum.model.layers.0.mlp.up_proj.weight";
                }
              }
            }),
            "");
}

TEST_F(ResumableTest, NamesTheTensorThatIsMissing) {
  expect_mentions(said_without("model.norm.weight"), {"saved/step_00000003/manifest.json", "model.norm.weight"});
  expect_mentions(said_without("exp_avg.model.norm.weight"), {"optimizer states of model.norm.weight"});
  expect_mentions(said_without("exp_avg_sq."), {"optimizer states", "model.init_from=saved/step_00000003"});
  add("ema.");
  expect_mentions(said_without("ema.model.norm.weight"), {"moving average", "model.norm.weight"});
  expect_mentions(said([](CheckpointManifest& manifest) {
                    import_meta(manifest);
                    manifest.tensors.front().name = "another";
                  }),
                  {"lacks the tensor"});
}

TEST_F(ResumableTest, ARunHasItsConfigAndALoaderState) {
  expect_mentions(said([](CheckpointManifest& manifest) { manifest.meta.erase("config"); }), {"config of the run"});
  expect_mentions(said([](CheckpointManifest& manifest) { manifest.meta["config"] = {1, 2}; }), {"config of the run"});
  expect_mentions(said([](CheckpointManifest& manifest) { manifest.meta.erase("loader"); }), {"no loader state"});
}

TEST_F(ResumableTest, TheLoaderStateHasItsTypes) {
  EXPECT_EQ(said_of_loader({{"seed", 99}}), "") << "another check compares the data";
  for (const Json& patch :
       {Json(3), Json{{"next_sample", "1"}}, Json{{"next_sample", -1}}, Json{{"seed", nullptr}}, Json{{"shuffle", 1}},
        Json{{"seq_len", {1}}}, Json{{"datasets", nullptr}}, Json{{"datasets", {1, 2}}}, Json{{"skipped", {1}}},
        Json{{"skipped", {{1, "a"}}}}, Json{{"resumed_from_sample", "a"}}}) {
    expect_mentions(said_of_loader(patch), {"saved/step_00000003/manifest.json", "the loader state"});
  }
}

TEST_F(ResumableTest, AutoTakesTheCheckpointBefore) {
  for (const int64_t step : {3, 4}) {
    const std::filesystem::path directory = dir_ / step_directory_name(step);
    std::filesystem::create_directory(directory);
    manifest_.step = step;
    if (step == 4) manifest_.meta.erase("loader");
    write_manifest(directory, manifest_);
  }
  ProcessGroup group;
  CheckpointConfig config;
  config.dir = std::filesystem::path(dir_ / "").string();
  EXPECT_EQ(open_checkpoint_to_resume(config, {}, group)->step(), 3);
  EXPECT_TRUE(std::filesystem::exists(dir_ / "damaged_step_00000004"));
  config.resume = dir_ / "damaged_step_00000004";
  expect_mentions(message_of<InputError>([&] { open_checkpoint_to_resume(config, {}, group); }), {"no loader state"});
}

}  // namespace
}  // namespace octavo
