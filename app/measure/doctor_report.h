// Formats the results of `octavo doctor`.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "app/measure/doctor_checks.h"
#include "app/plan/machine_rates.h"

namespace octavo {

// Range of one measured rate over all ranks.
struct RateSpread {
  std::string name;
  std::string unit;  // Either FLOP/s or B/s.
  double slowest = 0;
  double fastest = 0;
  int slowest_rank = 0;
  int fastest_rank = 0;
};
// Returns the range of each rate. All ranks, given in rank order, must have measured the same rates.
std::vector<RateSpread> spreads(std::span<const MachineRates> ranks);

struct DoctorReport {
  std::vector<RankFacts> ranks;
  std::vector<Finding> findings;
  std::vector<MachineRates> rates;  // Rates by rank. Empty if measuring failed.

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
