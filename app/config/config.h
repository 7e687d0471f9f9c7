// The whole config of a run (docs: the Config section of the design): every section, resolved, with its defaults.
//
// A YAML file plus `section.key=value` overrides becomes a Config in two steps, so that each can fail on its own:
//   load_config       reads and checks every key by itself: unknown keys, types, ranges, enumerations
//   validate          checks the keys against each other and against the number of ranks
// and, once the device is known, resolve_device. All throw InputError naming the key, what was found and what was
// expected. Relative paths in a config are relative to the current directory.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/stream.h"
#include "data/config.h"
#include "model/activation_checkpointing.h"
#include "model/config.h"
#include "model/precision.h"
#include "model/schedule.h"
#include "parallel/config.h"

namespace octavo {

inline constexpr int64_t kMaxSeqLen = 1 << 24;

struct TrainingConfig {
  int64_t steps = 2000;             // optimizer steps of the whole run, restarts included
  int64_t global_batch_size = 128;  // sequences a step, over all ranks
  int64_t micro_batch_size = 1;     // sequences a rank and forward pass; the rest of the batch is accumulated
  uint64_t seed = 42;               // of the initial weights
  bool deterministic = false;       // bitwise the same run twice on a GPU too, at some cost in speed
};

struct CheckpointConfig {
  std::string dir = "checkpoints";  // holds step_00000500/ and so on
  int64_t every = 500;              // steps between checkpoints; 0: only at the end and when stopped by a signal
  int64_t keep = 3;                 // newest checkpoints kept; 0: all
  bool async = true;                // written by a thread while training goes on
  std::string resume = "auto";      // auto: the newest complete one of dir, if any; never; or a checkpoint's path
};

struct LoggingConfig {
  int64_t every = 10;           // steps between logged steps
  std::string dir;              // of metrics.jsonl and TensorBoard events; default runs/<config file's stem>
  bool tensorboard = true;      // write TensorBoard event files
  int64_t fp8_stats_every = 0;  // steps between statistics of the FP8 casts, which are logged steps; 0: none
};

// When and how much to validate; the datasets are data.validation.
struct ValidationConfig {
  int64_t every = 500;   // steps between validations; 0: never
  int64_t batches = 20;  // global batches of one validation
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

// Reads a config. An override replaces the file's value of its key (a map is merged key by key), the last one wins.
// null or an empty value means the default, but `model.rope_scaling: null` (or none) removes the preset's scaling.
Config load_config(const std::string& path, std::span<const std::string> overrides = {});

// The same from to_json's JSON, whose every value comes back unchanged; `source` names it in messages.
Config config_from_json(const nlohmann::json& json, const std::string& source = "the recorded config");

// What the command needs of the datasets.
enum class Purpose : uint8_t { kTrain, kEvaluate, kSynthetic };

// Checks the keys against each other for a run on `ranks` ranks. The model is checked when its shape is complete; while
// it is not, init_from must be given, and validate is called again after adopt_model.
void validate(const Config& config, int64_t ranks, Purpose purpose = Purpose::kTrain);

// Refuses a GPU that this program has no kernels for, naming what the recipe needs and what would work instead.
void check_gpu(const GpuInfo& gpu, LinearPrecision linear);
inline bool has_kernels_for(const GpuInfo& gpu) { return gpu.compute_major == 9 && gpu.compute_minor == 0; }

// Takes the shape of the weights in init_from. Throws InputError naming the first field that the config states
// otherwise.
void adopt_model(Config& config, const ModelConfig& from_weights);

// Sets precision.compute to the device's default (bfloat16 on a GPU, float32 on the CPU) where it was not given;
// refuses what the device has no kernels for. Sets `device` to the one that runs.
void resolve_device(Config& config, Device device);

// What the linears of a resolved config multiply in: an FP8 recipe, or without one the compute dtype.
std::string linear_precision(const Config& config);

// Every key with its resolved value, in the config's own layout.
nlohmann::json to_json(const Config& config);
// The same as a YAML config that load_config reads.
std::string to_yaml(const Config& config);
// The model section's shape alone, keys as in the config.
nlohmann::ordered_json model_to_json(const ModelConfig& model);

}  // namespace octavo
