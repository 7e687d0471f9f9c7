// The combinations of `octavo bench --sweep KEY=V1,V2 ...`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "app/run/run_config.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

struct BenchArguments {
  ConfigArguments config;
  int64_t warmup = 3;      // steps before the clock starts
  int64_t steps = 10;      // timed steps; the median counts
  bool ops = false;        // every op beside its floor
  bool energy = false;     // power, clock and joules a token; with ops of each
  std::string trace = {};  // file for a trace of one step more; empty: none
  // KEY=V1,V2,...: runs every combination. KEY is micro_batch_size, seq_len, linear or a config key section.key.
  std::vector<std::string> sweep;
  bool data = false;
  bool json = false;
};

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

// Runs every combination of arguments.sweep and prints what each reached.
int bench_sweep_command(const BenchArguments& arguments, ProcessGroup& group);

}  // namespace octavo
