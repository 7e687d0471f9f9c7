// The page of `octavo plan --html`: the memory of a rank over the time of a step, as one HTML file that loads nothing.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "app/plan/plan_search.h"
#include "app/plan/step_clock.h"
#include "core/files/output_file.h"

namespace octavo {

inline constexpr OutputKind kMemoryPage{"a page of octavo plan", " - octavo plan</title>"};

std::string memory_page(const Plan& plan, const StepTimeline& timeline);

// Returns what the page shows: the items of the plan with what they hold and which blocks have them, and the predicted
// times of the step's ranges, from which the page's script tells when each item is needed.
nlohmann::json memory_document(const Plan& plan, const StepTimeline& timeline);

}  // namespace octavo
