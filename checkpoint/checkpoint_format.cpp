#include "checkpoint/checkpoint_format.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <limits>
#include <span>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "checkpoint/tensor_slice.h"
#include "core/files/checksum.h"
#include "core/files/input_file.h"
#include "core/files/json_input.h"
#include "model/architecture/model_fields.h"

namespace octavo {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormatName = "octavo checkpoint";
constexpr int kFormatVersion = 1;
constexpr const char* kTensorsKey = "tensors";
constexpr const char* kChecksumKey = "xxh3";
constexpr const char* kHeaderChecksumKey = "header_xxh3";

DType dtype_from_name(const std::string& name) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt32, DType::kUInt8, DType::kFloat8E4M3}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  throw InputError(fmt::format("unknown dtype {}", name));
}

// Converts a list of files whose checksums have the key `checksum`.
Json files_to_json(const std::vector<ListedFile>& files, const char* checksum) {
  Json json = Json::array();
  for (const ListedFile& file : files) {
    json.push_back({{"file", file.name}, {"bytes", file.bytes}, {checksum, file.checksum}});
  }
  return json;
}

// Reads a list that files_to_json() wrote. `what` names one of the files in messages.
std::vector<ListedFile> files_from_json(const Json& list, const char* what, const char* checksum) {
  std::vector<ListedFile> files;
  for (const Json& json : list) {
    ListedFile& file = files.emplace_back(ListedFile{.name = json.at("file"), .checksum = json.at(checksum)});
    file.bytes = integer_at(json, "bytes", fmt::format("{} {}", what, file.name));
    CHECK_INPUT(is_plain_file_name(file.name), "{} '{}' is not a plain file name", what, file.name);
  }
  return files;
}

Json piece_to_json(const CheckpointPiece& piece) {
  Json json = {
      {"file", piece.file}, {"key", piece.key}, {"begin", piece.begin}, {"end", piece.end}, {"xxh3", piece.checksum}};
  if (!piece.columns.none()) json["columns"] = {piece.columns.begin, piece.columns.end};
  return json;
}

Json tensor_to_json(const CheckpointTensorInfo& tensor) {
  Json pieces = Json::array();
  for (const CheckpointPiece& piece : tensor.pieces) pieces.push_back(piece_to_json(piece));
  return {{"name", tensor.name},
          {"shape", tensor.shape},
          {"dtype", dtype_name(tensor.dtype)},
          {"pieces", std::move(pieces)}};
}

CheckpointPiece piece_from_json(const Json& json) {
  CheckpointPiece piece{.file = json.at("file"), .key = json.at("key"), .checksum = json.at("xxh3")};
  piece.begin = integer_at(json, "begin", "piece " + piece.key);
  piece.end = integer_at(json, "end", "piece " + piece.key);
  if (const auto columns = json.find("columns"); columns != json.end()) {
    CHECK(columns->is_array() && columns->size() == 2,
          "the columns of {} are {}, expected a list of their begin and end", piece.key, columns->dump());
    const std::string name = "a column of piece " + piece.key;
    piece.columns = {as_integer(columns->at(0), name), as_integer(columns->at(1), name)};
    CHECK(!piece.columns.none(), "the columns of {} are {}, expected at least one", piece.key, columns->dump());
  }
  return piece;
}

// Returns the shape in `json`. Throws if it has more than kMaxParameters elements, so that its bytes fit in 64 bits.
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

// Sorts the pieces of a tensor by columns, then by elements. Pieces of all columns get empty `columns`.
void sort_pieces(CheckpointTensorInfo& tensor) {
  for (CheckpointPiece& piece : tensor.pieces) {
    check_columns("tensor " + tensor.name, tensor.shape, piece.columns);
    piece.columns = normalized_columns(tensor.shape, piece.columns);
  }
  std::ranges::sort(tensor.pieces, {}, [](const CheckpointPiece& piece) {
    return std::tuple(piece.columns.begin, piece.columns.end, piece.begin);
  });
}

