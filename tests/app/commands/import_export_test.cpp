#include "app/commands/import_export.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <limits>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "app/inputs/run_config.h"
#include "app/inputs/tokenizer_source.h"
#include "app/text/tokenizer_files.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/hf_format.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weight_source.h"
#include "core/error.h"
#include "core/files/json_input.h"
#include "model/parameters/parameters.h"
#include "tests/app/train/run_fixture.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

std::string golden(const std::string& name) { return fmt::format("{}/tests/golden/{}", OCTAVO_SOURCE_DIR, name); }

// Opens a directory of a Hugging Face model, or a checkpoint.
std::unique_ptr<WeightSource> open_weights(const std::string& path) {
  if (fs::exists(fs::path(path) / kHfConfigName)) return std::make_unique<HfWeights>(path);
  return std::make_unique<CheckpointWeights>(Checkpoint(path));
}

using Weights = std::map<std::string, std::vector<float>>;

Weights read_all(const std::string& path) {
  const auto source = open_weights(path);
  Weights weights;
  const ParameterLayout layout(source->model_config());
  for (const ParameterSpec& spec : layout.specs()) {
    std::vector<float>& values = weights[spec.name];
    values.resize(static_cast<size_t>(spec.numel()));
    source->read(spec.name, {}, 0, spec.numel(), values.data());
  }
  return weights;
}

// Returns a range of columns of a matrix, flattened row by row.
std::vector<float> take_columns(const std::vector<float>& matrix, int64_t width, ColumnRange columns) {
  std::vector<float> slice;
  for (size_t row = 0; row < matrix.size(); row += static_cast<size_t>(width)) {
    const auto values = matrix.begin() + static_cast<int64_t>(row);
    slice.insert(slice.end(), values + columns.begin, values + columns.end);
  }
  return slice;
}

