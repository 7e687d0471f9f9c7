#include "app/commands/import_export.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <list>
#include <regex>
#include <system_error>
#include <utility>

#include "app/commands/commands.h"
#include "app/inputs/model_path.h"
#include "app/inputs/tokenizer_source.h"
#include "app/text/tokenizer.h"
#include "app/text/tokenizer_files.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/hf_format.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weight_source.h"
#include "core/arena.h"
#include "core/error.h"
#include "core/files/checksum.h"
#include "core/files/input_file.h"
#include "core/files/json_input.h"
#include "core/files/output_file.h"
#include "core/format.h"
#include "core/log.h"
#include "core/printable.h"
#include "data/tokenizer_identity.h"
#include "model/parameters/parameters.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using namespace nlohmann::literals;

constexpr const char* kWeightsName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";
// Suffix of files that are being written (core/files/output_file.h).
constexpr std::string_view kTemporarySuffix = ".tmp";

int64_t largest_parameter(const ParameterLayout& layout) {
  int64_t largest = 0;
  for (const ParameterSpec& spec : layout.specs()) largest = std::max(largest, spec.numel());
  return largest;
}

// Refuses to replace the checkpoint of a run unless `overwrite` is true.
void check_import_target(const fs::path& target, bool overwrite) {
  std::error_code error;
  CHECK_INPUT(!fs::is_symlink(target, error), "{}: is a symbolic link, expected a directory or a new name",
              target.string());
  CHECK_INPUT(
      step_of_directory(target).value_or(0) == 0,
      "{}: is the name of a later step's checkpoint, expected another name, because an imported model has step 0",
      target.string());
  if (!path_exists(target)) return;
  CHECK_INPUT(fs::is_directory(target, error), "{}: is a file, expected the directory of a checkpoint",
              target.string());
  if (fs::is_empty(target, error)) return;
  const fs::path manifest = target / kManifestName;
  CHECK_INPUT(fs::exists(manifest, error), "{}: is not empty and not an octavo checkpoint, so it is not overwritten",
              target.string());
  const Json json = read_json_file(manifest.string());
  CHECK_INPUT(is_checkpoint_manifest(json), "{}: is not the manifest of an octavo checkpoint, so {} is not overwritten",
              manifest.string(), target.string());
  CHECK_INPUT(overwrite || json.contains("/meta/imported_from"_json_pointer),
              "{}: is a checkpoint that was not imported, so it is not replaced; expected a new name, or --overwrite",
              target.string());
}

// Writes a checkpoint: all parameters in one shard, the files next to it, and the manifest that describes them.
void write_weights_checkpoint(WeightSource& source, const Json& meta, const std::vector<AttachedFile>& files,
                              const fs::path& dir) {
  const ParameterLayout layout(source.model_config());
  std::vector<SafetensorsEntry> entries;
  for (const ParameterSpec& spec : layout.specs()) entries.push_back({spec.name, "F32", spec.shape, 0, 0});
  const std::string file = shard_name(0);
  SafetensorsWriter writer((dir / file).string(), std::move(entries));
  CheckpointManifest manifest{0, source.model_config(), 1, meta, {}, {}};
  const Buffer buffer = Buffer::host(Device::kCpu, largest_parameter(layout) * dtype_bytes(DType::kFloat32));
  for (const ParameterSpec& spec : layout.specs()) {
    const int64_t bytes = spec.numel() * dtype_bytes(DType::kFloat32);
    source.read(spec.name, {}, 0, spec.numel(), static_cast<float*>(buffer.data()));
    writer.write(buffer.data(), bytes);
    const CheckpointPiece piece{file, spec.name, 0, spec.numel(), checksum_hex(buffer.data(), bytes)};
    manifest.tensors.push_back({spec.name, spec.shape, DType::kFloat32, {piece}});
  }
  writer.commit();
  const std::string_view header = writer.header();
  manifest.shards = {{file, writer.size_bytes(), checksum_hex(header.data(), static_cast<int64_t>(header.size()))}};
  for (const AttachedFile& attached : files) manifest.files.push_back(write_attached_file(dir, attached));
  write_manifest(dir, manifest);
}