// Checks that the sorted pieces of one range of columns contain each of its elements once.
void check_elements(const CheckpointTensorInfo& tensor, ColumnRange columns, std::span<const CheckpointPiece> pieces) {
  int64_t next = 0;
  for (const CheckpointPiece& piece : pieces) {
    CHECK(piece.begin == next && piece.end > next,
          "tensor {} {}: a piece holds elements {} to {}, expected a piece that begins at {}", tensor.name,
          describe_slice(tensor.shape, columns), piece.begin, piece.end, next);
    next = piece.end;
  }
  const int64_t numel = slice_numel(tensor.shape, columns);
  CHECK(next == numel, "tensor {} {}: its pieces end at element {} of {}", tensor.name,
        describe_slice(tensor.shape, columns), next, numel);
}

// Checks that pieces of each range of columns are adjacent, and that the ranges cover all columns once.
void check_tensor(const CheckpointTensorInfo& tensor) {
  const std::vector<CheckpointPiece>& pieces = tensor.pieces;
  if (pieces.empty() || pieces.back().columns.none()) return check_elements(tensor, {}, pieces);
  int64_t next = 0;
  for (auto first = pieces.begin(); first != pieces.end();) {
    const ColumnRange columns = first->columns;
    const auto last = std::find_if(first, pieces.end(), [&](const auto& piece) { return piece.columns != columns; });
    CHECK(columns.begin == next,
          "tensor {} {}: a piece holds columns {} to {}, expected a piece that begins at column {}", tensor.name,
          describe_shape(tensor.shape), columns.begin, columns.end, next);
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
  for (const char* key : {"tokens", "bfloat16_until"}) {
    if (json.contains(key)) integer_at(json, key, "meta");
  }
  return json;
}

// Reads the members of a shape or a rope scaling. A member with a default may be missing, because a checkpoint may be
// older than the member.
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

// Writes the JSON of a manifest, member by member in the order of the keys, and computes its checksum without white
// space.
class ManifestText {
 public:
  // `keeps` says whether the text is wanted in addition to its checksum.
  explicit ManifestText(bool keeps) : keeps_(keeps) {}

  void add_members(const Json& members) {
    for (const auto& [key, value] : members.items()) add_member(key, value.dump());
  }
  void begin_tensors() { add_member(kTensorsKey, "["); }
  void add_tensor(const Json& tensor) {
    add(first_tensor_ ? "" : ",");
    add_space('\n');
    add(tensor.dump());
    first_tensor_ = false;
  }
  void end_tensors() { add("]"); }

  // Returns the checksum of everything that was added.
  std::string checksum() {
    add_to_checksum("}");
    return checksum_.hex();
  }
  // Returns the text with its checksum.
  std::string finish() {
    const std::string sum = checksum();
    add_space('\n');
    return std::move(text_) + fmt::format(R"(,"xxh3": "{}"}})", sum) + "\n";
  }

 private:
  void add_member(const std::string& key, const std::string& value) {
    add(first_member_ ? "{" : ",");
    add_space('\n');
    add(Json(key).dump());
    add(":");
    add_space(' ');
    add(value);
    first_member_ = false;
  }
  void add(std::string_view part) {
    add_to_checksum(part);
    if (keeps_) text_ += part;
  }
  void add_space(char space) {
    if (keeps_) text_ += space;
  }
  void add_to_checksum(std::string_view part) { checksum_.add(part.data(), std::ssize(part)); }

  bool keeps_;
  bool first_member_ = true;
  bool first_tensor_ = true;
  std::string text_;
  Checksum checksum_;
};

Json members_before_tensors(const CheckpointManifest& manifest) {
  Json json = {{"format", kFormatName},
               {"step", manifest.step},
               {"model", model_config_to_json(manifest.model)},
               {"mesh", {{"ranks", manifest.ranks}}},
               {"meta", manifest.meta},
               {"shards", files_to_json(manifest.shards, kHeaderChecksumKey)}};
  if (!manifest.files.empty()) json["files"] = files_to_json(manifest.files, kChecksumKey);
  return json;
}

bool begins_tensors(int depth, Json::parse_event_t event, const Json& parsed) {
  return depth == 1 && event == Json::parse_event_t::key && parsed == kTensorsKey;
}

// Parses everything except the tensors. Their list is empty in the result.
Json parse_without_tensors(std::string_view text, const std::string& path) {
  bool has_tensors = false;
  const auto leave_out = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    const bool begins = begins_tensors(depth, event, parsed);
    has_tensors |= begins;
    return !begins;
  };
  try {
    Json json = parse_json(text, path, leave_out);
    if (has_tensors && json.is_object()) json[kTensorsKey] = Json::array();
    return json;
  } catch (const InputError& error) {
    throw DamagedCheckpoint(error.what());
  }
}

