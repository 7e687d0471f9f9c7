// Makes pages, each a single HTML file that loads no other files. template.html, style.css and the scripts of this
// folder are embedded in the program. A page consists of them and of one JSON document, from which the scripts create
// everything that the page shows.
#pragma once

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "app/plan/plan_search.h"
#include "app/predict/step_clock.h"
#include "app/report/comparison.h"
#include "app/report/run_records.h"
#include "core/files/output_file.h"

namespace octavo {

// Returns the page with the embedded `scripts`, in order. Texts in `document` can neither become markup nor end the
// element that contains them. Invalid UTF-8 becomes replacement characters, and numbers that are not finite become
// null.
std::string html_page(const char* title, std::initializer_list<const char*> scripts, const nlohmann::json& document);

inline constexpr OutputKind kMemoryPage{"a page of octavo plan", " - octavo plan</title>"};

// Returns the page of `octavo plan --html`. It shows the memory of a rank over the time of a step.
std::string memory_page(const Plan& plan, const StepTimeline& timeline);

inline constexpr OutputKind kReportPage{"a page of octavo report", " - octavo report</title>"};
inline constexpr OutputKind kReportTable{"a table of octavo report", kComparisonHead};

// Maximum number of points per line, and maximum number of events of each kind per run.
inline constexpr size_t kMaxPoints = 2000;
inline constexpr size_t kMaxEvents = 200;

// Returns the page of `octavo report`. It shows charts with a line per group of runs, the events of the runs, and their
// configs side by side. If `reload_s` is not 0, the page loads itself again every `reload_s` seconds.
std::string report_page(std::span<const RunRecords> runs, std::span<const RunGroup> groups, int64_t reload_s = 0);

// Returns the data of the page: {charts, runs, lines, reload_s}. kMetrics determines which metrics have charts. Each
// run has its tokens and seconds of wall time by step as x axes. Each line has a name, the indices of its runs and the
// decimated points of its metrics. Some metrics also have smoothed values. A line of several runs also has their band
// (band_of). Each line after the first has the relative difference of its losses from those of the first line.
nlohmann::json report_document(std::span<const RunRecords> runs, std::span<const RunGroup> groups,
                               int64_t reload_s = 0);

}  // namespace octavo