// Divides the parameters into files, in the order of the layout.
std::vector<std::vector<const ParameterSpec*>> group_into_shards(const ParameterLayout& layout,
                                                                 const ExportOptions& options) {
  std::vector<std::vector<const ParameterSpec*>> shards(1);
  int64_t bytes = 0;
  for (const ParameterSpec& spec : layout.specs()) {
    const int64_t size = spec.numel() * dtype_bytes(options.dtype);
    if (!shards.back().empty() && bytes + size > options.max_shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(&spec);
    bytes += size;
  }
  return shards;
}

bool is_weights_file(const std::string& name) {
  static const std::regex pattern(R"(model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json)");
  return std::regex_match(name, pattern);
}

bool is_our_weights_file(const fs::path& path) {
  try {
    return SafetensorsFile(path.string()).is_ours();
  } catch (const InputError&) {
    return false;
  }
}

bool is_model_file(const std::string& name) {
  return is_weights_file(name) || name == kHfConfigName || name == kGenerationConfigName || is_tokenizer_file(name);
}

// Refuses a directory with files of a model that was not written by an export, unless the user allows overwriting it.
void check_export_target(const fs::path& dir) {
  bool has_ours = false;
  std::string foreign, model_file;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string();
    const bool is_left_over = name.ends_with(kTemporarySuffix);  // File of an export that was killed.
    if (!is_model_file(is_left_over ? name.substr(0, name.size() - kTemporarySuffix.size()) : name)) foreign = name;
    if (is_left_over) continue;
    model_file = name;
    if (is_weights_file(name) && entry.path().extension() == ".safetensors") {
      const bool is_ours = is_our_weights_file(entry.path());
      has_ours = has_ours || is_ours;
      if (!is_ours) foreign = name;
    }
  }
  if (foreign.empty() && !has_ours) foreign = model_file;
  CHECK_INPUT(foreign.empty(),
              "{}: holds {}, which is not of an earlier export, expected a new or empty directory; --overwrite exports "
              "into this one and replaces the files of a model in it",
              dir.string(), foreign);
}

// Removes the weights of an earlier export and its tokenizer, because the new model may have none.
void remove_old_model(const fs::path& dir) {
  std::vector<fs::path> weights;
  std::vector<fs::path> tokenizer;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string();
    if (is_weights_file(name)) weights.push_back(entry.path());
    if (is_tokenizer_file(name)) tokenizer.push_back(entry.path());
  }
  if (weights.empty()) return;
  for (const fs::path& path : tokenizer) fs::remove(path);
  for (const fs::path& path : weights) fs::remove(path);
}

void write_json_file(const fs::path& path, const auto& json) { write_output_file(path.string(), json.dump(2) + "\n"); }

// Writes the weights. All files are complete under temporary names before the first old file is removed.
void export_weights(Checkpoint& checkpoint, const fs::path& dir, const ExportOptions& options, ExportReport& report) {
  const ParameterLayout layout(checkpoint.model_config());
  const auto shards = group_into_shards(layout, options);
  const Buffer buffer = Buffer::host(Device::kCpu, largest_parameter(layout) * dtype_bytes(options.dtype));
  const std::string prefix = checkpoint.prefix(options.weights);
  std::list<SafetensorsWriter> writers;
  nlohmann::ordered_json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", nlohmann::ordered_json::object()}};
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        shards.size() == 1 ? kWeightsName : fmt::format("model-{:05d}-of-{:05d}.safetensors", i + 1, shards.size());
    std::vector<SafetensorsEntry> entries;
    for (const ParameterSpec* spec : shards[i]) {
      entries.push_back({spec->name, safetensors_dtype(options.dtype), spec->shape, 0, 0});
      index["weight_map"][spec->name] = name;
      report.bytes += spec->numel() * dtype_bytes(options.dtype);
    }
    SafetensorsWriter& writer = writers.emplace_back((dir / name).string(), std::move(entries));
    for (const ParameterSpec* spec : shards[i]) {
      const Tensor values(buffer.data(), options.dtype, {spec->numel()});
      checkpoint.read(prefix + spec->name, {}, 0, spec->numel(), values);
      writer.write(values.raw(), values.bytes());
    }
    writer.finish();
    report.files.push_back(name);
  }
  remove_old_model(dir);
  for (SafetensorsWriter& writer : writers) writer.rename();
  if (shards.size() == 1) return;
  index["metadata"]["total_size"] = report.bytes;
  write_json_file(dir / kIndexName, index);
  report.files.emplace_back(kIndexName);
}

