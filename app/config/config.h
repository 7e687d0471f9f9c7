// The config of a run: all sections with all values, defaults included. The table in app/config/config_keys.cpp
// describes each key, and docs/config.md is generated from that table. app/config/config_check.h checks the keys
// against each other.
//
// All functions throw an InputError that names the key, what was found and what was expected. Relative paths in a
// config are relative to the current directory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "data/config.h"
#include "model/architecture/activation_checkpointing.h"
#include "model/architecture/config.h"
#include "model/architecture/precision.h"
#include "model/optimizer/schedule.h"
#include "parallel/config.h"

namespace octavo {

inline constexpr int64_t kMaxSeqLen = 1 << 24;

enum class OnLossSpike : uint8_t { kWarn, kSkip, kRollback };
enum class OnCorruption : uint8_t { kStop, kExclude, kWarn };

struct TrainingConfig {
  int64_t steps = 2000;
  int64_t global_batch_size = 128;
  std::vector<BatchPhase> batch_size_warmup = {};
  int64_t micro_batch_size = 1;
  uint64_t seed = 42;
  bool deterministic = false;
  double z_loss = 0;
  int64_t max_skipped_steps = 10;
  bool locate_nonfinite = true;
  OnLossSpike on_loss_spike = OnLossSpike::kWarn;
  double loss_spike_z = 6;
  int64_t loss_spike_window = 100;
  int64_t corruption_check_every = 2000;
  OnCorruption on_corruption = OnCorruption::kStop;

  BatchSchedule batch_schedule() const { return BatchSchedule(global_batch_size, batch_size_warmup); }
};

enum class OnPrecisionGap : uint8_t { kWarn, kBFloat16 };

// How often FP8 training is compared with bfloat16, and what happens if they differ (app/train/precision_comparison.h).
struct PrecisionGuardConfig {
  int64_t every = 0;
  int64_t steps = 8;
  double tolerance = 0.01;
  OnPrecisionGap action = OnPrecisionGap::kWarn;
  int64_t fallback_steps = 1000;
};

// Part of a run that a key affects. Keys of the class kCarriesOut affect only how a run is executed: its ranks,
// checkpoints, logs and checks. Keys of every other class change what the run computes, so a resumed run must keep
// their values (app/config/config_changes.h).
enum class KeyClass : uint8_t { kCarriesOut, kModel, kData, kTraining, kSchedule, kOptimizer, kPrecision };

struct CheckpointConfig {
  std::string dir = {};  // Directory that contains step_00000500/ and so on. Never empty after a config was read.
  int64_t every = 500;
  double every_minutes = 0;
  int64_t keep = 3;
  int64_t keep_every = 0;
  int64_t max_failed_saves = 3;
  bool async = true;
  bool in_memory = false;
  int64_t in_memory_every = 50;
  std::string command = {};         // Empty: none (app/run/checkpoint_command.h).
  double command_timeout_s = 3600;  // 0: no limit.
  std::string resume = "auto";
  std::vector<KeyClass> allow_changes = {};  // Classes of keys that a resumed run may change.
  bool allows(KeyClass changes) const { return std::ranges::find(allow_changes, changes) != allow_changes.end(); }
};

// Returns whether the value of checkpoint.resume is a path, and not auto or never.
inline bool is_path(const std::string& resume) { return resume != "auto" && resume != "never"; }

enum class LogColor : uint8_t { kAuto, kAlways, kNever };

// The section logging.trace, which requests a trace of one step (app/run/step_trace.h).
struct TraceConfig {
  int64_t step = 0;  // Step that is traced. 0 disables tracing.
};

struct LoggingConfig {
  int64_t every = 10;
  std::string dir;
  bool tensorboard = true;
  std::string prometheus = {};  // Path of the file for Prometheus. Empty disables it.
  int64_t fp8_stats_every = 0;
  int64_t slow_rank_every = 10;
  LogColor color = LogColor::kAuto;
  std::string alert_command = {};  // Empty: none (app/records/alert_command.h).
  double alert_command_timeout_s = 30;
};

// How often the validation loss is computed, and on how many batches. data.validation names the datasets.
struct ValidationConfig {
  int64_t every = 500;
  int64_t batches = 20;
};

// Number and kind of GPUs that `octavo plan` assumes if its options do not name them. Training ignores both keys.
struct PlanConfig {
  int64_t gpus = 0;              // Number of GPUs. 0 means the size of the mesh.
  std::string machine = "h200";  // Name of a file in machines/, or the path of a machine file.
};

enum class DeviceChoice : uint8_t { kAuto, kCpu, kCuda };

// Length of a stage and the keys that the stage changes (app/config/stages.h).
struct StageChanges {
  int64_t steps = 1;                    // Length of the stage in steps.
  nlohmann::ordered_json changes = {};  // New values by full key name: {"data.seq_len": 64, ...}.
};

struct Config {
  std::string source;              // Path or other origin of the config, for messages.
  std::vector<std::string> notes;  // Sentences about keys that are ignored.

  // Shape of the model: the preset's fields, replaced by the fields that are given. head_dim is hidden_size / num_heads
  // unless given, even with a preset. num_kv_heads is the preset's value, or num_heads without a preset.
  ModelConfig model;
  std::string preset;                     // model.preset. Empty if not given.
  std::vector<std::string> model_fields;  // Fields of `model` that the config gives. A preset gives all of them.
  std::string init_from;                  // model.init_from. Empty if not given.
  // model.init_from if the command line gives it, which means that these weights are loaded even if a checkpoint could
  // be resumed.
  std::string init_from_given = {};

  DataConfig data;
  TrainingConfig training;
  OptimizerConfig optimizer;
  PrecisionConfig precision;
  PrecisionGuardConfig precision_guard;
  bool compute_given = false;  // Whether precision.compute was given. If not, resolve_device sets precision.compute.
  ParallelConfig parallel;
  ActivationCheckpointing activation_checkpointing;
  CheckpointConfig checkpoint;
  LoggingConfig logging;
  TraceConfig trace;
  ValidationConfig validation;
  PlanConfig plan;
  DeviceChoice device = DeviceChoice::kAuto;
  std::vector<StageChanges> stages;  // Stages of the run.

  // Returns whether the config gives a preset or any field of the model's shape.
  bool model_given() const { return !model_fields.empty(); }
  // Returns whether the config gives the model's whole shape. If not, the shape must come from init_from (adopt_model).
  bool model_complete() const;
};

// Reads a config file and checks each key separately for unknown names, types, ranges and choices. Each override
// replaces the file's value of its key, and the last override of a key wins. An override that is a map is merged key by
// key. null or an empty value means the default, except that `model.rope_scaling: null` (or none) removes the preset's
// scaling.
Config load_config(const std::string& path, std::span<const std::string> overrides = {});

// Reads a config from the output of to_json() and restores every value exactly. `source` names the config in messages.
Config config_from_json(const nlohmann::json& json, const std::string& source = "the recorded config",
                        std::span<const std::string> overrides = {});

// Returns every key with its value, nested by section.
nlohmann::json to_json(const Config& config);
// Returns to_json(config) as text, with the keys in the order of docs/config.md.
std::string to_json_text(const Config& config);
// Returns every key with its value as a YAML config that load_config can read.
std::string to_yaml(const Config& config);
// Returns the value of the key with the full name `key`: strings without quotes, other values as YAML. Throws an
// InputError if there is no such key.
std::string value_text(const Config& config, const std::string& key);

}  // namespace octavo
