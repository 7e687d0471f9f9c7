// Chart: lines over steps as an SVG that needs no script, and the same as JSON for the page's script, which zooms and
// says values (app/report/page_assets.h).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "app/report/run_events.h"
#include "app/report/series.h"

namespace octavo {

enum class LineStyle : uint8_t {
  kLine,
  kFaint,   // what another line is the mean of
  kPoints,  // few values: line and dots
  kDashed,  // the same, beside a line of the same color
};

struct ChartSeries {
  std::string label = {};  // empty: not in the legend
  size_t color = 0;        // kColors take turns
  LineStyle style = LineStyle::kLine;
  Series points = {};
};

// What is marked over all charts: a line at a step, or a tick on its axis.
struct ChartMark {
  EventKind kind = EventKind::kNote;
  double x = 0;
  std::string text;
};

struct Chart {
  std::string id = {};  // of the element; letters, digits and -
  std::string title = {};
  std::string unit = {};  // of y; empty: a plain number
  std::string note = {};  // a sentence below the title
  std::vector<ChartSeries> series = {};
  bool logarithmic = false;  // y: of values above 0 alone
  bool from_zero = false;    // the axis of y includes 0
  bool crops = false;        // the axis of y fits what comes after the first kCropped of the steps, as of losses
  bool wide = false;         // as wide as the page

  bool has_points() const;
};

inline constexpr size_t kColors = 8;
inline constexpr double kCropped = 0.06;
// Points of a line that are drawn.
inline constexpr size_t kChartPoints = 2000;

// The figure: title, legend, SVG. Series are decimated to kChartPoints. `last_x`: where the axis of x ends, the same of
// all charts of a page.
std::string chart_figure(const Chart& chart, const std::vector<ChartMark>& marks, double last_x);
// {id, unit, log, zero, series: [{label, color, style, x: [...], y: [...]}]}, decimated alike.
nlohmann::ordered_json chart_json(const Chart& chart);

// Ticks at 1, 2 or 5 times a power of ten, about `count` within [least, most].
std::vector<double> nice_ticks(double least, double most, int count);
// At powers of ten, and at 2 and 5 times these where those are few.
std::vector<double> log_ticks(double least, double most);

}  // namespace octavo
