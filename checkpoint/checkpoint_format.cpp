#include "checkpoint/checkpoint_format.h"

#include <algorithm>
#include <limits>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_slice.h"
#include "core/checksum.h"
#include "core/error.h"
#include "core/input_file.h"
#include "core/json_input.h"
#include "model/model_fields.h"

namespace octavo {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormatName = "octavo checkpoint";
constexpr int kFormatVersion = 1;

DType dtype_from_name(const std::string& name) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt32, DType::kUInt8, DType::kFloat8E4M3}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  throw InputError(fmt::format("unknown dtype {}", name));
}

Json shards_to_json(const std::vector<CheckpointShard>& shards) {
  Json json = Json::array();
  for (const CheckpointShard& shard : shards) {
    json.push_back({{"file", shard.file}, {"bytes", shard.bytes}, {"header_xxh3", shard.header_checksum}});
  }
  return json;
}

Json piece_to_json(const CheckpointPiece& piece) {
  Json json = {
      {"file", piece.file}, {"key", piece.key}, {"begin", piece.begin}, {"end", piece.end}, {"xxh3", piece.checksum}};
  if (!piece.columns.none()) json["columns"] = {piece.columns.begin, piece.columns.end};
  return json;
}

Json tensors_to_json(const std::vector<CheckpointTensorInfo>& tensors) {
  Json json = Json::array();
  for (const CheckpointTensorInfo& tensor : tensors) {
    Json pieces = Json::array();
    for (const CheckpointPiece& piece : tensor.pieces) pieces.push_back(piece_to_json(piece));
    json.push_back({{"name", tensor.name},
                    {"shape", tensor.shape},
                    {"dtype", dtype_name(tensor.dtype)},
                    {"pieces", std::move(pieces)}});
  }
  return json;
}

void check_plain_name(const char* what, const std::string& name) {
  CHECK_INPUT(is_plain_file_name(name), "{} '{}' is not a plain file name", what, name);
}

Json files_to_json(const std::vector<CarriedFileInfo>& files) {
  Json json = Json::array();
  for (const CarriedFileInfo& file : files) {
    json.push_back({{"file", file.name}, {"bytes", file.bytes}, {"xxh3", file.checksum}});
  }
  return json;
}

CarriedFileInfo file_from_json(const Json& json) {
  CarriedFileInfo file{.name = json.at("file"), .checksum = json.at("xxh3")};
  file.bytes = integer_at(json, "bytes", "file " + file.name);
  check_plain_name("file", file.name);
  return file;
}

CheckpointShard shard_from_json(const Json& json) {
  CheckpointShard shard;
  json.at("file").get_to(shard.file);
  shard.bytes = integer_at(json, "bytes", "shard " + shard.file);
  json.at("header_xxh3").get_to(shard.header_checksum);
  check_plain_name("shard", shard.file);
  return shard;
}

CheckpointPiece piece_from_json(const Json& json) {
  CheckpointPiece piece{.file = json.at("file"), .key = json.at("key"), .checksum = json.at("xxh3")};
  piece.begin = integer_at(json, "begin", "piece " + piece.key);
  piece.end = integer_at(json, "end", "piece " + piece.key);
  if (const auto columns = json.find("columns"); columns != json.end()) {
    CHECK(columns->is_array() && columns->size() == 2, "the columns of {} are {}, expected their begin and end",
          piece.key, columns->dump());
    const std::string name = "a column of piece " + piece.key;
    piece.columns = {as_integer(columns->at(0), name), as_integer(columns->at(1), name)};
    CHECK(!piece.columns.none(), "the columns of {} are {}, expected some", piece.key, columns->dump());
  }
  return piece;
}

// Sizes whose product, in bytes, fits 64 bits.
std::vector<int64_t> shape_from_json(const Json& json, const std::string& tensor) {
  CHECK(json.is_array(), "the shape of tensor {} is {}, expected a list", tensor, json.dump());
  std::vector<int64_t> shape;
  int64_t numel = 1;
  for (const Json& size : json) {
    shape.push_back(as_integer(size, "the shape of tensor " + tensor));
    CHECK(!__builtin_mul_overflow(numel, shape.back(), &numel) && numel <= kMaxParameters,
          "tensor {} has the shape {}, expected at most {} elements", tensor, json.dump(), kMaxParameters);
  }
  return shape;
}

CheckpointTensorInfo tensor_from_json(const Json& json) {
  CheckpointTensorInfo tensor;
  json.at("name").get_to(tensor.name);
  tensor.shape = shape_from_json(json.at("shape"), tensor.name);
  tensor.dtype = dtype_from_name(json.at("dtype").get<std::string>());
  for (const Json& piece : json.at("pieces")) tensor.pieces.push_back(piece_from_json(piece));
  return tensor;
}