// A copy of a golden Hugging Face directory whose tensors can be changed, removed or added.
class HfDirectory {
 public:
  HfDirectory(const TempDir& dir, const std::string& golden_name) : path_(dir / golden_name) {
    fs::create_directories(path_);
    fs::copy_file(golden(golden_name) + "/config.json", path_ + "/config.json");
    const SafetensorsFile file(golden(golden_name) + "/model.safetensors");
    for (const auto& [name, entry] : file.entries()) {
      const auto bytes = file.bytes(entry);
      entries_[name] = entry;
      data_[name] = std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
  }

  void drop(const std::string& name) { entries_.erase(name); }
  void add(const std::string& name, const std::string& dtype, std::vector<int64_t> shape, size_t bytes) {
    entries_[name] = {name, dtype, std::move(shape), 0, 0};
    data_[name] = std::string(bytes, '\0');
  }
  // Adds a copy of an existing tensor under another name.
  void copy(const std::string& from, const std::string& to) {
    entries_[to] = entries_.at(from);
    entries_[to].name = to;
    data_[to] = data_.at(from);
  }
  // Sets one element of a float32 tensor.
  void set(const std::string& name, size_t element, float value) {
    std::memcpy(data_.at(name).data() + element * sizeof(float), &value, sizeof(float));
  }
  void write() const {
    std::vector<SafetensorsEntry> entries;
    for (const auto& [name, entry] : entries_) entries.push_back(entry);
    SafetensorsWriter writer(path_ + "/model.safetensors", entries);
    for (const auto& entry : entries) {
      writer.write(data_.at(entry.name).data(), static_cast<int64_t>(data_.at(entry.name).size()));
    }
    writer.commit();
  }
  // Returns the message of the InputError with which opening the directory fails, or an empty string.
  std::string refusal() const {
    write();
    return input_error_of([&] { open_weights(path_); });
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> data_;
};

class ImportExport : public testing::TestWithParam<const char*> {};

TEST_P(ImportExport, RoundTripIsExact) {
  const TempDir dir;
  const Weights original = read_all(golden(GetParam()));
  import_hf(golden(GetParam()), dir / "checkpoint/");
  Checkpoint checkpoint(dir / "checkpoint");
  checkpoint.verify();
  EXPECT_EQ(checkpoint.step(), 0);
  EXPECT_EQ(read_all(dir / "checkpoint"), original);

  const ExportReport report = export_hf(dir / "checkpoint", dir / "exported");
  EXPECT_EQ(report.files, (std::vector<std::string>{"model.safetensors", "config.json", "generation_config.json"}));
  EXPECT_EQ(read_all(dir / "exported"), original);
  const SafetensorsFile file(dir / "exported/model.safetensors");
  const ModelConfig& config = checkpoint.model_config();
  EXPECT_EQ(file.find("lm_head.weight") == nullptr, config.tie_word_embeddings);
  EXPECT_EQ(parse_hf_config(read_json_file(dir / "exported/config.json"), "exported"), config);
  const nlohmann::json before = read_json_file(golden(GetParam()) + std::string("/config.json"));
  const nlohmann::json after = read_json_file(dir / "exported/config.json");
  for (const auto& [key, value] : after.items()) {
    if (before.contains(key)) {
      EXPECT_EQ(value, before.at(key)) << key;
    }
  }
}

TEST_P(ImportExport, ColumnsAreReadFromEither) {
  const TempDir dir;
  import_hf(golden(GetParam()), dir / "checkpoint");
  const Weights original = read_all(golden(GetParam()));
  for (const std::string& path : {golden(GetParam()), dir / "checkpoint"}) {
    const auto source = open_weights(path);
    const ParameterLayout layout(source->model_config());
    for (const ParameterSpec& spec : layout.specs()) {
      if (spec.shape.size() != 2) {
        EXPECT_THROW(source->read(spec.name, {0, 1}, 0, 1, std::vector<float>(1).data()), Error);
        continue;
      }
      const int64_t width = spec.shape[1];
      const ColumnRange columns{width / 3, width - 1};
      const std::vector<float> expected = take_columns(original.at(spec.name), width, columns);
      const auto end = static_cast<int64_t>(expected.size()) - 2;
      std::vector<float> values(expected.size() - 5);
      source->read(spec.name, columns, 3, end, values.data());
      EXPECT_EQ(values, std::vector<float>(expected.begin() + 3, expected.begin() + end)) << spec.name;
      EXPECT_THROW(source->read(spec.name, columns, end, end + 3, values.data()), Error);
      EXPECT_THROW(source->read(spec.name, {1, width + 1}, 0, 1, values.data()), Error);
      EXPECT_THROW(source->read(spec.name, {}, spec.numel() - 1, spec.numel() + 1, values.data()), Error);
    }
  }
}

TEST_P(ImportExport, ExportsTheCheckpointOfTensorParallelRanks) {
  const TempDir dir;
  const Weights weights = read_all(golden(GetParam()));
  const ModelConfig config = open_weights(golden(GetParam()))->model_config();
  const ParameterLayout layout(config);
  std::vector<CheckpointTensor> pieces;
  std::list<std::vector<float>> slices;
  for (const ParameterSpec& spec : layout.specs()) {
    std::vector<ColumnRange> ranges{{}};
    if (spec.name.ends_with("o_proj.weight") || spec.name.ends_with("down_proj.weight")) {
      ranges = {{0, spec.shape[1] / 3}, {spec.shape[1] / 3, spec.shape[1]}};
    }
    for (const ColumnRange columns : ranges) {
      const std::vector<float>& whole = weights.at(spec.name);
      std::vector<float>& values =
          slices.emplace_back(columns.none() ? whole : take_columns(whole, spec.shape[1], columns));
      const auto numel = static_cast<int64_t>(values.size());
      pieces.push_back({spec.name, spec.shape, 0, numel, Tensor(values.data(), DType::kFloat32, {numel}), columns});
    }
  }
  ProcessGroup group;
  Stream stream = Stream::cpu();
  CheckpointWriter writer({dir / "checkpoints", 0, false}, group, stream);
  writer.save(7, config, nlohmann::json::object(), pieces);
  export_hf(dir / "checkpoints", dir / "exported");
  EXPECT_EQ(read_all(dir / "exported"), weights);
}

TEST_P(ImportExport, ShardsAreReadBack) {
  const TempDir dir;
  const Weights original = read_all(golden(GetParam()));
  import_hf(golden(GetParam()), dir / "checkpoint");
  ExportOptions options;
  options.max_shard_bytes = 50'000;
  const ExportReport report = export_hf(dir / "checkpoint", dir / "exported", options);
  EXPECT_GT(report.files.size(), 5u);
  EXPECT_FALSE(fs::exists(dir / "exported/model.safetensors"));
  EXPECT_EQ(read_all(dir / "exported"), original);

  // A second export with larger shards removes the shards of the first one.
  export_hf(dir / "checkpoint", dir / "exported");
  EXPECT_EQ(read_all(dir / "exported"), original);
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(dir / "exported")) ++files;
  EXPECT_EQ(files, 3u);
}

TEST_P(ImportExport, BFloat16IsRounded) {
  const TempDir dir;
  Weights expected = read_all(golden(GetParam()));
  for (auto& [name, values] : expected) {
    for (float& value : values) value = static_cast<float>(BFloat16(value));
  }
  import_hf(golden(GetParam()), dir / "checkpoint");
  export_hf(dir / "checkpoint", dir / "exported", {.dtype = DType::kBFloat16});
  EXPECT_EQ(read_all(dir / "exported"), expected);
  EXPECT_EQ(SafetensorsFile(dir / "exported/model.safetensors").find("model.norm.weight")->dtype, "BF16");
  EXPECT_EQ(read_json_file(dir / "exported/config.json").at("dtype"), "bfloat16");
}

INSTANTIATE_TEST_SUITE_P(Golden, ImportExport, testing::Values("gqa", "tied_ropescaled"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST(WeightSource, ReadsRanges) {
  const auto source = open_weights(golden("gqa"));
  const Weights all = read_all(golden("gqa"));
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  std::vector<float> part(10);
  source->read(name, {}, 1003, 1013, part.data());
  EXPECT_EQ(part, std::vector<float>(all.at(name).begin() + 1003, all.at(name).begin() + 1013));
}

TEST(WeightSource, IgnoresOldBuffersAndATiedHead) {
  const TempDir dir;
  HfDirectory hf(dir, "tied_ropescaled");
  hf.add("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {4}, 16);
  hf.copy("model.embed_tokens.weight", "lm_head.weight");
  EXPECT_EQ(hf.refusal(), "");
  EXPECT_TRUE(open_weights(hf.path())->notes().empty());
  EXPECT_EQ(read_all(hf.path()), read_all(golden("tied_ropescaled")));
  // Some files have the head of a tied model in place of its embedding.
  hf.drop("model.embed_tokens.weight");
  EXPECT_EQ(hf.refusal(), "");
  EXPECT_EQ(read_all(hf.path()), read_all(golden("tied_ropescaled")));
}

TEST(WeightSource, UntiesAHeadOfItsOwn) {
  const TempDir dir;
  HfDirectory hf(dir, "tied_ropescaled");
  hf.copy("model.embed_tokens.weight", "lm_head.weight");
  hf.set("lm_head.weight", 1234, 5.0f);
  hf.write();
  expect_mentions(open_weights(hf.path())->notes().at(0),
                  {hf.path() + ": config.json has tie_word_embeddings true, but"});
  Weights expected = read_all(golden("tied_ropescaled"));
  expected["lm_head.weight"] = expected.at("model.embed_tokens.weight");
  expected["lm_head.weight"][1234] = 5.0f;
  EXPECT_EQ(read_all(hf.path()), expected);
  import_hf(hf.path(), dir / "checkpoint");
  EXPECT_FALSE(Checkpoint(dir / "checkpoint").model_config().tie_word_embeddings);
  EXPECT_EQ(read_all(dir / "checkpoint"), expected);
  export_hf(dir / "checkpoint", dir / "exported");
  EXPECT_EQ(read_json_file(dir / "exported/config.json").at("tie_word_embeddings"), false);
  EXPECT_EQ(read_all(dir / "exported"), expected);

  Config config;
  config.init_from = hf.path();
  expect_mentions(adopt_initial_model(config, *open_weights(config.init_from)).at(0), {"tie_word_embeddings"});
  EXPECT_FALSE(config.model.tie_word_embeddings);
  Config tied;
  tied.init_from = hf.path();
  tied.model = open_weights(golden("tied_ropescaled"))->model_config();
  tied.model_fields = {"tie_word_embeddings"};
  expect_mentions(message_of<InputError>([&] { adopt_initial_model(tied, *open_weights(tied.init_from)); }),
                  {"the config's model.tie_word_embeddings is true"});
}

TEST(WeightSource, ReadsNamesWithoutThePrefix) {
  const TempDir dir;
  HfDirectory hf(dir, "gqa");
  Weights expected = read_all(golden("gqa"));
  for (const auto& [name, values] : expected) {
    if (!name.starts_with("model.")) continue;
    hf.copy(name, name.substr(std::string("model.").size()));
    hf.drop(name);
  }
  hf.add("rotary_emb.inv_freq", "F32", {4}, 16);
  EXPECT_EQ(hf.refusal(), "");
  EXPECT_EQ(read_all(hf.path()), expected);
  hf.copy("norm.weight", "model.norm.weight");
  expect_mentions(hf.refusal(), {"has the tensors model.norm.weight and norm.weight, expected one of them"});
  hf.drop("model.norm.weight");
  hf.add("layers.0.mlp.up_proj.bias", "F32", {3}, 12);
  expect_mentions(hf.refusal(), {"has the tensor layers.0.mlp.up_proj.bias, which this model does not have"});
  hf.drop("layers.0.mlp.up_proj.bias");
  hf.add("norm.weight", "F32", {3}, 12);
  expect_mentions(hf.refusal(), {"tensor norm.weight is [3]"});
  hf.drop("lm_head.weight");
  hf.copy("layers.0.input_layernorm.weight", "norm.weight");
  expect_mentions(hf.refusal(), {"has no tensor lm_head.weight"});
}

TEST(WeightSource, APlanNeedsNoWeights) {
  const TempDir dir;
  fs::create_directories(dir / "shape");
  fs::copy_file(golden("gqa/config.json"), dir / "shape/config.json");
  const ModelConfig expected = open_weights(golden("gqa"))->model_config();
  for (const char* path : {"shape", "shape/config.json"}) {
    const auto source = open_planned_weights(dir / path);
    EXPECT_EQ(source->model_config(), expected);
    EXPECT_THROW(source->read("model.norm.weight", {}, 0, 1, std::vector<float>(1).data()), Error);
    EXPECT_EQ(load_config_or_shape({dir / path, {"data.seq_len=64"}}).init_from, dir / path);
  }
  // Some or all shards may be missing.
  write_file(dir / "shape/model.safetensors.index.json",
             R"({"weight_map": {"model.embed_tokens.weight": "1.safetensors", "model.norm.weight": "2.safetensors"}})");
  EXPECT_EQ(open_planned_weights(dir / "shape")->model_config(), expected);
  EXPECT_THROW(open_weights(dir / "shape"), InputError);
  SafetensorsWriter shard(dir / "shape/1.safetensors", {{"model.embed_tokens.weight", "F32", {1}, 0, 0}});
  shard.write("\0\0\0", 4);
  shard.commit();
  EXPECT_EQ(open_planned_weights(dir / "shape")->model_config(), expected);
  // Weights that exist are checked.
  write_file(dir / "shape/model.safetensors", "broken");
  EXPECT_THROW(open_planned_weights(dir / "shape"), InputError);
  // A config of Octavo may have this name too.
  write_file(dir / "own/config.json", R"({"model": {"preset": "llama3_1b"}})");
  EXPECT_EQ(load_config_or_shape({dir / "own/config.json", {}}).preset, "llama3_1b");
}

// A run may extend the context of a model. A preset, which was not written for this model, must agree with it.
TEST(WeightSource, TheRopeOfTheConfigReplacesThatOfTheModel) {
  const auto source = open_weights(golden("tied_ropescaled"));
  const ModelConfig of_model = source->model_config();
  const auto adopt = [&](const std::vector<std::string>& overrides) {
    const nlohmann::json json = {{"model", {{"init_from", golden("tied_ropescaled")}}}};
    Config config = config_from_json(json, "test", overrides);
    return std::pair(adopt_initial_model(config, *source), config.model);
  };
  EXPECT_EQ(adopt({}), std::pair(std::vector<std::string>(), of_model));
  EXPECT_EQ(adopt({fmt::format("model.rope_theta={}", of_model.rope_theta)}).first, std::vector<std::string>());
  const auto [notes, model] = adopt({"model.rope_theta=4e6"});
  ASSERT_EQ(notes.size(), 1u);
  expect_mentions(notes[0], {"model.rope_theta is 4000000.0, which replaces ", " of " + golden("tied_ropescaled")});
  EXPECT_EQ(model.rope_theta, 4e6);
  EXPECT_EQ(model.rope_scaling, of_model.rope_scaling);
  const auto [no_scaling_notes, no_scaling] = adopt({"model.rope_scaling=none"});
  expect_mentions(no_scaling_notes.at(0), {"model.rope_scaling is null, which replaces {", "factor"});
  EXPECT_EQ(no_scaling.rope_scaling, std::nullopt);
  expect_mentions(message_of<InputError>([&] { adopt({"model.rms_norm_eps=0.5"}); }), {"rms_norm_eps"});
  expect_mentions(message_of<InputError>([&] { adopt({"model.preset=llama3_8b"}); }), {"expected the same"});
}

TEST(WeightSource, NamesWhatIsNotFinite) {
  const TempDir dir;
  HfDirectory hf(dir, "gqa");
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  const int64_t width = open_weights(golden("gqa"))->model_config().intermediate_size;
  hf.set(name, static_cast<size_t>(3 * width + 2), std::numeric_limits<float>::infinity());
  hf.write();
  expect_mentions(message_of<InputError>([&] { import_hf(hf.path(), dir / "checkpoint"); }),
                  {"model.safetensors: tensor " + name + " is inf at [3, 2], expected finite numbers"});
  EXPECT_FALSE(fs::exists(dir / "checkpoint"));
  std::vector<float> part(4);
  const auto source = open_weights(hf.path());
  EXPECT_THROW(source->read(name, {1, 3}, 5, 9, part.data()), InputError);
}

TEST(WeightSource, NamesWrongTensors) {
  const TempDir dir;
  HfDirectory hf(dir, "gqa");
  hf.drop("model.norm.weight");
  expect_mentions(hf.refusal(), {"has no tensor model.norm.weight"});
  hf.add("model.norm.weight", "F32", {3}, 12);
  expect_mentions(hf.refusal(), {"tensor model.norm.weight is [3], but config.json requires"});
  const int64_t hidden = open_weights(golden("gqa"))->model_config().hidden_size;
  hf.add("model.norm.weight", "I32", {hidden}, static_cast<size_t>(4 * hidden));
  expect_mentions(hf.refusal(), {"model.norm.weight is I32"});
  hf.add("model.norm.weight", "F16", {hidden}, static_cast<size_t>(2 * hidden));
  EXPECT_EQ(hf.refusal(), "");
  hf.add("model.layers.0.self_attn.q_proj.bias", "F32", {3}, 12);
  expect_mentions(hf.refusal(), {"model.layers.0.self_attn.q_proj.bias"});
}

TEST(WeightSource, NamesWrongDirectories) {
  const TempDir dir;
  EXPECT_THROW(open_weights(dir / "nowhere"), InputError);
  fs::create_directories(dir / "empty");
  EXPECT_THROW(open_weights(dir / "empty"), InputError);
  fs::create_directories(dir / "config_only");
  fs::copy_file(golden("gqa/config.json"), dir / "config_only/config.json");
  EXPECT_THROW(open_weights(dir / "config_only"), InputError);
  write_file(dir / "config_only/model.safetensors.index.json",
             R"({"weight_map": {"model.norm.weight": "model-00001-of-00001.safetensors"}})");
  expect_mentions(message_of<InputError>([&] { open_weights(dir / "config_only"); }),
                  {"model-00001-of-00001.safetensors"});
}

TEST(WeightSource, ReadsNoFileOfAnotherDirectory) {
  const TempDir dir;
  HfDirectory hf(dir, "gqa");
  hf.write();
  const std::string weights = hf.path() + "/model.safetensors";
  fs::rename(weights, dir / "secret.safetensors");
  for (const std::string& file : {std::string("../secret.safetensors"), dir / "secret.safetensors"}) {
    write_file(weights + ".index.json", nlohmann::json{{"weight_map", {{"model.norm.weight", file}}}}.dump());
    expect_mentions(message_of<InputError>([&] { open_weights(hf.path()); }),
                    {"the file of tensor model.norm.weight is \"" + file + "\""});
  }
}

TEST(Import, OverwritesOnlyCheckpoints) {
  const TempDir dir;
  import_hf(golden("gqa"), dir / "checkpoint");
  import_hf(golden("tied_ropescaled"), dir / "checkpoint");
  EXPECT_TRUE(Checkpoint(dir / "checkpoint").model_config().tie_word_embeddings);
  fs::create_directories(dir / "empty");
  import_hf(golden("gqa"), dir / "empty");
  EXPECT_EQ(read_all(dir / "empty"), read_all(golden("gqa")));

  std::string manifest = read_whole_file(dir / "checkpoint/manifest.json");
  manifest.replace(manifest.find("imported_from"), 8, "trained_");
  write_file(dir / "checkpoint/manifest.json", manifest);
  const auto import = [&] { import_hf(golden("gqa"), dir / "checkpoint"); };
  expect_mentions(message_of<InputError>(import), {"was not imported, so it is not replaced", "--overwrite"});
  EXPECT_EQ(read_whole_file(dir / "checkpoint/manifest.json"), manifest);
  import_hf(golden("gqa"), dir / "checkpoint", true);
  EXPECT_EQ(read_all(dir / "checkpoint"), read_all(golden("gqa")));
  fs::create_directory_symlink(dir / "checkpoint", dir / "link");
  expect_mentions(message_of<InputError>([&] { import_hf(golden("gqa"), dir / "link"); }), {"is a symbolic link"});

  write_file(dir / "letters/letter.txt", "dear");
  EXPECT_THROW(import_hf(golden("gqa"), dir / "letters"), InputError);
  write_file(dir / "app/manifest.json", R"({"name": "web app"})");
  EXPECT_THROW(import_hf(golden("gqa"), dir / "app"), InputError);
  EXPECT_THROW(import_hf(golden("gqa"), dir / "letters/letter.txt"), InputError);
  EXPECT_EQ(read_whole_file(dir / "letters/letter.txt"), "dear");
  EXPECT_EQ(read_whole_file(dir / "app/manifest.json"), R"({"name": "web app"})");
}

TEST(Export, RefusesADamagedCheckpointAndItsDirectory) {
  const TempDir dir;
  import_hf(golden("gqa"), dir / "checkpoint");
  EXPECT_THROW(export_hf(dir / "checkpoint", dir / "checkpoint"), InputError);
  export_hf(dir / "checkpoint", dir / "exported");
  const Weights before = read_all(dir / "exported");
  const std::string shard = dir / "checkpoint/rank_00000.safetensors";
  std::string damaged = read_whole_file(shard);
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  write_file(shard, damaged);
  EXPECT_THROW(export_hf(dir / "checkpoint", dir / "exported"), InputError);
  EXPECT_EQ(read_all(dir / "exported"), before);
}

TEST(Export, ReplacesAnotherModelWhenToldTo) {
  const TempDir dir;
  import_hf(golden("gqa"), dir / "checkpoint");
  // The foreign files are weights in one or several files, weights in other formats, and a config without weights.
  for (const char* name :
       {"model.safetensors", "model-00001-of-00005.safetensors", "pytorch_model.bin", "consolidated.00.pth",
        "config.json", "tokenizer.json", "README.md", "notes.safetensors.tmp"}) {
    const std::string exported = dir / (std::string("exported_") + name);
    fs::create_directories(exported);
    const std::string foreign = fs::path(exported) / name;
    if (std::string_view(name).ends_with(".safetensors")) {
      fs::copy_file(fs::path(golden("gqa")) / "model.safetensors", foreign);
    } else {
      write_file(foreign, "{}");
    }
    const std::string before = read_whole_file(foreign);
    EXPECT_THROW(export_hf(dir / "checkpoint", exported), InputError) << name;
    EXPECT_EQ(read_whole_file(foreign), before);
    const ExportReport report = export_hf(dir / "checkpoint", exported, {.overwrite = true});
    EXPECT_EQ(report.step, 0);
    EXPECT_EQ(read_all(exported), read_all(golden("gqa")));
  }
}

TEST(Export, MixesAModelWithNothingElse) {
  const TempDir dir;
  import_hf(golden("gqa"), dir / "checkpoint");
  export_hf(dir / "checkpoint", dir / "exported");
  // Files of an export that was killed do not prevent the next one.
  write_file(dir / "exported/model.safetensors.tmp", "half");
  export_hf(dir / "checkpoint", dir / "exported");
  // The refusal names a file or folder of the user. Such a file stays even with --overwrite.
  write_file(dir / "exported/notes/README.md", "mine");
  expect_mentions(message_of<InputError>([&] { export_hf(dir / "checkpoint", dir / "exported"); }),
                  {"exported: holds notes", "--overwrite"});
  export_hf(dir / "checkpoint", dir / "exported", {.overwrite = true});
  EXPECT_EQ(read_whole_file(dir / "exported/notes/README.md"), "mine");
  // An export into the folder of a run or of checkpoints is always refused.
  write_file(dir / "run/metrics.jsonl", "");
  for (const char* target : {"run", "checkpoint"})
    EXPECT_THROW(export_hf(dir / "checkpoint", dir / target, {.overwrite = true}), InputError) << target;
}

// The byte tokenizer is built in, so checkpoints only name it.
TEST(Export, BringsTheByteTokenizerForEveryVocabulary) {
  for (const int64_t vocab_size : {272, 320, 512}) {
    const TempDir dir;
    HfDirectory hf(dir, "gqa");
    nlohmann::json config = read_json_file(hf.path() + "/config.json");
    const auto hidden = config.at("hidden_size").get<int64_t>();
    config["vocab_size"] = vocab_size;
    write_file(hf.path() + "/config.json", config.dump());
    for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"})
      hf.add(name, "F32", {vocab_size, hidden}, static_cast<size_t>(4 * vocab_size * hidden));
    hf.write();
    for (const AttachedFile& file : byte_tokenizer_files()) write_file(hf.path() + "/" + file.name, file.content);
    EXPECT_TRUE(import_hf(hf.path(), dir / "checkpoint").tokenizer);
    const Checkpoint checkpoint(dir / "checkpoint");
    EXPECT_TRUE(checkpoint.files().empty());
    EXPECT_EQ(tokenizer_of_checkpoint(checkpoint).name, "byte");
    EXPECT_EQ(export_hf(dir / "checkpoint", dir / "exported").tokenizer_elsewhere, "");
    EXPECT_EQ(tokenizer_of_directory(dir / "exported").name, "byte") << vocab_size;
  }
}

TEST(Export, NamesTheSpecialTokensWhereTheTokenizerDoesNot) {
  const TempDir dir;
  HfDirectory hf(dir, "gqa");
  hf.write();
  nlohmann::json config = nlohmann::json::parse(read_whole_file(hf.path() + "/config.json"));
  config["bos_token_id"] = 0;
  config["eos_token_id"] = 1;
  write_file(hf.path() + "/config.json", config.dump());
  write_file(hf.path() + "/tokenizer.json", R"({"added_tokens": [{"id": 0, "content": "<s>", "special": true},
      {"id": 1, "content": "</s>", "special": true}], "model": {}})");
  import_hf(hf.path(), dir / "checkpoint");
  export_hf(dir / "checkpoint", dir / "exported");
  config = nlohmann::json::parse(read_whole_file(dir / "exported/tokenizer_config.json"));
  EXPECT_EQ(config["bos_token"], "<s>");
  EXPECT_EQ(config["eos_token"], "</s>");
  EXPECT_EQ(config["pad_token"], "</s>");
}

TEST(Export, LeavesNoTokenizerOfAnEarlierModel) {
  const TempDir dir;
  HfDirectory hf(dir, "gqa");
  hf.write();
  import_hf(hf.path(), dir / "without");
  const std::vector<std::string> names = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                          "chat_template.jinja"};
  for (const std::string& name : names) write_file(hf.path() + "/" + name, "{}");
  import_hf(hf.path(), dir / "with");
  export_hf(dir / "with", dir / "exported");
  for (const std::string& name : names) EXPECT_TRUE(fs::exists(dir / ("exported/" + name))) << name;
  export_hf(dir / "without", dir / "exported");
  for (const std::string& name : names) EXPECT_FALSE(fs::exists(dir / ("exported/" + name))) << name;
  // A tokenizer in a directory without a model belongs to the user.
  fs::create_directories(dir / "new");
  write_file(dir / "new/tokenizer.json", "{}");
  EXPECT_THROW(export_hf(dir / "without", dir / "new"), InputError);
  EXPECT_TRUE(fs::exists(dir / "new/tokenizer.json"));
}

TEST(Export, CopiesNothingFromElsewhere) {
  const TempDir dir;
  import_hf(golden("gqa"), dir / "checkpoint");
  const std::string path = dir / "checkpoint/manifest.json";
  write_file(dir / "key", "secret");
  // Manifests of earlier versions or other programs may name a tokenizer by its path.
  CheckpointManifest manifest = manifest_from_text(read_whole_file(path), path);
  manifest.meta["config"]["data"]["tokenizer"] = dir / "key";
  write_file(path, manifest_to_text(manifest));
  EXPECT_EQ(export_hf(dir / "checkpoint", dir / "exported").tokenizer_elsewhere, dir / "key");
  EXPECT_FALSE(fs::exists(dir / "exported/tokenizer.json"));

  // The export copies only attached files that belong to a tokenizer, and it does not follow links.
  manifest.files = {write_attached_file(dir / "checkpoint", {"notes.txt", "mine"})};
  write_file(path, manifest_to_text(manifest));
  export_hf(dir / "checkpoint", dir / "exported");
  EXPECT_FALSE(fs::exists(dir / "exported/notes.txt"));
  manifest.files = {write_attached_file(dir / "checkpoint", {"tokenizer.json", "secret"})};
  write_file(path, manifest_to_text(manifest));
  fs::remove(dir / "checkpoint/tokenizer.json");
  fs::create_symlink(dir / "key", dir / "checkpoint/tokenizer.json");
  EXPECT_THROW(export_hf(dir / "checkpoint", dir / "exported"), InputError);
  EXPECT_FALSE(fs::exists(dir / "exported/tokenizer.json"));
}

// The files of a model, from which runs begin.
class ExportOfARun : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    TokenFileWriter writer((dir_ / "small_tokens").string(), TokenDtype::kU16);
    std::vector<int32_t> tokens(600);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * i % 100);
    writer.add_document(tokens);
    writer.finish();
    fs::copy(golden("gqa"), dir_ / "model");
    nlohmann::json config = read_json_file((dir_ / "model/config.json").string());
    config.update({{"architectures", {"LlamaForCausalLM"}},
                   {"bos_token_id", 7},
                   {"eos_token_id", {2, 0}},
                   {"pad_token_id", 3},
                   {"max_position_embeddings", 131072},
                   {"torch_dtype", "float32"},
                   {"rope_theta", 500000.0},
                   {"_name_or_path", "x/llama"},
                   {"is_causal", true},
                   {"a_key_of_another_program", {{"nested", {1, 2.5, "text"}}}}});
    write_file((dir_ / "model/config.json").string(), config.dump());
    write_file((dir_ / "model/generation_config.json").string(), kGeneration);
    for (const std::string& name : kTokenizerFiles) write_file((dir_ / "model" / name).string(), tokenizer_file(name));
  }

  // Takes a step from `init_from` and returns the path of the run's checkpoints.
  std::string step_from(const std::string& init_from, const std::string& name,
                        const std::vector<std::string>& overrides = {}) const {
    Config config = load(fmt::format("model: {{init_from: {0}}}\n"
                                     "data: {{train: [{1}/small_tokens], seq_len: 32, bos_id: null, eos_id: 0}}\n"
                                     "training: {{steps: 2, global_batch_size: 2}}\n"
                                     "checkpoint: {{dir: {1}/{2}}}\n"
                                     "device: cpu\n",
                                     init_from, dir_.string(), name),
                         overrides);
    adopt_initial_model(config, *open_weights(init_from));
    RunProcess process(config);
    SteppedJob job(process, process.session.find_start());
    job.take_step();
    job.save();
    return config.checkpoint.dir;
  }

  nlohmann::json exported(const std::string& model, const char* file = "config.json") const {
    export_hf(model, (dir_ / "exported").string());
    return read_json_file((dir_ / "exported" / file).string());
  }

  static std::string tokenizer_file(const std::string& name) { return nlohmann::json{{"file", name}}.dump(); }

  static constexpr const char* kGeneration = R"({"eos_token_id": [2, 5], "temperature": 0.6, "do_sample": true})";
  const std::vector<std::string> kTokenizerFiles{"tokenizer.json",  "tokenizer_config.json", "special_tokens_map.json",
                                                 "tokenizer.model", "added_tokens.json",     "chat_template.jinja"};
};

