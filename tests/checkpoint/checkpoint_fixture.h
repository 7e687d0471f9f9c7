// Fixture of the checkpoint tests: a few tensors, and functions that save and read them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_writer.h"
#include "core/error.h"
#include "core/files/checksum.h"
#include "tests/data/test_files.h"

namespace octavo {

namespace fs = std::filesystem;

inline ModelConfig small_model() {
  ModelConfig config;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_layers = 1;
  config.num_heads = config.num_kv_heads = 1;
  config.head_dim = 32;
  config.vocab_size = 10;
  return config;
}

// Values of three tensors: a float32 weight, its float32 first moment and its bfloat16 second moment.
struct State {
  explicit State(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& value : weight) value = normal(random);
    for (float& value : exp_avg) value = normal(random);
    for (BFloat16& value : exp_avg_sq) value = BFloat16(normal(random));
  }

  std::vector<CheckpointTensor> tensors() {
    return {{"a.weight", {7, 5}, 0, 35, Tensor(weight.data(), DType::kFloat32, {35})},
            {"exp_avg.a.weight", {7, 5}, 0, 35, Tensor(exp_avg.data(), DType::kFloat32, {7, 5})},
            {"exp_avg_sq.a.weight", {7, 5}, 0, 35, Tensor(exp_avg_sq.data(), DType::kBFloat16, {35})}};
  }

  std::vector<float> weight = std::vector<float>(35);
  std::vector<float> exp_avg = std::vector<float>(35);
  std::vector<BFloat16> exp_avg_sq = std::vector<BFloat16>(35);
};

class CheckpointTest : public testing::Test {
 protected:
  std::string root() const { return dir_ / "checkpoints"; }
  fs::path step_path(int64_t step) const { return fs::path(root()) / step_directory_name(step); }
  fs::path shard_path(int64_t step) const { return step_path(step) / shard_name(0); }

  void save(int64_t step, State& state, bool async = false, int64_t keep = 0) {
    CheckpointWriter writer({root(), keep, async}, group_, stream_);
    writer.save(step, small_model(), {{"tokens", 10 * step}, {"loader", {1, 2}}}, state.tensors());
    writer.finish();
    EXPECT_EQ(writer.last_saved(), step_path(step));
  }

  void save_pieces(int64_t step, const std::vector<CheckpointTensor>& pieces) {
    CheckpointWriter writer({root(), 0, true}, group_, stream_);
    writer.save(step, small_model(), {}, pieces);
    writer.finish();
  }

  static void expect_holds(Checkpoint& checkpoint, const State& state) {
    std::vector<float> values(35);
    checkpoint.read("a.weight", {}, 0, 35, values.data());
    EXPECT_EQ(values, state.weight);
    checkpoint.read("exp_avg.a.weight", {}, 0, 35, values.data());
    EXPECT_EQ(values, state.exp_avg);
    checkpoint.read("exp_avg_sq.a.weight", {}, 0, 35, values.data());
    for (size_t i = 0; i < 35; ++i) EXPECT_EQ(values[i], static_cast<float>(state.exp_avg_sq[i]));
  }

  // Edits the manifest of a step and updates its checksum.
  template <typename Change>
  void edit_manifest(int64_t step, Change change) const {
    const std::string path = (step_path(step) / kManifestName).string();
    nlohmann::json json = nlohmann::json::parse(read_whole_file(path));
    change(json);
    json.erase("xxh3");
    const std::string text = json.dump();
    json["xxh3"] = checksum_hex(text.data(), std::ssize(text));
    write_file(path, json.dump());
  }

  // Returns the names in the checkpoint directory, sorted and without the lock file.
  std::vector<std::string> listing() const {
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(root())) {
      names.push_back(entry.path().filename().string());
    }
    std::erase(names, "lock");
    std::sort(names.begin(), names.end());
    return names;
  }

  // Returns the message of the InputError that verifying the whole checkpoint throws, or an empty string.
  static std::string damage(const fs::path& path) {
    return input_error_of([&] { Checkpoint(path).verify(); });
  }

  TempDir dir_;
  ProcessGroup group_;
  Stream stream_ = Stream::cpu();
};

}  // namespace octavo
