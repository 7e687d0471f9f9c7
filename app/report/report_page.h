// The page of `octavo report`: charts of one or several runs, their events, and their configs alongside each other.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "app/report/run_records.h"
#include "core/files/output_file.h"

namespace octavo {

inline constexpr OutputKind kReportPage{"a page of octavo report", " - octavo report</title>"};

// Number of points of a line that are drawn, and of events of each kind that the page has of a run, at most.
inline constexpr size_t kMaxPoints = 2000;
inline constexpr size_t kMaxEvents = 200;

std::string report_page(std::span<const RunRecords> runs);

// Returns what the page shows: {charts, runs}. Which metrics have charts is a table. A run has the decimated points of
// these metrics, the mean of those that are smoothed, and, after the first run, the relative gaps of its losses to
// those of the first.
nlohmann::json report_document(std::span<const RunRecords> runs);

}  // namespace octavo