// By columns, then elements.
void sort_pieces(CheckpointTensorInfo& tensor) {
  for (CheckpointPiece& piece : tensor.pieces) {
    check_columns("tensor " + tensor.name, tensor.shape, piece.columns);
    piece.columns = normalized_columns(tensor.shape, piece.columns);
  }
  std::sort(tensor.pieces.begin(), tensor.pieces.end(), [](const CheckpointPiece& a, const CheckpointPiece& b) {
    return std::tie(a.columns.begin, a.columns.end, a.begin) < std::tie(b.columns.begin, b.columns.end, b.begin);
  });
}

// `pieces`: those of `columns`, in order.
void check_elements(const CheckpointTensorInfo& tensor, ColumnRange columns, std::span<const CheckpointPiece> pieces) {
  int64_t next = 0;
  for (const CheckpointPiece& piece : pieces) {
    CHECK(piece.begin == next && piece.end > next,
          "tensor {} {}: a piece holds elements {} to {}, expected one from {}", tensor.name,
          describe_slice(tensor.shape, columns), piece.begin, piece.end, next);
    next = piece.end;
  }
  const int64_t numel = slice_numel(tensor.shape, columns);
  CHECK(next == numel, "tensor {} {}: its pieces end at element {} of {}", tensor.name,
        describe_slice(tensor.shape, columns), next, numel);
}

// `pieces` in order: those of each range of columns are next to each other, and the ranges go through all columns once.
void check_tensor(const CheckpointTensorInfo& tensor) {
  const std::vector<CheckpointPiece>& pieces = tensor.pieces;
  if (pieces.empty() || pieces.back().columns.none()) return check_elements(tensor, {}, pieces);
  int64_t next = 0;
  for (auto first = pieces.begin(); first != pieces.end();) {
    const ColumnRange columns = first->columns;
    const auto last = std::find_if(first, pieces.end(), [&](const auto& piece) { return piece.columns != columns; });
    CHECK(columns.begin == next, "tensor {} {}: a piece holds columns {} to {}, expected one from column {}",
          tensor.name, describe_shape(tensor.shape), columns.begin, columns.end, next);
    check_elements(tensor, columns, {first, last});
    next = columns.none() ? tensor.shape[1] : columns.end;
    first = last;
  }
  CHECK(next == tensor.shape[1], "tensor {} {}: its pieces end at column {} of {}", tensor.name,
        describe_shape(tensor.shape), next, tensor.shape[1]);
}

Json meta_from_json(const Json& json) {
  if (json.is_null()) return Json::object();
  CHECK(json.is_object(), "meta is {}, expected an object", json.dump());
  if (json.contains("tokens")) integer_at(json, "tokens", "meta");
  return json;
}

// Readers lay out all parameters of the model, so it must not claim more of them than there are.
void check_layers(const CheckpointManifest& manifest) {
  const auto tensors = static_cast<int64_t>(manifest.tensors.size());
  CHECK(manifest.model.num_layers <= tensors, "its model has {} layers, but it lists {} tensors",
        manifest.model.num_layers, tensors);
}

// The members of a shape or a rope scaling. One with a default may be missing: a checkpoint may be older than the
// field.
template <typename Struct>
void read_fields(const Json& json, const char* where, Struct& fields) {
  for_each_field(fields, [&](const auto& field, auto& value) {
    using Value = std::decay_t<decltype(value)>;
    CHECK_INPUT(json.is_object() && (json.contains(field.name) || field.presence == Presence::kDefault),
                "{}: has no {}", where, field.name);
    if (!json.contains(field.name)) return;
    if constexpr (std::is_same_v<Value, int64_t>) {
      value = integer_at(json, field.name, where);
    } else if constexpr (std::is_same_v<Value, std::optional<RopeScaling>>) {
      if (!json.at(field.name).is_null()) read_fields(json.at(field.name), field.name, value.emplace());
    } else {
      json.at(field.name).get_to(value);
    }
  });
}

std::string checksum_of(const Json& json) {
  const std::string text = json.dump();
  return checksum_hex(text.data(), static_cast<int64_t>(text.size()));
}

}  // namespace

int64_t CheckpointTensorInfo::numel() const { return slice_numel(shape, {}); }

std::string step_directory_name(int64_t step) { return fmt::format("step_{:08d}", step); }

std::string shard_name(int rank) { return fmt::format("rank_{:05d}.safetensors", rank); }

Json model_config_to_json(const ModelConfig& config) { return shape_to_json<Json>(config); }

