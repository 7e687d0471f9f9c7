// The output of `octavo plan`, as text and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/plan/failures.h"
#include "app/plan/plan_search.h"

namespace octavo {

struct PlanReport {
  const PlanTarget& target;
  Plan plan;
  std::string mesh_reason;        // why its mesh is that one, where the config leaves it
  std::string advice;             // overrides of the config that are faster, or that make it fit; or empty
  double advice_wps = 0;          // with them, where they are faster
  std::vector<Plan> found;        // of --search
  double price_per_gpu_hour = 0;  // dollars; 0: not asked
  FailureRates failures;
};

nlohmann::ordered_json plan_json(const PlanReport& report);
// Print to standard output. `all`: every item of the memory and of the step, not the largest alone.
void print_plan(const PlanReport& report, bool all);
void print_search(const PlanReport& report);

}  // namespace octavo
