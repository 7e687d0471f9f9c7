// The report of `octavo doctor`.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "app/measure/doctor_checks.h"
#include "app/plan/machine_rates.h"

namespace octavo {

// One rate over all ranks.
struct RateSpread {
  std::string name;
  std::string unit;  // FLOP/s or B/s.
  double slowest = 0;
  double fastest = 0;
  int slowest_rank = 0;
  int fastest_rank = 0;
};
// Returns the spread of each rate of ranks that measured the same things, given in rank order.
std::vector<RateSpread> spreads(std::span<const MachineRates> ranks);

struct DoctorReport {
  std::vector<RankFacts> ranks;
  std::vector<Finding> findings;
  std::vector<MachineRates> rates;  // One element per rank. Empty if measuring failed.

  // Returns whether nothing prevents training.
  bool is_ok() const;
};

// Returns {ok, findings: [{hinders, text}], ranks: [facts], rates: [{name, unit, slowest, slowest_rank, fastest,
// fastest_rank}], machine: the machine file, or null}.
nlohmann::ordered_json to_json(const DoctorReport& report);

// Print to standard output: the whole report, and only the findings and the verdict.
void print_report(const DoctorReport& report);
void print_findings(const DoctorReport& report);

}  // namespace octavo
