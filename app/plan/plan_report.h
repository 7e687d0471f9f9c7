// What `octavo plan` prints: one JSON object, and the text made from it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/plan/plan_search.h"

namespace octavo {

struct PlanReport {
  Plan plan;
  std::string advice;       // overrides of the config that are faster, or that make it fit; or empty
  double advice_wps = 0;    // with them, where they are faster
  std::vector<Plan> found;  // of --search
  double price = 0;         // dollars of a GPU hour; 0: not asked
};

// Published throughput of a set-up of the PyTorch float8 work, and what is predicted for it.
struct PublishedSetup {
  std::string preset;
  int64_t gpus = 1;
  int64_t tensor = 1;
  double wps = 0;  // published
};
const std::vector<PublishedSetup>& published_setups();

nlohmann::ordered_json plan_json(const PlanReport& report, const PlanTarget& target);
// To standard output.
void print_plan(const nlohmann::ordered_json& report);
void print_search(const nlohmann::ordered_json& report);
void print_published(const nlohmann::ordered_json& rows);

}  // namespace octavo
