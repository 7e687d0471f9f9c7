// The keys of the config, each described once. What reads, writes, checks and documents a config goes over this table.
// A new key is a member of a struct and a line here.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/config/config_node.h"

namespace octavo {

// How it is seen whether a change of a key that computes changes what a resumed run computes.
enum class Compared : uint8_t {
  kByValue,   // by the values alone
  kByEffect,  // by what the values amount to: the files of the data, the steps of the schedule
  kAtStart    // not at all, as the key decides only what a run starts from
};

struct ConfigKey {
  std::string name;      // in full: "training.steps"
  std::string expected;  // type and range, or choices; completes "expected ..."
  std::string fallback;  // what holds where the key is not given, as YAML or in words
  std::string unit;      // empty: none
  std::string sentence;  // Description.
  KeyClass key_class = KeyClass::kCarriesOut;
  Compared compared = Compared::kByValue;
  std::vector<std::string> item_keys = {};  // of the maps in the list that the value is

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

  // Takes the value of a key that is written; false where it is none that is expected.
  std::function<bool(const ConfigNode& found, Config& config)> read = {};
  // Nothing where the config does not say: a shape that is still to be read from model.init_from.
  std::function<std::optional<nlohmann::ordered_json>(const Config& config)> write = {};

  // Its part before the key itself; empty for a key of the whole config.
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

// In the order in which they are read, written and documented: section by section.
const std::vector<ConfigKey>& config_keys();

}  // namespace octavo
