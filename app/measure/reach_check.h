// Whether the ranks reach each other, as far as training needs.
#pragma once

#include <span>

#include "app/measure/doctor_checks.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

// One small sum over all ranks, by NCCL where each has a GPU to itself and else by MPI. Error where it is wrong; where
// it does not come to an end, the watchdog ends the process. A collective.
void check_reach(std::span<const RankFacts> ranks, ProcessGroup& group);

}  // namespace octavo
