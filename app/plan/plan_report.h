// What `octavo plan` prints: one JSON object, and the text made from it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/plan/failures.h"
#include "app/plan/plan_search.h"

namespace octavo {

struct PlanReport {
  Plan plan;
  std::string mesh_reason;        // why its mesh is that one, where the config leaves it
  std::string advice;             // overrides of the config that are faster, or that make it fit; or empty
  double advice_wps = 0;          // with them, where they are faster
  std::vector<Plan> found;        // of --search
  double price_per_gpu_hour = 0;  // dollars; 0: not asked
  FailureRates failures;
};

nlohmann::ordered_json plan_json(const PlanReport& report, const PlanTarget& target);
// To standard output.
// `all`: every item of the memory and of the step, not the largest alone.
void print_plan(const nlohmann::ordered_json& report, bool all);
void print_search(const nlohmann::ordered_json& report);

}  // namespace octavo
