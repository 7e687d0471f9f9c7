// The subcommands of octavo; main() parses the command line and calls one. Each returns the process's exit code or
// throws.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/plan/failures.h"
#include "app/plan/plan_search.h"
#include "app/process/console.h"
#include "app/process/exit_codes.h"
#include "app/process/startup_timer.h"
#include "app/run/run_config.h"
#include "app/text/sampling.h"
#include "data/tokens/pack.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

// `timer` runs since the launch; `console` is where the log goes.
int train_command(const ConfigArguments& arguments, ProcessGroup& group, StartupTimer& timer, Console& console);

struct EvaluateArguments {
  ConfigArguments config;
  bool ema = false;  // the moving average of the weights
};
int evaluate_command(const EvaluateArguments& arguments, ProcessGroup& group);

struct BenchArguments {
  ConfigArguments config;
  int64_t warmup = 3;      // steps before the clock starts
  int64_t steps = 10;      // timed steps; the median counts
  bool ops = false;        // every op compared with its floor
  bool energy = false;     // power, clock and joules per token
  std::string trace = {};  // file for a trace of one more step; empty: none
  bool data = false;       // the loader alone
  bool json = false;
};
int bench_command(const BenchArguments& arguments, ProcessGroup& group);

struct DoctorArguments {
  bool json = false;
  bool quick = false;      // what can be known without measuring
  int ranks_per_node = 0;  // of a run to come, one GPU each; 0: not said
  std::string save;        // machine file to write (app/plan/machine_rates.h); empty: none
  std::string disk = ".";  // directory whose write speed is measured; with quick, that is or can be made
};
int doctor_command(const DoctorArguments& arguments, ProcessGroup& group);

struct PlanArguments {
  ConfigArguments config;
  int64_t gpus = 0;        // ranks; 0: plan.gpus
  std::string gpu_memory;  // "80GiB"; empty: the machine's
  std::string machine;     // a name of machines/, or a machine file; empty: plan.machine
  int64_t gpus_per_node = 8;
  double network_gbps = 400;
  double network_latency_us = 14;
  double network_oversubscription = 0;  // 0: the machine's
  FailureRates failures;
  bool search = false;
  double price_per_gpu_hour = 0;  // dollars; 0: not asked
  bool all = false;               // every item, not the largest alone
  std::string html;               // file for a picture of the memory; empty: none
  bool json = false;
};
int plan_command(const PlanArguments& arguments, ProcessGroup& group);
// Returns the ranks, device and machine that the arguments and the config name.
PlanTarget find_target(const PlanArguments& arguments, const Config& config, ProcessGroup& group);

// `octavo train --dry-run`: checks what a run of the config needs, prints its start screen and what it would resume,
// and writes nothing. Needs neither GPUs nor ranks.
int dry_run_command(const PlanArguments& arguments, ProcessGroup& group);

struct ConfigCommandArguments {
  ConfigArguments config;  // whose values are printed; an empty path: the keys that there are
  bool markdown = false;   // the keys, as docs/config.md
  std::string value;       // name of the key whose value alone is printed; empty: all
};
int config_command(const ConfigCommandArguments& arguments);

struct GenerateArguments {
  std::string model;  // app/process/model_path.h
  std::string prompt;
  int64_t max_tokens = 256;
  int64_t samples = 1;
  SamplingOptions sampling;
  std::vector<std::string> stop;  // texts that end a sample, and are not part of it
  uint64_t seed = 0;              // of the first sample; the others' follow
  std::string device = "auto";
  bool ema = false;  // the moving average of the weights
};
// Prints the text as it grows, and on standard error how fast.
int generate_command(const GenerateArguments& arguments, ProcessGroup& group);

// Token files of text, by the byte tokenizer; says what was made and what was left out.
int pack_command(const PackOptions& options);

struct ImportArguments {
  std::string hf_dir;
  std::string checkpoint;  // to be made
  bool overwrite = false;  // replace a checkpoint that was not imported
};
int import_command(const ImportArguments& arguments);

struct ExportArguments {
  std::string model;               // app/process/model_path.h
  std::string hf_dir;              // to be made
  std::string dtype = "float32";   // or bfloat16
  std::string shard_size = "5GB";  // of the tensors in a file
  bool overwrite = false;          // replace a model that is not an earlier export
  bool ema = false;                // the moving average of the weights
};
int export_command(const ExportArguments& arguments);

struct ReportArguments {
  std::vector<std::string> runs;  // logging.dir of each
  std::string output;
};
int report_command(const ReportArguments& arguments);

struct InspectArguments {
  std::string target;   // token file, model (app/process/model_path.h), run, or config with samples
  std::string samples;  // "A:B"
  std::vector<std::string> overrides;
  bool json = false;  // print JSON for a run on a terminal as well
};
int inspect_command(const InspectArguments& arguments);

}  // namespace octavo
