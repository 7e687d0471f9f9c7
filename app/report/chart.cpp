#include "app/report/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "app/report/html.h"
#include "core/error.h"

namespace octavo {

namespace {

// Of the SVG, in its units; the page's script knows them too.
constexpr double kHeight = 250;
constexpr double kWideHeight = 340;
constexpr double kWidth = 640;
constexpr double kWideWidth = 1310;
constexpr double kLeft = 62;
constexpr double kRight = 14;
constexpr double kTop = 12;
constexpr double kBottom = 36;
constexpr size_t kMaxDots = 120;

struct Range {
  double least = 0;
  double most = 1;
};

struct Plane {
  Range x, y;
  bool logarithmic = false;
  double width = kWidth;
  double height = kHeight;

  double at_x(double value) const { return kLeft + (value - x.least) / (x.most - x.least) * (width - kLeft - kRight); }
  double at_y(double value) const {
    const auto scaled = [this](double v) { return logarithmic ? std::log10(v) : v; };
    const double share = (scaled(value) - scaled(y.least)) / (scaled(y.most) - scaled(y.least));
    return height - kBottom - share * (height - kTop - kBottom);
  }
};

bool is_drawn(const Chart& chart, const Point& point) { return !chart.logarithmic || point.y > 0; }

// `begin`: what lies before it may be outside.
Range range_of(const Chart& chart, double begin) {
  Range range{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  for (const ChartSeries& series : chart.series) {
    for (const Point& point : series.points) {
      if (!is_drawn(chart, point) || point.x < begin) continue;
      range.least = std::min(range.least, point.y);
      range.most = std::max(range.most, point.y);
    }
  }
  if (range.least > range.most) return {1, 10};
  if (chart.logarithmic) return {range.least / 1.1, range.most * 1.1};
  if (chart.from_zero) {
    range.least = std::min(range.least, 0.0);
    range.most = std::max(range.most, 0.0);
  }
  double room = 0.04 * (range.most - range.least);
  if (room == 0) room = range.most == 0 ? 1 : 0.05 * std::abs(range.most);
  const bool stands_on_zero = chart.from_zero && range.least == 0;
  return {stands_on_zero ? 0 : range.least - room, range.most + room};
}

const char* style_class(LineStyle style) {
  if (style == LineStyle::kFaint) return " faint";
  return style == LineStyle::kDashed ? " dashed" : "";
}

std::string polyline(const Chart& chart, const ChartSeries& series, const Plane& plane) {
  std::string points;
  for (const Point& point : decimate(series.points, kChartPoints)) {
    if (is_drawn(chart, point)) points += fmt::format("{:.1f},{:.1f} ", plane.at_x(point.x), plane.at_y(point.y));
  }
  if (points.empty()) return "";
  points.pop_back();
  std::string svg = fmt::format("<polyline class=\"line s{}{}\" clip-path=\"url(#clip{})\" points=\"{}\"/>\n",
                                series.color % kColors, style_class(series.style), chart.wide ? "-wide" : "", points);
  const bool has_dots = series.style == LineStyle::kPoints || series.style == LineStyle::kDashed;
  const bool dotted = series.points.size() == 1 || (has_dots && series.points.size() <= kMaxDots);
  if (!dotted) return svg;
  for (const Point& point : series.points) {
    if (!is_drawn(chart, point) || point.y > plane.y.most) continue;
    svg += fmt::format("<circle class=\"dot s{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\"/>\n", series.color % kColors,
                       plane.at_x(point.x), plane.at_y(point.y));
  }
  return svg;
}

// Whole steps.
std::vector<double> step_ticks(const Range& range, int count) {
  return nice_ticks(range.least, range.most, std::max(1, std::min(count, static_cast<int>(range.most - range.least))));
}

std::string axes(const Chart& chart, const Plane& plane) {
  std::string svg = "<g class=\"axes\">\n";
  const double bottom = plane.height - kBottom;
  const double right = plane.width - kRight;
  const std::vector<double> ticks =
      plane.logarithmic ? log_ticks(plane.y.least, plane.y.most) : nice_ticks(plane.y.least, plane.y.most, 5);
  const double largest = std::max(std::abs(ticks.front()), std::abs(ticks.back()));
  for (const double tick : ticks) {
    const double y = plane.at_y(tick);
    svg += fmt::format("<line class=\"grid\" x1=\"{:.0f}\" x2=\"{:.0f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>", kLeft, right,
                       y, y);
    svg += fmt::format("<text class=\"tick\" text-anchor=\"end\" x=\"{:.0f}\" y=\"{:.1f}\">{}</text>\n", kLeft - 7,
                       y + 3.5, tick_label(tick, largest));
  }
  const std::vector<double> steps = step_ticks(plane.x, chart.wide ? 12 : 7);
  for (const double tick : steps) {
    const double x = plane.at_x(tick);
    svg += fmt::format("<line class=\"base\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.0f}\" y2=\"{:.0f}\"/>", x, x, bottom,
                       bottom + 4);
    svg += fmt::format("<text class=\"tick\" text-anchor=\"middle\" x=\"{:.1f}\" y=\"{:.0f}\">{}</text>\n", x,
                       bottom + 16, tick_label(tick, steps.back()));
  }
  svg += fmt::format("<line class=\"base\" x1=\"{:.0f}\" x2=\"{:.0f}\" y1=\"{:.0f}\" y2=\"{:.0f}\"/>\n", kLeft, right,
                     bottom, bottom);
  svg += fmt::format("<text class=\"axis\" text-anchor=\"middle\" x=\"{:.0f}\" y=\"{:.0f}\">step</text>\n",
                     (kLeft + right) / 2, plane.height - 4);
  if (!chart.unit.empty()) {
    svg += fmt::format(
        "<text class=\"axis\" text-anchor=\"middle\" transform=\"translate(13 {:.0f}) rotate(-90)\">{}</text>\n",
        (kTop + bottom) / 2, html_escape(chart.unit));
  }
  return svg + "</g>\n";
}

std::string marks_of(const std::vector<ChartMark>& marks, const Plane& plane) {
  std::string svg = "<g class=\"marks\">\n";
  const double bottom = plane.height - kBottom;
  for (const ChartMark& mark : marks) {
    const double x = plane.at_x(mark.x);
    const bool of_axis = mark.kind == EventKind::kCheckpoint;
    svg += fmt::format(
        "<line class=\"mark m{}\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.0f}\" y2=\"{:.0f}\"><title>{}</title></line>\n",
        static_cast<int>(mark.kind), x, x, of_axis ? bottom - 6 : kTop, bottom, html_escape(mark.text));
  }
  return svg + "</g>\n";
}

std::string legend(const Chart& chart) {
  std::string html;
  for (const ChartSeries& series : chart.series) {
    if (series.label.empty()) continue;
    html += fmt::format("<span class=\"key\"><i class=\"swatch s{}\"></i>{}</span>", series.color % kColors,
                        html_escape(series.label));
  }
  return html.empty() ? "" : "<div class=\"legend\">" + html + "</div>\n";
}

}  // namespace

bool Chart::has_points() const {
  return std::any_of(series.begin(), series.end(), [this](const ChartSeries& one) {
    return std::any_of(one.points.begin(), one.points.end(), [this](const Point& p) { return is_drawn(*this, p); });
  });
}

std::vector<double> nice_ticks(double least, double most, int count) {
  const double rough = (most - least) / count;
  if (!(rough > 0) || !std::isfinite(rough)) return {least};
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double factor = rough / power;
  const double step = power * (factor < 1.5 ? 1 : factor < 3.5 ? 2 : factor < 7.5 ? 5 : 10);
  std::vector<double> ticks;
  const auto first = static_cast<int64_t>(std::ceil(least / step - 1e-9));
  for (int64_t i = first; static_cast<double>(i) * step <= most + 1e-9 * step; ++i) {
    ticks.push_back(static_cast<double>(i) * step);
  }
  return ticks;
}

std::vector<double> log_ticks(double least, double most) {
  const bool few = std::log10(most / least) < 2.5;
  std::vector<double> ticks;
  for (double power = std::floor(std::log10(least)); power <= std::log10(most); ++power) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * std::pow(10.0, power);
      if ((factor == 1 || few) && tick >= least && tick <= most) ticks.push_back(tick);
    }
  }
  return ticks;
}