// Whatever path a model takes through Octavo, all keys of its files are exported again.
TEST_F(ExportOfARun, KeepsTheFilesOfTheModel) {
  const nlohmann::json config = read_json_file((dir_ / "model/config.json").string());
  const std::string imported = (dir_ / "imported").string();
  import_hf((dir_ / "model").string(), imported);
  const std::string run = step_from((dir_ / "model").string(), "run");
  fs::remove_all(dir_ / "model");
  const std::string of_imported = step_from(imported, "of_imported");
  const std::string of_run = step_from(run, "of_run");
  step_from(run, "of_run");  // Resumes this run.
  EXPECT_EQ(Checkpoint(of_run).step(), 2);
  for (const std::string& model : {imported, run, of_imported, of_run}) {
    EXPECT_EQ(exported(model), config) << model;
    EXPECT_EQ(exported(model, "generation_config.json"), nlohmann::json::parse(kGeneration)) << model;
  }
  fs::rename(imported, dir_ / "moved");
  exported((dir_ / "moved").string());
  for (const std::string& name : kTokenizerFiles)
    EXPECT_EQ(read_whole_file((dir_ / "exported" / name).string()), tokenizer_file(name));
}

TEST_F(ExportOfARun, ChangesWhatTrainingChanged) {
  nlohmann::json expected = read_json_file((dir_ / "model/config.json").string());
  const std::string run = step_from((dir_ / "model").string(), "run", {"data.eos_id=9", "model.rope_theta=4e6"});
  expected.update({{"eos_token_id", 9}, {"rope_theta", 4e6}, {"rope_scaling", nullptr}});
  expected["rope_parameters"]["rope_theta"] = 4e6;
  EXPECT_EQ(exported(run), expected);
  EXPECT_EQ(exported(run, "generation_config.json").at("eos_token_id"), 9);
}

TEST(Import, RefusesWhatIsNoDirectoryAndAPathOfInvalidUtf8) {
  const TempDir dir;
  HfDirectory hf(dir, "gqa");
  hf.write();
  const std::string path = dir / "caf\xe9";
  fs::rename(hf.path(), path);
  for (const std::string& wrong : {path, dir / "nowhere"})
    EXPECT_THROW(import_hf(wrong, dir / "checkpoint"), InputError);
  EXPECT_FALSE(fs::exists(dir / "checkpoint"));
}

}  // namespace
}  // namespace octavo
