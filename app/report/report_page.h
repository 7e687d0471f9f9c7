// The page of `octavo report`. It shows charts of one or several runs, their events, and their configs side by side.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "app/report/run_records.h"
#include "core/files/output_file.h"

namespace octavo {

inline constexpr OutputKind kReportPage{"a page of octavo report", " - octavo report</title>"};

// Maximum number of points per line, and maximum number of events of each kind per run.
inline constexpr size_t kMaxPoints = 2000;
inline constexpr size_t kMaxEvents = 200;

// Returns the page. If `reload_s` is not 0, the page loads itself again every `reload_s` seconds.
std::string report_page(std::span<const RunRecords> runs, int64_t reload_s = 0);

// Returns the data of the page: {charts, runs, reload_s}. kMetrics determines which metrics have charts. Each run has
// the decimated points of these metrics and the smoothed values of some, and its tokens and seconds of wall time by
// step as x axes. Each run after the first also has the relative difference of its losses from those of the first run.
nlohmann::json report_document(std::span<const RunRecords> runs, int64_t reload_s = 0);

}  // namespace octavo
