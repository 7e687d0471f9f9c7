#include "checkpoint/weight_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "checkpoint/tensor_slice.h"
#include "core/error.h"
#include "core/files/checksum.h"
#include "core/files/file_identity.h"
#include "core/files/input_file.h"
#include "core/files/json_input.h"
#include "model/parameters/parameters.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kWeightsName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kEmbeddingName = "model.embed_tokens.weight";
constexpr const char* kHeadName = "lm_head.weight";

}  // namespace

HfWeights::HfWeights(const fs::path& dir, bool needs_files) : dir_(dir) {
  const std::string path = (dir / kHfConfigName).string();
  const Json config = read_json_file(path);
  config_ = parse_hf_config(config, path);
  if (const std::vector<std::string> ignored = ignored_hf_keys(config); !ignored.empty()) {
    notes_.push_back(fmt::format("{}: Octavo ignores {}, so the model is computed without {}", path,
                                 fmt::join(ignored, ", "), ignored.size() == 1 ? "it" : "them"));
  }
  hugging_face_ = {{kHfConfigName, config}};
  if (const std::string generation = (dir / kGenerationConfigName).string(); path_exists(generation)) {
    Json& read = hugging_face_[kGenerationConfigName] = read_json_file(generation);
    CHECK_INPUT(read.is_object(), "{}: is not a JSON object", generation);
  }
  try {
    open_files();
  } catch (const UnreadableFile&) {
    if (needs_files) throw;
    tensors_.clear();
    files_.clear();
    return;
  }
  untie_other_head();
  check_tensors();
}

void HfWeights::read(const std::string& name, ColumnRange columns, int64_t begin, int64_t end, float* out) {
  const auto found = tensors_.find(name);
  CHECK(found != tensors_.end(), "{}: has no tensor {}", dir_.string(), name);
  const SafetensorsFile& file = *found->second.file;
  const SafetensorsEntry& entry = *found->second.entry;
  const std::string where = fmt::format("{}: tensor {}", file.path(), entry.name);
  const TensorSlice stored = checked_slice(where, entry.shape, {}, 0, entry.numel());
  const TensorSlice wanted = checked_slice(where, entry.shape, columns, begin, end);
  for_each_run(stored, wanted,
               [&](int64_t from, int64_t to, int64_t count) { file.read(entry, from, from + count, out + to); });
  check_finite(where, entry.shape, columns, begin, Tensor(out, DType::kFloat32, {end - begin}));
}

// Identifies the model by config.json, generation_config.json and samples of each file of weights, including its
// header.
std::string HfWeights::identity() const {
  std::string files = hugging_face_.dump() + "\n";
  for (const SafetensorsFile& file : files_) files += sampled_file_identity(file.path()) + "\n";
  return fmt::format("{}, {} files of weights, xxh3 {}", file_identity((dir_ / kHfConfigName).string()), files_.size(),
                     checksum_hex(files.data(), static_cast<int64_t>(files.size())));
}

void HfWeights::open_files() {
  if (path_exists(dir_ / kWeightsName)) {
    const SafetensorsFile& file = files_.emplace_back((dir_ / kWeightsName).string());
    for (const auto& [name, entry] : file.entries()) add(file, entry);
    return;
  }
  CHECK_AS(UnreadableFile, path_exists(dir_ / kIndexName), "{}: has neither {} nor {}", dir_.string(), kWeightsName,
           kIndexName);
  open_sharded();
}

void HfWeights::open_sharded() {
  const std::string index_path = (dir_ / kIndexName).string();
  const Json index = read_json_file(index_path);
  CHECK_INPUT(index.is_object() && index.value("weight_map", Json()).is_object(), "{}: has no weight_map", index_path);
  std::map<std::string, const SafetensorsFile*> opened;
  for (const auto& [name, value] : index.at("weight_map").items()) {
    CHECK_INPUT(value.is_string(), "{}: the file of tensor {} is {}, expected a string", index_path, name,
                value.dump());
    const auto file_name = value.get<std::string>();
    CHECK_INPUT(is_plain_file_name(file_name),
                "{}: the file of tensor {} is {}, expected the name of a file in this directory", index_path, name,
                value.dump());
    const SafetensorsFile*& file = opened[file_name];
    if (file == nullptr) file = &files_.emplace_back(path_inside(dir_.string(), file_name));
    const SafetensorsEntry* entry = file->find(name);
    CHECK_INPUT(entry != nullptr, "{}: has no tensor {}, which {} names", file->path(), name, index_path);
    add(*file, *entry);
  }
}

