// The combinations of `octavo bench --sweep KEY=V1,V2 ...`.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace octavo {

struct SweepAxis {
  std::string name;  // as given: a short name or a config key
  std::string key;   // the config key, section.key
  std::vector<std::string> values;
};

// One axis an argument; short names are micro_batch_size, seq_len and linear. Throws InputError naming the argument
// that is none, that comes twice, or that the sweep sets itself (training.global_batch_size).
std::vector<SweepAxis> parse_sweep(std::span<const std::string> arguments);

// Every choice of one value an axis; the last axis changes fastest.
std::vector<std::vector<std::string>> combinations(const std::vector<SweepAxis>& axes);

}  // namespace octavo
