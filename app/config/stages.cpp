#include "app/config/stages.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include "app/config/config_values.h"
#include "core/error.h"
#include "data/mixture.h"

namespace octavo {

namespace {

using Kind = ConfigNode::Kind;
using OrderedJson = nlohmann::ordered_json;

constexpr std::array kChangeable = {"data.train",
                                    "data.seq_len",
                                    "training.global_batch_size",
                                    "training.micro_batch_size",
                                    "optimizer.lr",
                                    "optimizer.min_lr_ratio",
                                    "optimizer.warmup_steps",
                                    "optimizer.schedule",
                                    "optimizer.decay_steps",
                                    "optimizer.decay_type"};

bool is_changeable(const ConfigKey& key) { return std::ranges::find(kChangeable, key.name) != kChangeable.end(); }

bool is_of_schedule(const std::string& key) { return key.starts_with("optimizer."); }

// Splits "data.train" into "data" and "train".
std::pair<std::string, std::string> parts(const std::string& name) {
  const size_t dot = name.find('.');
  return {name.substr(0, dot), name.substr(dot + 1)};
}

struct StagesRule {
  std::vector<ConfigKey> keys;  // Keys that a stage may change.
  static constexpr Integers kSteps{1, kMaxSteps};

  std::string expected() const { return "a list of {steps: STEPS, data: {...}, training: {...}, optimizer: {...}}"; }

  bool read(const ConfigNode& node, Config& config) const {
    config.stages.clear();
    if (node.kind == Kind::kNull) return true;
    if (node.kind != Kind::kList) return false;
    std::vector<StageChanges> stages;
    for (const ConfigNode& item : node.children) stages.push_back(read_stage(item, config));
    config.stages = std::move(stages);
    return true;
  }

  OrderedJson write(const Config& config) const {
    OrderedJson list = OrderedJson::array();
    for (const StageChanges& stage : config.stages) {
      OrderedJson item{{"steps", stage.steps}};
      for (const auto& [name, value] : stage.changes.items()) {
        const auto [section, key] = parts(name);
        item[section][key] = value;
      }
      list.push_back(std::move(item));
    }
    return list;
  }

 private:
  StageChanges read_stage(const ConfigNode& item, Config changed) const {
    const ConfigNode* steps = item.find("steps");
    if (steps == nullptr) refuse_value(item, "stages", "a map that includes steps");
    StageChanges stage;
    if (!kSteps.read(*steps, stage.steps)) refuse_value(*steps, "stages.steps", kSteps.expected());
    for (const char* section : {"data", "training", "optimizer"}) {
      const ConfigNode* found = item.find(section);
      if (found != nullptr && found->kind != Kind::kMap)
        refuse_value(*found, fmt::format("stages.{}", section), "a section of keys");
    }
    for (const ConfigKey& key : keys) {
      const ConfigNode* found = item.find_name(key.name);
      if (found == nullptr) continue;
      if (!key.read(*found, changed)) refuse_value(*found, "stages." + key.name, key.expected);
      stage.changes[key.name] = *key.write(changed);
    }
    const bool has_datasets = stage.changes.contains("data.train");
    for (const DatasetSource& source : changed.data.train) {
      if (has_datasets && source.paths.empty()) refuse_value(item, "stages.data.train", "a path in every dataset");
    }
    return stage;
  }
};

// Returns the config with the changes of a stage, without setting where the stage begins.
StageConfig changed_config(const Config& run, size_t stage) {
  StageConfig changed(run);
  const OrderedJson& changes = run.stages[stage].changes;
  const auto states = [&](const char* key) { return changes.contains(key); };
  for (const ConfigKey& key : config_keys()) {
    if (!states(key.name.c_str())) continue;
    changed.stage.own_schedule = changed.stage.own_schedule || is_of_schedule(key.name);
    const bool good = key.read(node_from_json(changes.at(key.name), run.source), changed);
    CHECK(good, "stages: {} does not read what it wrote", key.name);
  }
  // A later stage starts from trained weights and needs no warm-up. A stage that gives optimizer.schedule
  // does not inherit optimizer.decay_steps and optimizer.decay_type, which belong to the schedule of the run.
  OptimizerConfig& optimizer = changed.optimizer;
  if (changed.stage.own_schedule && stage > 0 && !states("optimizer.warmup_steps")) optimizer.warmup_steps = 0;
  if (states("optimizer.schedule") && !states("optimizer.decay_steps")) optimizer.decay_steps = 0;
  if (states("optimizer.schedule") && !states("optimizer.decay_type"))
    optimizer.decay_type = OptimizerConfig{}.decay_type;
  return changed;
}

// Records how far the stages so far have read each dataset. A dataset is identified by its paths.
class DatasetsRead {
 public:
  // Returns the position in each dataset at which the next stage begins.
  std::vector<DatasetOrigin> origins(const DataConfig& data) {
    std::vector<DatasetOrigin> origins;
    std::map<std::vector<std::string>, int64_t> times;
    for (const DatasetSource& source : data.train) {
      const auto found =
          known_.try_emplace({source.paths, times[source.paths]++}, Dataset{.id = std::ssize(known_), .tokens = 0})
              .first;
      const int64_t window = data.seq_len + 1;
      origins.push_back({.id = found->second.id, .windows = (found->second.tokens + window - 1) / window});
    }
    return origins;
  }
  // Adds the samples that a stage reads, starting from its origins.
  void read(const DataConfig& data, int64_t samples) {
    std::vector<double> weights;
    for (const DatasetSource& source : data.train) weights.push_back(source.weight);
    const std::vector<int64_t> shares = integer_weights(weights);
    const int64_t total = std::accumulate(shares.begin(), shares.end(), int64_t{0});
    std::map<std::vector<std::string>, int64_t> times;
    for (size_t d = 0; d < data.train.size(); ++d) {
      const std::vector<std::string>& paths = data.train[d].paths;
      // The mixture never draws a whole sample more from a dataset than its weight implies (data/mixture.h).
      const long double part = static_cast<long double>(samples % total) * shares[d] / total;
      const int64_t taken = samples / total * shares[d] + static_cast<int64_t>(std::ceil(part));
      const int64_t windows = data.origin.datasets[d].windows + taken;
      known_.at({paths, times[paths]++}).tokens = windows * (data.seq_len + 1);
    }
  }

