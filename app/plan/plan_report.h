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
  std::string mesh_reason;        // Reason for the mesh, if the config leaves it open.
  std::string advice;             // Overrides of the config that are faster, or that make it fit. May be empty.
  double advice_wps = 0;          // Speed with the advice, if it is faster.
  std::vector<Plan> found;        // Plans found by --search.
  double price_per_gpu_hour = 0;  // Price in dollars. 0 means that no price was given.
  FailureRates failures;
};

nlohmann::ordered_json plan_json(const PlanReport& report);
// Print to standard output. `all` prints every item of the memory and of the step, not only the largest.
void print_plan(const PlanReport& report, bool all);
void print_search(const PlanReport& report);

}  // namespace octavo