ModelConfig model_config_from_json(const Json& json) {
  ModelConfig config;
  read_fields(json, "model", config);
  config.validate();
  return config;
}

void check_same_model(const ModelConfig& checkpoint, const ModelConfig& run, const std::string& checkpoint_path) {
  const Json ours = model_config_to_json(run);
  for_each_field(checkpoint, [&](const auto& field, const auto& value) {
    const Json theirs = shape_to_json<Json>(value);
    CHECK_INPUT(theirs == ours.at(field.name),
                "{}: a checkpoint of another model: its {} is {}, this run's model.{} is {}", checkpoint_path,
                field.name, theirs.dump(), field.name, ours.at(field.name).dump());
  });
}

Json manifest_part_to_json(const CheckpointManifest& part) {
  return {{"shards", shards_to_json(part.shards)}, {"tensors", tensors_to_json(part.tensors)}};
}

void merge_manifest_part(CheckpointManifest& manifest, const Json& part) {
  for (const Json& shard : part.at("shards")) manifest.shards.push_back(shard_from_json(shard));
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < manifest.tensors.size(); ++i) index.emplace(manifest.tensors[i].name, i);
  for (const Json& json : part.at("tensors")) {
    CheckpointTensorInfo added = tensor_from_json(json);
    const auto [position, fresh] = index.emplace(added.name, manifest.tensors.size());
    if (fresh) {
      manifest.tensors.push_back(std::move(added));
      continue;
    }
    CheckpointTensorInfo& tensor = manifest.tensors[position->second];
    CHECK(tensor.shape == added.shape && tensor.dtype == added.dtype,
          "tensor {} is {} {} on one rank and {} {} on another", tensor.name, dtype_name(tensor.dtype),
          describe_shape(tensor.shape), dtype_name(added.dtype), describe_shape(added.shape));
    tensor.pieces.insert(tensor.pieces.end(), added.pieces.begin(), added.pieces.end());
  }
}

void check_coverage(CheckpointManifest& manifest) {
  for (CheckpointTensorInfo& tensor : manifest.tensors) {
    sort_pieces(tensor);
    check_tensor(tensor);
  }
}

Json manifest_to_json(const CheckpointManifest& manifest) {
  Json json = manifest_part_to_json(manifest);
  json["format"] = kFormatName;
  json["version"] = kFormatVersion;
  json["step"] = manifest.step;
  json["model"] = model_config_to_json(manifest.model);
  json["mesh"] = {{"ranks", manifest.ranks}};
  json["meta"] = manifest.meta;
  if (!manifest.files.empty()) json["files"] = files_to_json(manifest.files);
  json["xxh3"] = checksum_of(json);
  return json;
}

bool is_checkpoint_manifest(const Json& json) {
  return json.is_object() && json.value("format", Json()) == kFormatName;
}

CheckpointManifest manifest_from_json(const Json& json, const std::string& path) {
  const auto check_intact = [&](bool intact, const std::string& what) {
    if (!intact) throw DamagedCheckpoint(fmt::format("{}: {}", path, what));
  };
  check_intact(is_checkpoint_manifest(json), "is not the manifest of an octavo checkpoint");
  Json content = json;
  content.erase("xxh3");
  const std::string checksum = checksum_of(content);
  const bool intact = json.value("xxh3", Json()) == checksum;
  CHECK_INPUT(!intact || json.value("version", Json()) == kFormatVersion,
              "{}: has format version {}, this octavo reads version {}", path, json.value("version", Json()).dump(),
              kFormatVersion);
  check_intact(intact, fmt::format("is damaged: its checksum is {}, its contents give \"{}\"",
                                   json.value("xxh3", Json()).dump(), checksum));
  CheckpointManifest manifest;
  manifest.checksum = checksum;
  const auto invalid = [&](const std::string& reason) {
    return InputError(fmt::format("{}: is not a valid manifest: {}", path, reason));
  };
  try {
    manifest.step = integer_at(json, "step", "the manifest");
    manifest.ranks = static_cast<int>(integer_at(json.at("mesh"), "ranks", "mesh", 1, std::numeric_limits<int>::max()));
    manifest.meta = meta_from_json(json.at("meta"));
    for (const Json& file : json.value("files", Json::array())) manifest.files.push_back(file_from_json(file));
    merge_manifest_part(manifest, json);
    check_coverage(manifest);
    manifest.model = model_config_from_json(json.at("model"));
    check_layers(manifest);
  } catch (const Json::exception& error) {
    throw invalid(reason_of(error));
  } catch (const Error& error) {
    throw invalid(error.what());
  }
  return manifest;
}

}  // namespace octavo