// Exports the tokenizer in the checkpoint, with a tokenizer_config.json if it has none, or the byte tokenizer. A
// tokenizer that the checkpoint only names is not copied, because its file may have changed.
void export_tokenizer(const Checkpoint& checkpoint, const HfMetadata& metadata, const fs::path& hf_dir,
                      ExportReport& report) {
  std::vector<AttachedFile> files;
  bool has_config = false;
  for (const ListedFile& file : checkpoint.files()) {
    if (!is_tokenizer_file(file.name)) continue;
    files.push_back({file.name, checkpoint.read_file(file)});
    has_config = has_config || file.name == kTokenizerConfigName;
  }
  if (!files.empty() && !has_config) {
    const auto config = make_tokenizer_config(files.front(), metadata.bos_token_id, metadata.eos_token_id);
    if (config) files.push_back(*config);
  }
  const std::string name = tokenizer_of_checkpoint(checkpoint).name;
  if (name == kByteTokenizerName) files = byte_tokenizer_files();
  for (const AttachedFile& file : files) {
    write_attached_file(hf_dir, file);
    report.files.push_back(file.name);
  }
  if (files.empty() && name != kUnknownTokenizer) report.tokenizer_elsewhere = name;
}

struct ImportArguments {
  std::string hf_dir;
  std::string checkpoint;  // Path of the new checkpoint.
  bool overwrite = false;  // Replace a checkpoint that was not imported.
};

struct ExportArguments {
  std::string model;               // Path of the model (app/inputs/model_path.h).
  std::string hf_dir;              // Path of the new directory.
  std::string dtype = "float32";   // Either float32 or bfloat16.
  std::string shard_size = "5GB";  // Maximum size of the tensors in one file.
  bool overwrite = false;          // Replace a model that was not written by an export.
  bool ema = false;                // Export the moving average of the weights.
};

int run_import(const ImportArguments& arguments) {
  const ImportReport report = import_hf(arguments.hf_dir, arguments.checkpoint, arguments.overwrite);
  std::cout << fmt::format("{}: step 0, {} parameters, {}\n", printable(arguments.checkpoint),
                           with_thousands_separators(report.parameters),
                           report.tokenizer ? "with its tokenizer" : "without a tokenizer");
  return kExitDone;
}

int run_export(const ExportArguments& arguments) {
  const DType dtype = arguments.dtype == "bfloat16" ? DType::kBFloat16 : DType::kFloat32;
  const ExportReport report = export_hf(arguments.model, arguments.hf_dir,
                                        {.dtype = dtype,
                                         .max_shard_bytes = parse_bytes(arguments.shard_size, "--shard-size"),
                                         .overwrite = arguments.overwrite,
                                         .weights = arguments.ema ? SavedWeights::kEma : SavedWeights::kMaster});
  std::cout << fmt::format("{}: step {}, {} parameters in {}, {:.3f} GB, {} files\n", printable(arguments.hf_dir),
                           report.step, with_thousands_separators(report.parameters), arguments.dtype,
                           static_cast<double>(report.bytes) / 1e9, report.files.size());
  if (!report.tokenizer_elsewhere.empty()) {
    std::cout << fmt::format("the checkpoint contains no tokenizer, so none was exported; its config names {}\n",
                             printable(report.tokenizer_elsewhere));
  }
  return kExitDone;
}

}  // namespace

Json import_meta(const std::string& hf_dir, const Json& hugging_face, const std::vector<AttachedFile>& tokenizer) {
  Json meta = {{"imported_from", fs::absolute(hf_dir).string()}, {"tokens", 0}, {kHfMetaKey, hugging_face}};
  if (tokenizer.empty()) return meta;
  const bool is_byte = is_byte_tokenizer(tokenizer.front());
  const std::string path = fs::absolute(fs::path(hf_dir) / kTokenizerName).string();
  meta["config"]["data"]["tokenizer"] = is_byte ? kByteTokenizerName : path;
  if (is_byte) meta[kTokenizerHashKey] = kByteTokenizerHash;
  return meta;
}

