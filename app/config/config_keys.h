// The keys of the config, each described once. Reading, writing, checking and documenting a config use this table. A
// new key is a member of a struct and a line here.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/config/config_node.h"

namespace octavo {

// How to decide whether a change of a key that computes changes what a resumed run computes.
enum class Compared : uint8_t {
  kByValue,   // By comparing the values.
  kByEffect,  // By comparing their effects: the files of the data, the steps of the schedule.
  kAtStart    // Never, because the key only decides what a run starts from.
};

struct ConfigKey {
  std::string name;      // Full name: "training.steps".
  std::string expected;  // Type and range, or choices. Completes "expected ...".
  std::string fallback;  // Value if the key is not given, as YAML or in words.
  std::string unit;      // Empty if there is no unit.
  std::string sentence;  // Description.
  KeyClass key_class = KeyClass::kCarriesOut;
  Compared compared = Compared::kByValue;
  std::vector<std::string> item_keys = {};  // Keys of the maps in the list that is the value.

  bool computes() const { return key_class != KeyClass::kCarriesOut; }
  // Sets the class of a key that differs from the class of its section.
  ConfigKey& carries_out() {
    key_class = KeyClass::kCarriesOut;
    return *this;
  }
  ConfigKey& of_schedule() {
    key_class = KeyClass::kSchedule;
    compared = Compared::kByEffect;
    return *this;
  }

  // Reads a value. Returns false if it is not an expected one.
  std::function<bool(const ConfigNode& found, Config& config)> read = {};
  // Returns nothing if the config does not know the value: a shape that is still to be read from model.init_from.
  std::function<std::optional<nlohmann::ordered_json>(const Config& config)> write = {};

  // Returns the part before the key itself. Empty for a key of the whole config.
  std::string section() const { return name.substr(0, name.find('.') == std::string::npos ? 0 : name.find('.')); }
};

// Largest number of steps of a run, and of an interval in a run.
inline constexpr int64_t kMaxSteps = 1'000'000'000;

// A key of earlier versions, or a value that a key no longer has. Checkpoints and dumped configs contain every key, so
// a key with its old default is ignored.
struct RetiredKey {
  const char* section;
  const char* name;
  const char* old_default;      // The text that YAML writes for it. Empty if every value is refused.
  const char* sentence;         // Says why the key or the value is gone, or what replaces it.
  const char* value = nullptr;  // The only value that is retired; null if the whole key is.
};
inline constexpr RetiredKey kRetiredKeys[] = {
    {"data", "lanes", "", "samples are windows of whole datasets now"},
    {"logging", "links_every", "10", "slow links are not measured any more; logging.slow_rank_every finds slow ranks"},
    {"parallel", "nccl_max_ctas", "0", "NCCL reads its environment variable NCCL_MAX_CTAS"},
    {"parallel", "nccl_memory", "", "it was no faster than registered, which replaces it", "copy_engine"},
};

// The keys in the order in which they are read, written and documented, section by section.
const std::vector<ConfigKey>& config_keys();

}  // namespace octavo
