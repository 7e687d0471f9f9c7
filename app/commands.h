// The subcommands of octavo; main() parses the command line and calls one. Each returns the process's exit code or
// throws.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/measure/bench_sweep.h"
#include "app/run/exit_codes.h"
#include "app/run/run_config.h"
#include "app/run/startup_timer.h"
#include "parallel/process_group.h"

namespace octavo {

// `timer` runs since the launch.
int train_command(const ConfigArguments& arguments, ProcessGroup& group, StartupTimer& timer);
int evaluate_command(const ConfigArguments& arguments, ProcessGroup& group);

int bench_command(const BenchArguments& arguments, ProcessGroup& group);

struct DoctorArguments {
  bool json = false;
  std::string save;        // machine file to write (app/plan/machine_rates.h); empty: none
  std::string disk = ".";  // directory whose write speed is measured
};
int doctor_command(const DoctorArguments& arguments, ProcessGroup& group);

struct PlanArguments {
  ConfigArguments config;
  int64_t gpus = 0;              // ranks; 0: as many as the config's mesh states
  std::string gpu_memory;        // "80GiB"; empty: the machine's
  std::string machine = "h200";  // a name of machines/, or a machine file
  int64_t gpus_per_node = 8;
  double network_gbps = 400;
  double network_latency_us = 10;
  bool search = false;
  bool published = false;
  double price = 0;  // dollars of a GPU hour; 0: not asked
  bool json = false;
};
int plan_command(const PlanArguments& arguments, ProcessGroup& group);

struct ConfigCommandArguments {
  ConfigArguments config;  // whose values are printed; an empty path: the keys that there are
  bool markdown = false;   // the keys, as docs/config.md
};
int config_command(const ConfigCommandArguments& arguments);

struct GenerateArguments {
  std::string checkpoint;
  std::string prompt;
  int64_t max_tokens = 256;
  double temperature = 0.8;  // 0: always the most likely token
  int64_t top_k = 0;         // sample among the k most likely; 0: all
  double top_p = 1.0;        // sample among the most likely that make up this probability
  uint64_t seed = 0;
  std::string device = "auto";
};
int generate_command(const GenerateArguments& arguments, ProcessGroup& group);

struct InspectArguments {
  std::string target;   // token file, checkpoint, or config with samples
  std::string samples;  // "A:B"
  std::vector<std::string> overrides;
};
int inspect_command(const InspectArguments& arguments);

}  // namespace octavo
