#include "app/inputs/document_tokens.h"

#include <optional>
#include <utility>

#include "app/config/stages.h"
#include "core/error.h"
#include "data/sidecar.h"

namespace octavo {

namespace {

std::string describe(const DataConfig& data) {
  const auto text = [](const std::optional<int32_t>& id) { return id ? std::to_string(*id) : "none"; };
  return fmt::format("bos {} and eos {}", text(data.bos_id), text(data.eos_id));
}

}  // namespace

std::vector<std::string> token_files_of(const Config& config, Purpose purpose) {
  std::vector<DatasetSource> sources = config.data.validation;
  if (purpose == Purpose::kTrain) {
    for (const Config& stage : stage_configs(config))
      sources.insert(sources.end(), stage.data.train.begin(), stage.data.train.end());
  }
  std::vector<std::string> files;
  for (const DatasetSource& source : sources) {
    if (source.weight == 0) continue;
    const std::vector<std::string> found = token_files_of(source);
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

void take_document_tokens(const nlohmann::json& recorded, DataConfig& data) {
  const auto take = [&](const char* key, bool& is_auto, std::optional<int32_t>& id) {
    if (!std::exchange(is_auto, false)) return;
    const nlohmann::json& found = recorded.at(key);
    id = found.is_number_integer() ? std::optional(found.get<int32_t>()) : std::nullopt;
  };
  take("bos_id", data.bos_auto, data.bos_id);
  take("eos_id", data.eos_auto, data.eos_id);
}

std::string resolve_document_tokens(Config& config, Purpose purpose, const std::optional<Checkpoint>& resumed) {
  DataConfig& data = config.data;
  if (purpose == Purpose::kSynthetic || !(data.bos_auto || data.eos_auto)) return "";
  const nlohmann::json loader = resumed ? resumed->meta().value("loader", nlohmann::json()) : nlohmann::json();
  if (!loader.contains("bos_id") || !loader.contains("eos_id")) {
    find_document_tokens(data, token_files_of(config, purpose));
    if (data.bos_id || data.eos_id) return "";
    return "no token file names a bos or eos, so documents run together unless their tokens contain one; data.bos_id "
           "or data.eos_id inserts one, and null says that none is wanted";
  }
  DataConfig named = data;
  take_document_tokens(loader, data);
  try {
    find_document_tokens(named, token_files_of(config, purpose));
  } catch (const InputError&) {  // Ignored, because this run does not use the ids in the sidecars.
    return "";
  }
  if (named.bos_id == data.bos_id && named.eos_id == data.eos_id) return "";
  return fmt::format("the run keeps {} around documents, as in its earlier steps, although its token files name {}",
                     describe(data), describe(named));
}

}  // namespace octavo