void HfWeights::add(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  const std::string first = entry.name.substr(0, entry.name.find('.'));
  const bool lacks_prefix = first == "embed_tokens" || first == "layers" || first == "norm" || first == "rotary_emb";
  const auto [found, is_new] = tensors_.try_emplace((lacks_prefix ? "model." : "") + entry.name, Stored{&file, &entry});
  CHECK_INPUT(is_new, "{}: has the tensors {} and {}, expected one of them", dir_.string(), found->second.entry->name,
              entry.name);
}

// Handles a tied config with a separate head. If the head has other values than the embedding, the model is not tied.
void HfWeights::untie_other_head() {
  if (!config_.tie_word_embeddings || !tensors_.contains(kHeadName)) return;
  if (!tensors_.contains(kEmbeddingName)) {
    tensors_[kEmbeddingName] = tensors_.at(kHeadName);
    return;
  }
  for (const char* name : {kEmbeddingName, kHeadName}) check_shape(name, {config_.vocab_size, config_.hidden_size});
  constexpr int64_t kStretch = 1 << 16;
  const int64_t numel = config_.vocab_size * config_.hidden_size;
  std::vector<float> embedding(kStretch), head(kStretch);
  for (int64_t begin = 0; begin < numel; begin += kStretch) {
    const int64_t end = std::min(begin + kStretch, numel);
    read(kEmbeddingName, {}, begin, end, embedding.data());
    read(kHeadName, {}, begin, end, head.data());
    if (std::equal(head.begin(), head.begin() + (end - begin), embedding.begin())) continue;
    config_.tie_word_embeddings = false;
    notes_.push_back(
        fmt::format("{}: {} has tie_word_embeddings true, but {} differs from {}, so the model is not tied",
                    dir_.string(), kHfConfigName, kHeadName, kEmbeddingName));
    return;
  }
}

void HfWeights::check_tensors() const {
  CHECK_INPUT(config_.num_layers <= static_cast<int64_t>(tensors_.size()),
              "{}: has {} tensors, too few for the {} layers in config.json", dir_.string(), tensors_.size(),
              config_.num_layers);
  const ParameterLayout layout(config_);
  std::set<std::string> expected;
  for (const ParameterSpec& spec : layout.specs()) {
    expected.insert(spec.name);
    check_shape(spec.name, spec.shape);
  }
  for (const auto& [name, stored] : tensors_) {
    if (expected.contains(name) || name.ends_with(".rotary_emb.inv_freq")) continue;
    CHECK_INPUT(name == kHeadName && config_.tie_word_embeddings,
                "{}: has the tensor {}, which this model does not have", stored.file->path(), stored.entry->name);
    check_shape(name, {config_.vocab_size, config_.hidden_size});
  }
}

void HfWeights::check_shape(const std::string& name, const std::vector<int64_t>& shape) const {
  const auto found = tensors_.find(name);
  CHECK_INPUT(found != tensors_.end(), "{}: has no tensor {}, expected one of shape {}", dir_.string(), name,
              describe_shape(shape));
  const SafetensorsEntry& entry = *found->second.entry;
  const std::string& path = found->second.file->path();
  CHECK_INPUT(entry.shape == shape, "{}: tensor {} is {}, but config.json requires {}", path, entry.name,
              describe_shape(entry.shape), describe_shape(shape));
  const std::set<std::string> floats{"F64", "F32", "F16", "BF16"};
  CHECK_INPUT(floats.contains(entry.dtype), "{}: tensor {} is {}, expected F32, BF16, F16 or F64", path, entry.name,
              entry.dtype);
}

CheckpointWeights::CheckpointWeights(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {
  const ParameterLayout layout(checkpoint_.model_config());
  for (const ParameterSpec& spec : layout.specs()) {
    const CheckpointTensorInfo* tensor = checkpoint_.find(spec.name);
    CHECK_INPUT(tensor != nullptr, "{}: has no tensor {}", checkpoint_.path().string(), spec.name);
    CHECK_INPUT(tensor->shape == spec.shape, "{}: tensor {} is {}, but its model requires {}",
                checkpoint_.path().string(), spec.name, describe_shape(tensor->shape), describe_shape(spec.shape));
  }
}

Json CheckpointWeights::hugging_face() const {
  const HfMetadata metadata = hf_metadata_of(checkpoint_.meta(), checkpoint_.step());
  return {{kHfConfigName, make_hf_config(model_config(), metadata, DType::kFloat32)},
          {kGenerationConfigName, make_generation_config(metadata)}};
}

void CheckpointWeights::read(const std::string& name, ColumnRange columns, int64_t begin, int64_t end, float* out) {
  checkpoint_.read(name, columns, begin, end, out);
}

}  // namespace octavo
