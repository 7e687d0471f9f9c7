// Which charts a report has, and what is marked in them.
#pragma once

#include <span>
#include <vector>

#include "app/report/chart.h"
#include "app/report/run_records.h"

namespace octavo {

// Those for which any of the runs has values.
std::vector<Chart> report_charts(std::span<const RunRecords> runs);

// Restarts, checkpoints, skipped steps, set-backs and warnings whose step is known, those of each kind so many at most.
std::vector<ChartMark> report_marks(std::span<const RunRecords> runs);

inline constexpr size_t kMaxMarks = 150;

}  // namespace octavo