std::string chart_figure(const Chart& chart, const std::vector<ChartMark>& marks, double last_x) {
  Plane plane{.x = {0, std::max(last_x, 1.0)},
              .y = range_of(chart, chart.crops ? kCropped * last_x : 0),
              .logarithmic = chart.logarithmic};
  if (chart.wide) {
    plane.width = kWideWidth;
    plane.height = kWideHeight;
  }
  std::string html = fmt::format("<figure class=\"chart{}\" id=\"{}\">\n<figcaption><b>{}</b>{}</figcaption>\n",
                                 chart.wide ? " wide" : "", chart.id, html_escape(chart.title),
                                 chart.note.empty() ? "" : " <span>" + html_escape(chart.note) + "</span>");
  html += legend(chart);
  html += fmt::format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n", plane.width, plane.height,
                      html_escape(chart.title));
  html += axes(chart, plane) + marks_of(marks, plane) + "<g class=\"lines\">\n";
  for (const ChartSeries& series : chart.series) html += polyline(chart, series, plane);
  return html + "</g>\n</svg>\n</figure>\n";
}

nlohmann::ordered_json chart_json(const Chart& chart) {
  nlohmann::ordered_json json{{"id", chart.id},
                              {"log", chart.logarithmic},
                              {"zero", chart.from_zero},
                              {"wide", chart.wide},
                              {"crops", chart.crops ? kCropped : 0},
                              {"series", nlohmann::ordered_json::array()}};
  for (const ChartSeries& series : chart.series) {
    std::vector<double> x;
    std::vector<double> y;
    for (const Point& point : decimate(series.points, kChartPoints)) {
      if (!is_drawn(chart, point)) continue;
      x.push_back(point.x);
      y.push_back(std::stod(fmt::format("{:.6g}", point.y)));  // as few digits as its text has
    }
    json["series"].push_back({{"label", series.label},
                              {"color", series.color % kColors},
                              {"style", static_cast<int>(series.style)},
                              {"x", x},
                              {"y", y}});
  }
  return json;
}

}  // namespace octavo
