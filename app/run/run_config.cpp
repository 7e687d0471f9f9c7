#include "app/run/run_config.h"

#include <filesystem>
#include <span>
#include <system_error>

#include "app/process/same_files.h"
#include "app/run/document_tokens.h"
#include "app/run/former_checkpoints.h"
#include "app/run/weights.h"
#include "core/error.h"
#include "core/log.h"

namespace octavo {

namespace {

Config config_of_checkpoint(const std::string& path, std::span<const std::string> overrides, ProcessGroup& group) {
  const Checkpoint checkpoint = open_same_checkpoint(path, group);
  Config config;
  group.agree([&] {
    const std::string found = checkpoint.path().string();
    CHECK_INPUT(checkpoint.meta().contains("config") && checkpoint.meta().at("config").contains("training"),
                "{}: has no config of a run, as it was imported; expected CONFIG.yaml, with checkpoint.resume={}",
                found, found);
    nlohmann::json json = checkpoint.meta().at("config");
    for (const char* of_then : {"parallel", "device"}) json.erase(of_then);
    if (json.contains("precision")) json["precision"].erase("compute");
    json["checkpoint"]["resume"] = found;
    config = config_from_json(json, found, overrides);
  });
  return config;
}

// Ranks may see other directories than rank 0.
void find_former_checkpoints_on_root(Config& config, ProcessGroup& group, Purpose purpose) {
  if (purpose == Purpose::kSynthetic) return;
  std::string note;
  group.agree_on_files("looking for checkpoints", [&] {
    if (group.is_root()) note = find_former_checkpoints(config);
  });
  config.checkpoint.dir = group.broadcast(config.checkpoint.dir);
  if (!note.empty() && purpose == Purpose::kTrain) log_info("{}", note);
}

// Rank 0 looks at the token files, and every rank takes what it finds.
void resolve_document_tokens(Config& config, ProcessGroup& group, Purpose purpose) {
  if (purpose == Purpose::kSynthetic) return;
  nlohmann::json data;
  std::string note;
  group.agree_on_files("looking for the bos and eos of the token files", [&] {
    if (!group.is_root()) return;
    note = resolve_document_tokens(config, purpose);
    data = to_json(config).at("data");
  });
  if (!note.empty()) log_line(LogLevel::kWarning, note);
  data = nlohmann::json::parse(group.broadcast(data.dump()));
  const auto take = [&](const char* key, bool& is_auto, std::optional<int32_t>& id) {
    is_auto = false;
    id = data.at(key).is_null() ? std::nullopt : std::optional(data.at(key).get<int32_t>());
  };
  take("bos_id", config.data.bos_auto, config.data.bos_id);
  take("eos_id", config.data.eos_auto, config.data.eos_id);
}

}  // namespace

Config load_run_config(const ConfigArguments& arguments, ProcessGroup& group, Purpose purpose) {
  std::error_code error;
  const bool is_checkpoint = purpose == Purpose::kEvaluate && std::filesystem::is_directory(arguments.path, error);
  Config config;
  if (group.all_reduce_max(is_checkpoint ? 1 : 0) != 0) {
    config = config_of_checkpoint(arguments.path, arguments.overrides, group);
  }
  group.agree([&] {
    if (config.source.empty()) config = load_config(arguments.path, arguments.overrides);
    validate(config, group.size(), purpose);
  });
  find_former_checkpoints_on_root(config, group, purpose);
  const std::unique_ptr<WeightSource> weights = open_same_weights(config.init_from, group);
  group.agree([&] {
    if (!weights) return;
    config.init_from = weights->path().string();  // where that was a directory of checkpoints, the one that rank 0 took
    const std::string note = adopt_initial_model(config, *weights);
    if (!note.empty() && group.is_root()) log_line(LogLevel::kWarning, note);
    validate(config, group.size(), purpose);
  });
  resolve_document_tokens(config, group, purpose);
  return config;
}

}  // namespace octavo
