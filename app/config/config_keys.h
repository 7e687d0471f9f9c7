// The table of config keys. Reading, writing, checking and documenting a config all use this table. Adding a key takes
// a member of a struct and one line of the table.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/config/config_node.h"

namespace octavo {

// How a resumed run decides whether a changed key changes its results. Only used for keys whose computes() is true.
enum class Compared : uint8_t {
  kByValue,   // The values are compared.
  kByEffect,  // The effects are compared: the content of the token files, or the schedule's values at each step.
  kAtStart    // A change never matters, because the key only affects what a run starts from.
};

struct ConfigKey {
  std::string name;      // Full name, such as "training.steps".
  std::string expected;  // Type and range, or the choices. Completes the message "expected ...".
  std::string fallback;  // Default value, as YAML or in words.
  std::string unit;      // Unit of the value, or empty.
  std::string sentence;  // Description for the documentation.
  KeyClass key_class = KeyClass::kCarriesOut;
  Compared compared = Compared::kByValue;
  std::vector<std::string> item_keys = {};  // Keys of each map if the value is a list of maps.

  bool computes() const { return key_class != KeyClass::kCarriesOut; }
  // Put the key into another class than that of its section, and return the key.
  ConfigKey& carries_out() {
    key_class = KeyClass::kCarriesOut;
    return *this;
  }
  ConfigKey& of_schedule() {
    key_class = KeyClass::kSchedule;
    compared = Compared::kByEffect;
    return *this;
  }

  // Reads a value into the config. Returns false if the value is not one of the expected ones.
  std::function<bool(const ConfigNode& found, Config& config)> read = {};
  // Returns the value in a config, or nothing if the value is not yet known because the model's shape is still to be
  // read from model.init_from.
  std::function<std::optional<nlohmann::ordered_json>(const Config& config)> write = {};

  // Returns the name of the key's section, or an empty text for a top-level key.
  std::string section() const { return name.substr(0, name.find('.') == std::string::npos ? 0 : name.find('.')); }
};

// Maximum number of steps of a run, and of every interval that is counted in steps.
inline constexpr int64_t kMaxSteps = 1'000'000'000;

// A key, or a value of a key, that earlier versions had. Checkpoints and dumped configs contain every key, so a retired
// key that has its old default is ignored.
struct RetiredKey {
  const char* section;
  const char* name;
  const char* old_default;      // Old default as YAML, for which the key is ignored. Empty for a retired value.
  const char* sentence;         // Reason why the key or value was removed, or what replaces it.
  const char* value = nullptr;  // Retired value of a key that still exists. Null if the whole key is retired.
};
inline constexpr RetiredKey kRetiredKeys[] = {
    {"optimizer", "decay", "linear", "optimizer.decay_type replaces it"},
    {"training", "check_every", "2000", "training.corruption_check_every replaces it"},
    {"logging", "links_every", "10", "slow links are not measured any more; logging.slow_rank_every finds slow ranks"},
    {"parallel", "cover_multiprocessors", "0", "no value was measurably faster than 0"},
    {"parallel", "overlap_multiprocessors", "0", "no value was measurably faster than 0"},
    {"parallel", "tensor_parallel_chunks", "1", "one chunk is fastest"},
    {"parallel", "nccl_max_ctas", "0", "NCCL reads its environment variable NCCL_MAX_CTAS"},
    {"parallel", "nccl_memory", "", "it was no faster than registered, which replaces it", "copy_engine"},
};

// Returns all keys in the order in which they are read, written and documented, section by section.
const std::vector<ConfigKey>& config_keys();

}  // namespace octavo
