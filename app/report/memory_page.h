// The page of `octavo plan --html`. It shows the memory of a rank over the time of a step, as one HTML file that loads
// no other files.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "app/plan/plan_search.h"
#include "app/plan/step_clock.h"
#include "core/files/output_file.h"

namespace octavo {

inline constexpr OutputKind kMemoryPage{"a page of octavo plan", " - octavo plan</title>"};

std::string memory_page(const Plan& plan, const StepTimeline& timeline);

// Returns the data of the page: the items of the plan with their contents and blocks, and the predicted times of the
// step's ranges. The page's script derives from them when each item is needed.
nlohmann::json memory_document(const Plan& plan, const StepTimeline& timeline);

}  // namespace octavo