ImportReport import_hf(const std::string& hf_dir, const std::string& checkpoint_dir, bool overwrite) {
  const fs::path normal = fs::path(checkpoint_dir).lexically_normal();
  // "a/b/" and "a/b" are the same directory, but only the second has a file name.
  const fs::path target = normal.has_filename() ? normal : normal.parent_path();
  CHECK_INPUT(path_exists(fs::path(hf_dir) / kHfConfigName), "{}: is not a Hugging Face directory: it has no {}",
              hf_dir, kHfConfigName);
  CHECK_INPUT(is_utf8(fs::absolute(hf_dir).string()),
              "{}: the path is invalid UTF-8, which a checkpoint cannot record, expected another name", hf_dir);
  HfWeights source(hf_dir);
  for (const std::string& note : source.notes()) log_line(LogLevel::kWarning, note);
  check_import_target(target, overwrite);
  const fs::path temporary = target.parent_path() / (kTemporaryPrefix + target.filename().string());
  ImportReport report{.parameters = source.model_config().num_parameters()};
  remove_directory(temporary);
  std::error_code error;
  fs::create_directories(temporary, error);
  CHECK_INPUT(!error, "{}: cannot be created: {}", temporary.string(), error.message());
  try {
    std::vector<AttachedFile> files = read_tokenizer_files(fs::path(hf_dir) / kTokenizerName);
    report.tokenizer = !files.empty();
    const Json meta = import_meta(hf_dir, source.hugging_face(), files);
    if (report.tokenizer && is_byte_tokenizer(files.front())) files.clear();  // The byte tokenizer is built in.
    write_weights_checkpoint(source, meta, files, temporary);
    install_directory(temporary, target);
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
  return report;
}

ExportReport export_hf(const std::string& model, const std::string& hf_dir, const ExportOptions& options) {
  CHECK(options.dtype == DType::kFloat32 || options.dtype == DType::kBFloat16,
        "weights are exported as float32 or bfloat16, not {}", dtype_name(options.dtype));
  const ModelPath found = resolve_model(model);
  CHECK_INPUT(found.is_checkpoint, "{}: is a Hugging Face directory already, expected a checkpoint or a run to export",
              model);
  CheckpointWeights source{Checkpoint(found.path)};  // Checks that no tensor of the model is missing.
  Checkpoint& checkpoint = source.checkpoint();
  // Throws if the checkpoint lacks these weights, before anything is written.
  (void)checkpoint.prefix(options.weights);
  const fs::path dir = hf_dir;
  CHECK_INPUT(
      !path_exists(dir / "metrics.jsonl") && !path_exists(dir / kManifestName) && find_checkpoints(dir).empty(),
      "{}: is a run folder, a checkpoint or a directory of checkpoints, expected a directory of its own for the "
      "exported model",
      hf_dir);
  const HfMetadata metadata = hf_metadata_of(checkpoint.meta(), checkpoint.step());
  const Json config = make_hf_config(checkpoint.model_config(), metadata, options.dtype);
  check_describes(config, checkpoint.model_config(), checkpoint.path().string());
  std::error_code error;
  fs::create_directories(dir, error);
  CHECK_INPUT(!error, "{}: cannot be created: {}", hf_dir, error.message());
  if (!options.overwrite) check_export_target(dir);
  ExportReport report;
  report.step = checkpoint.step();
  report.parameters = checkpoint.model_config().num_parameters();
  export_weights(checkpoint, dir, options, report);
  write_json_file(dir / kHfConfigName, config);
  write_json_file(dir / kGenerationConfigName, make_generation_config(metadata));
  report.files.insert(report.files.end(), {kHfConfigName, kGenerationConfigName});
  export_tokenizer(checkpoint, metadata, dir, report);
  sync_directory(dir);
  return report;
}

void add_import(CommandLine& line) {
  const auto [command, arguments] =
      line.add<ImportArguments>("import", "convert a Hugging Face directory to a checkpoint", run_import,
                                "octavo import Llama-3.2-1B checkpoints/llama3_1b");
  command->add_option("hf_dir", arguments.hf_dir, "HF_DIR, a Hugging Face directory")->required();
  command->add_option("checkpoint", arguments.checkpoint, "CHECKPOINT, the directory to create")->required();
  command->add_flag("--overwrite", arguments.overwrite, "replace an existing checkpoint of a run");
}

void add_export(CommandLine& line) {
  const auto [command, arguments] =
      line.add<ExportArguments>("export", "convert a checkpoint to a Hugging Face directory", run_export,
                                "octavo export runs/quickstart exported --dtype bfloat16");
  command
      ->add_option("model", arguments.model,
                   "a checkpoint, a directory of checkpoints or a run folder (their newest one)")
      ->required();
  command->add_option("hf_dir", arguments.hf_dir, "HF_DIR, the directory to create")->required();
  command->add_option("--dtype", arguments.dtype, "dtype of the weights: float32 or bfloat16")
      ->check(one_of({"float32", "bfloat16"}));
  command->add_option("--shard-size", arguments.shard_size, "maximum size of a weights file, such as 5GB or 500MiB");
  command->add_flag("--overwrite,--force", arguments.overwrite, "replace a model in HF_DIR that octavo did not export");
  command->add_flag("--ema", arguments.ema, kEmaHelp);
}

}  // namespace octavo
