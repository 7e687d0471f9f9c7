// The page of `octavo report`: one HTML file that loads nothing, with charts of one or several runs, their events, and
// their configs side by side.
#pragma once

#include <span>
#include <string>

#include "app/report/run_records.h"
#include "core/files/output_file.h"

namespace octavo {

inline constexpr OutputKind kReportPage{"a page of octavo report", " - octavo report</title>"};

// Of one run a chart has a line a dataset (or kind of tensor); of several, a line a run, and a chart a dataset. Several
// runs also have their losses' gaps to the first's.
std::string report_page(std::span<const RunRecords> runs);

}  // namespace octavo