struct TensorsRead {
  std::string checksum;      // Checksum of the manifest.
  std::exception_ptr error;  // Error in the tensors, to be thrown if the checksum is right.
};

// Parses the tensors into `manifest`, one at a time. `rest` is the manifest without them.
TensorsRead read_tensors(std::string_view text, const std::string& path, const Json& rest,
                         CheckpointManifest& manifest) {
  Json before = Json::object(), behind = Json::object();
  for (const auto& [key, value] : rest.items()) {
    if (key != kTensorsKey && key != "xxh3") (key < kTensorsKey ? before : behind)[key] = value;
  }
  TensorsRead read;
  ManifestText canonical(false);
  ManifestParts parts(manifest);
  canonical.add_members(before);
  if (rest.contains(kTensorsKey)) {
    bool inside = false;
    canonical.begin_tensors();
    const auto take = [&](int depth, Json::parse_event_t event, const Json& parsed) {
      using Event = Json::parse_event_t;
      if (depth == 1) inside = begins_tensors(depth, event, parsed) || (inside && event == Event::array_start);
      const bool is_tensor =
          inside && depth == 2 && (event == Event::object_end || event == Event::value || event == Event::array_end);
      if (!is_tensor) return true;
      canonical.add_tensor(parsed);
      try {
        if (!read.error) parts.add_tensor(parsed);
      } catch (const std::exception&) {
        read.error = std::current_exception();
      }
      return false;
    };
    parse_json(text, path, take);
    canonical.end_tensors();
  }
  canonical.add_members(behind);
  read.checksum = canonical.checksum();
  return read;
}

}  // namespace

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
                "{}: is a checkpoint of another model: its {} is {}, but this run's model.{} is {}", checkpoint_path,
                field.name, theirs.dump(), field.name, ours.at(field.name).dump());
  });
}

Json manifest_part_to_json(const CheckpointManifest& part) {
  Json tensors = Json::array();
  for (const CheckpointTensorInfo& tensor : part.tensors) tensors.push_back(tensor_to_json(tensor));
  return {{"shards", files_to_json(part.shards, kHeaderChecksumKey)}, {"tensors", std::move(tensors)}};
}

ManifestParts::ManifestParts(CheckpointManifest& manifest) : manifest_(&manifest) {
  for (size_t i = 0; i < manifest.tensors.size(); ++i) index_.emplace(manifest.tensors[i].name, i);
}

void ManifestParts::add(const Json& part) {
  const std::vector<ListedFile> shards = files_from_json(part.at("shards"), "shard", kHeaderChecksumKey);
  manifest_->shards.insert(manifest_->shards.end(), shards.begin(), shards.end());
  for (const Json& tensor : part.at("tensors")) add_tensor(tensor);
}

