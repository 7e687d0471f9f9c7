// The checks and the report of `octavo doctor`. The checks are pure functions from the facts of each rank to sentences,
// so that tests do not need a broken machine.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "app/measure/doctor_facts.h"
#include "app/predict/machine_rates.h"

namespace octavo {

struct Finding {
  bool prevents_training = false;  // Whether the problem prevents training. Otherwise it is a warning.
  std::string text;                // One sentence that says what was found, where, and what to do.
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Finding, prevents_training, text)

// Returns the problems of all ranks. `ranks` has every rank of the run, in order. A problem of a host is returned once.
std::vector<Finding> find_problems(std::span<const RankFacts> ranks);

// Returns whether every rank has a GPU that this program supports, so that rates are measured on GPUs.
bool all_have_gpus(std::span<const RankFacts> ranks);
// Returns whether two ranks use the same GPU, which NCCL refuses.
bool any_share_a_gpu(std::span<const RankFacts> ranks);
// Returns the number of hosts that the ranks are on.
int count_hosts(std::span<const RankFacts> ranks);

struct DoctorReport {
  std::vector<RankFacts> ranks;
  std::vector<Finding> findings = {};
  std::vector<MachineRates> rates = {};  // Rates by rank. Empty if measuring failed.

  // Returns whether no finding prevents training.
  bool is_ok() const;
};

// Returns {ok, findings: [{prevents_training, text}], ranks: [facts], rates: [{name, unit, slowest, slowest_rank,
// fastest, fastest_rank}], machine: the machine file, or null}.
nlohmann::ordered_json to_json(const DoctorReport& report);

// Prints the whole report to standard output.
void print_report(const DoctorReport& report);
// Prints only the findings and the verdict to standard output.
void print_findings(const DoctorReport& report);

}  // namespace octavo
