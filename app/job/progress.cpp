#include "app/job/progress.h"

#include "app/config/config_node.h"
#include "app/config/config_values.h"
#include "checkpoint/hf_format.h"
#include "core/error.h"
#include "core/files/json_input.h"
#include "data/tokenizer_identity.h"

namespace octavo {

namespace {

// Key of Progress::rolled_back, in the format of data.skip.
constexpr SampleRanges kRolledBack{"rolled_back"};

std::vector<SampleRange> rolled_back_from(const Checkpoint& checkpoint) {
  const std::string source = checkpoint.path().string();
  const ConfigNode node = node_from_json(checkpoint.meta().value(kRolledBack.key, nlohmann::json()), source);
  std::vector<SampleRange> ranges;
  CHECK_INPUT(kRolledBack.read(node, ranges), "{}: {} of the manifest is wrong, expected {}", source, kRolledBack.key,
              kRolledBack.expected());
  return ranges;
}

// Returns the state of the loader, or null if there is none.
nlohmann::json loader_state_from(const Checkpoint& checkpoint) {
  const auto found = checkpoint.meta().find("loader");
  if (found == checkpoint.meta().end()) return {};
  CHECK_INPUT(found->is_object(), "{}: loader of the manifest is {}, expected a map", checkpoint.path().string(),
              found->dump());
  return *found;
}

}  // namespace

Progress progress_of(const Checkpoint& checkpoint) {
  const nlohmann::json& meta = checkpoint.meta();
  // manifest_from_text() has checked that step, tokens and bfloat16_until are integers.
  return {.step = checkpoint.step(),
          .tokens = meta.value("tokens", int64_t{0}),
          .steps_s = find_value<double>(meta, "/steps_s").value_or(0),
          .loader_state = loader_state_from(checkpoint),
          .guard = meta.value("guard", nlohmann::json()),
          .bfloat16_until = meta.value("bfloat16_until", int64_t{0}),
          .rolled_back = rolled_back_from(checkpoint),
          .began_from = recorded_beginning(meta),
          .hugging_face = meta.value(kHfMetaKey, nlohmann::json())};
}

std::string recorded_beginning(const nlohmann::json& meta) {
  const std::string resume = find_value<std::string>(meta, "/config/checkpoint/resume").value_or("auto");
  return is_path(resume) ? resume : "";
}

nlohmann::json checkpoint_meta(const Config& run, const Progress& progress) {
  nlohmann::json meta = {{"config", to_json(run)},
                         {kTokenizerHashKey, run.data.tokenizer_hash},
                         {"loader", progress.loader_state},
                         {"tokens", progress.tokens},
                         {"steps_s", progress.steps_s},
                         {"guard", progress.guard},
                         {"bfloat16_until", progress.bfloat16_until},
                         {kRolledBack.key, kRolledBack.write(progress.rolled_back)}};
  if (!progress.began_from.empty()) meta["config"]["checkpoint"]["resume"] = progress.began_from;
  if (!progress.hugging_face.is_null()) meta[kHfMetaKey] = progress.hugging_face;
  return meta;
}

}  // namespace octavo