 private:
  struct Dataset {
    int64_t id;
    int64_t tokens;
  };
  std::map<std::pair<std::vector<std::string>, int64_t>, Dataset> known_;
};

void check_weights(const Config& config, size_t stage) {
  const std::vector<DatasetSource>& train = config.data.train;
  const bool has_weight = std::ranges::any_of(train, [](const DatasetSource& source) { return source.weight > 0; });
  CHECK_INPUT(train.empty() || has_weight, "the weights of data.train in stage {} are all 0, expected one above 0",
              stage + 1);
}

}  // namespace

size_t stage_of_step(const Config& run, int64_t step) {
  size_t stage = 0;
  for (int64_t end = 0; stage + 1 < run.stages.size(); ++stage) {
    end += run.stages[stage].steps;
    if (step <= end) break;
  }
  return stage;
}

std::vector<StageConfig> stage_configs(const Config& run, const std::vector<SampleRange>& rolled_back) {
  if (run.stages.empty()) return {StageConfig(run)};
  std::vector<StageConfig> stages;
  DatasetsRead datasets;
  int64_t steps = 0;
  int64_t samples = 0;
  for (size_t i = 0; i < run.stages.size(); ++i) {
    StageConfig& stage = stages.emplace_back(changed_config(run, i));
    check_weights(stage, i);
    stage.stage.number = static_cast<int64_t>(i) + 1;
    stage.stage.steps_before = steps;
    stage.training.steps = steps + run.stages[i].steps;
    stage.data.origin = {.sample = samples, .datasets = datasets.origins(stage.data)};
    const BatchSchedule batches = stage.training.batch_schedule();
    const int64_t taken = batches.samples(stage.training.steps) - batches.samples(steps);
    const int64_t end = end_of_samples(skipped_samples(stage.data, rolled_back), samples, taken);
    if (!stage.data.train.empty()) datasets.read(stage.data, end - samples);
    for (size_t earlier = 0; earlier < i; ++earlier) stages[earlier].stage.later_tokens += taken * stage.data.seq_len;
    steps = stage.training.steps;
    samples = end;
  }
  return stages;
}

std::vector<SampleRange> skipped_samples(const DataConfig& data, const std::vector<SampleRange>& rolled_back) {
  std::vector<SampleRange> skip = data.skip;
  skip.insert(skip.end(), rolled_back.begin(), rolled_back.end());
  return skip;
}

StageConfig config_of_step(const Config& run, int64_t step) {
  return std::move(stage_configs(run)[stage_of_step(run, step)]);
}

ConfigKey stages_key(const std::vector<ConfigKey>& keys) {
  StagesRule rule;
  std::ranges::copy_if(keys, std::back_inserter(rule.keys), is_changeable);
  ConfigKey stages{
      .name = "stages",
      .expected = rule.expected(),
      .fallback = "none",
      .unit = "",
      .sentence =
          "Consecutive stages of the run. Each stage has a number of steps, and may change data.train, data.seq_len, "
          "the batch sizes and the learning rate schedule. training.steps is the sum of their steps.",
      .key_class = KeyClass::kSchedule,
      .compared = Compared::kByEffect};
  stages.item_keys = {"steps"};
  for (const ConfigKey& key : rule.keys) {
    const std::string section = parts(key.name).first;
    if (std::ranges::find(stages.item_keys, section) == stages.item_keys.end()) stages.item_keys.push_back(section);
    stages.item_keys.push_back(key.name);
    for (const std::string& item : key.item_keys) stages.item_keys.push_back(key.name + "." + item);
  }
  stages.read = [rule](const ConfigNode& found, Config& config) { return rule.read(found, config); };
  stages.write = [rule](const Config& config) { return std::make_optional(rule.write(config)); };
  return stages;
}

}  // namespace octavo
