// The page of `octavo plan --html`: the memory of a rank over the time of a step, as one HTML file that loads nothing.
#pragma once

#include <string>

#include "app/plan/plan_search.h"
#include "app/plan/step_timeline.h"
#include "core/files/output_file.h"

namespace octavo {

inline constexpr OutputKind kMemoryPage{"a page of octavo plan", " - octavo plan</title>"};

// From bottom to top a band for each item of the plan, as high as its bytes: pale where it is reserved, full where its
// contents are needed, by when blocks run. Tensors of a name and many blocks lie in rows of their block. What is needed
// for a block alone is drawn over all of them, and small items are one band.
std::string memory_page(const Plan& plan, const StepTimeline& timeline);

}  // namespace octavo
