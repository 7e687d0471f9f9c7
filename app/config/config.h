// The whole config of a run: every section, resolved, with its defaults. What each key says is in the table of
// app/config/config_keys.cpp, which docs/config.md is made of; what holds between keys in app/config/config_check.h.
//
// All functions throw InputError naming the key, what was found and what was expected. Relative paths in a config are
// relative to the current directory.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "data/config.h"
#include "model/activation_checkpointing.h"
#include "model/config.h"
#include "model/precision.h"
#include "model/schedule.h"
#include "parallel/config.h"

namespace octavo {

inline constexpr int64_t kMaxSeqLen = 1 << 24;

enum class OnLossSpike : uint8_t { kWarn, kSkip, kRollback };
enum class OnCorruption : uint8_t { kStop, kExclude, kWarn };

struct TrainingConfig {
  int64_t steps = 2000;
  int64_t global_batch_size = 128;
  int64_t micro_batch_size = 1;
  uint64_t seed = 42;
  bool deterministic = false;
  int64_t max_skipped_steps = 10;
  OnLossSpike on_loss_spike = OnLossSpike::kWarn;
  double loss_spike_z = 6;
  int64_t loss_spike_window = 100;
  int64_t check_every = 2000;
  OnCorruption on_corruption = OnCorruption::kStop;
};

enum class OnPrecisionGap : uint8_t { kWarn, kBFloat16 };

// How often FP8 training is compared with bfloat16, and what follows (app/guard/precision_guard.h).
struct PrecisionGuardConfig {
  int64_t every = 0;
  int64_t steps = 8;
  double tolerance = 0.01;
  OnPrecisionGap action = OnPrecisionGap::kWarn;
  int64_t fallback_steps = 1000;
};

// What a run that goes on may do otherwise than the config that its checkpoint was saved with.
enum class AllowedChange : uint8_t { kData, kSchedule };

struct CheckpointConfig {
  std::string dir = "checkpoints";  // holds step_00000500/ and so on
  int64_t every = 500;
  double every_minutes = 0;
  int64_t keep = 3;
  int64_t keep_every = 0;
  int64_t max_failed_saves = 3;
  bool async = true;
  bool in_memory = false;
  int64_t in_memory_every = 50;
  std::string resume = "auto";
  std::vector<AllowedChange> allow_changes = {};
};

struct LoggingConfig {
  int64_t every = 10;
  std::string dir;
  bool tensorboard = true;
  std::string prometheus = {};  // a file; empty: none
  int64_t fp8_stats_every = 0;
};

// When and how much to validate; the datasets are data.validation.
struct ValidationConfig {
  int64_t every = 500;
  int64_t batches = 20;
};

enum class DeviceChoice : uint8_t { kAuto, kCpu, kCuda };

struct Config {
  std::string source;  // where it was read from, for messages

  // The shape, preset and fields merged. head_dim is hidden_size / num_heads unless given, with a preset too;
  // num_kv_heads is the preset's, or num_heads without one.
  ModelConfig model;
  std::string preset;                     // model.preset; empty when not given
  std::vector<std::string> model_fields;  // the fields of `model` that the config states: all of them with a preset
  std::string init_from;                  // model.init_from; empty when not given

  DataConfig data;
  TrainingConfig training;
  OptimizerConfig optimizer;
  PrecisionConfig precision;
  PrecisionGuardConfig precision_guard;
  bool compute_given = false;  // whether precision.compute was; otherwise resolve_device sets it
  ParallelConfig parallel;
  ActivationCheckpointing activation_checkpointing;
  CheckpointConfig checkpoint;
  LoggingConfig logging;
  ValidationConfig validation;
  DeviceChoice device = DeviceChoice::kAuto;

  // Whether a preset or any field of the shape was given.
  bool model_given() const { return !model_fields.empty(); }
  // Whether the shape is known; without it, it must come from init_from (adopt_model).
  bool model_complete() const;
};

// Reads a config and checks every key by itself: unknown keys, types, ranges, choices. An override replaces the file's
// value of its key (a map is merged key by key), the last one wins. null or an empty value means the default, but
// `model.rope_scaling: null` (or none) removes the preset's scaling.
Config load_config(const std::string& path, std::span<const std::string> overrides = {});

// The same from to_json's JSON, whose every value comes back unchanged; `source` names it in messages.
Config config_from_json(const nlohmann::json& json, const std::string& source = "the recorded config",
                        std::span<const std::string> overrides = {});

// Every key with its resolved value, in the config's own layout.
nlohmann::json to_json(const Config& config);
// The same as a YAML config that load_config reads.
std::string to_yaml(const Config& config);

}  // namespace octavo
