// Formats the results of `octavo plan` as text and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/plan/plan_search.h"

namespace octavo {

struct PlanReport {
  const PlanTarget& target;
  Plan plan;
  // Overrides of the config that make the step faster, or make the config fit into memory. Empty if there are none.
  std::string advice = {};
  double advice_wps = 0;         // Tokens per second and GPU with the advice. 0 if the advice is about memory.
  std::vector<Plan> found = {};  // Plans found by --search.
};

nlohmann::ordered_json plan_json(const PlanReport& report);
// Prints the plan to standard output. `all` prints every item of memory and of the step, not only the largest.
void print_plan(const PlanReport& report, bool all);
// Prints the plans that --search found to standard output.
void print_search(const PlanReport& report);

}  // namespace octavo