void ManifestParts::add_tensor(const Json& json) {
  CheckpointTensorInfo added = tensor_from_json(json);
  const auto [position, fresh] = index_.emplace(added.name, manifest_->tensors.size());
  if (fresh) {
    manifest_->tensors.push_back(std::move(added));
    return;
  }
  CheckpointTensorInfo& tensor = manifest_->tensors[position->second];
  CHECK(tensor.shape == added.shape && tensor.dtype == added.dtype,
        "tensor {} is {} {} on one rank and {} {} on another", tensor.name, dtype_name(tensor.dtype),
        describe_shape(tensor.shape), dtype_name(added.dtype), describe_shape(added.shape));
  std::ranges::move(added.pieces, std::back_inserter(tensor.pieces));
}

void check_complete(CheckpointManifest& manifest) {
  std::unordered_set<std::string_view> shards;
  for (const ListedFile& shard : manifest.shards) {
    CHECK(!shard.checksum.empty(), "shard {} has no checksum", shard.name);
    shards.insert(shard.name);
  }
  for (CheckpointTensorInfo& tensor : manifest.tensors) {
    sort_pieces(tensor);
    check_tensor(tensor);
    for (const CheckpointPiece& piece : tensor.pieces) {
      CHECK(!piece.checksum.empty(), "piece {} has no checksum", piece.key);
      CHECK(shards.contains(piece.file), "piece {} is in the shard {}, which is not listed", piece.key, piece.file);
    }
  }
}

std::string manifest_to_text(const CheckpointManifest& manifest) {
  ManifestText text(true);
  text.add_members(members_before_tensors(manifest));
  text.begin_tensors();
  for (const CheckpointTensorInfo& tensor : manifest.tensors) text.add_tensor(tensor_to_json(tensor));
  text.end_tensors();
  text.add_members({{"version", kFormatVersion}});
  return text.finish();
}

bool is_checkpoint_manifest(const Json& json) {
  return json.is_object() && json.value("format", Json()) == kFormatName;
}

CheckpointManifest manifest_from_text(std::string_view text, const std::string& path) {
  const auto check_intact = [&](bool intact, const std::string& what) {
    if (!intact) throw DamagedCheckpoint(fmt::format("{}: {}", path, what));
  };
  const Json json = parse_without_tensors(text, path);
  check_intact(is_checkpoint_manifest(json), "is not the manifest of an octavo checkpoint");
  CheckpointManifest manifest;
  const TensorsRead read = read_tensors(text, path, json, manifest);
  manifest.checksum = read.checksum;
  const bool intact = json.value("xxh3", Json()) == manifest.checksum;
  CHECK_INPUT(!intact || json.value("version", Json()) == kFormatVersion,
              "{}: has format version {}, this octavo reads version {}", path, json.value("version", Json()).dump(),
              kFormatVersion);
  check_intact(intact, fmt::format("is damaged: its checksum is {}, its contents give \"{}\"",
                                   json.value("xxh3", Json()).dump(), manifest.checksum));
  const auto invalid = [&](const std::string& reason) {
    return DamagedCheckpoint(fmt::format("{}: is not a valid manifest: {}", path, reason));
  };
  try {
    if (read.error) std::rethrow_exception(read.error);
    manifest.step = integer_at(json, "step", "the manifest");
    manifest.ranks = static_cast<int>(integer_at(json.at("mesh"), "ranks", "mesh", 1, std::numeric_limits<int>::max()));
    manifest.meta = meta_from_json(json.at("meta"));
    manifest.files = files_from_json(json.value("files", Json::array()), "file", kChecksumKey);
    manifest.shards = files_from_json(json.at("shards"), "shard", kHeaderChecksumKey);
    check_complete(manifest);
    manifest.model = model_config_from_json(json.at("model"));
    // Readers make a list of all parameters of the model, which a wrong number of layers would make very long.
    CHECK(manifest.model.num_layers <= std::ssize(manifest.tensors),
          "its model has {} layers, but it lists only {} tensors", manifest.model.num_layers, manifest.tensors.size());
  } catch (const Json::exception& error) {
    throw invalid(reason_of(error));
  } catch (const Error& error) {
    throw invalid(error.what());
  }
  return manifest;
}

}  // namespace octavo
