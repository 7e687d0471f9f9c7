#include "app/report/report_page.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "app/report/html.h"
#include "app/report/page_assets.h"
#include "app/report/report_charts.h"
#include "core/error.h"

namespace octavo {

namespace {

using Runs = std::span<const RunRecords>;

constexpr size_t kMaxEvents = 400;  // of a run's table; the newest

std::string cell(const std::string& text, const char* of_class = "") {
  return fmt::format("<td{}>{}</td>", *of_class == '\0' ? "" : fmt::format(" class=\"{}\"", of_class),
                     html_escape(text));
}

std::string last_of(const Series& series) { return series.empty() ? "-" : long_number(series.back().y); }

std::string least_of(const Series& series) {
  if (series.empty()) return "-";
  const auto least =
      std::min_element(series.begin(), series.end(), [](const Point& a, const Point& b) { return a.y < b.y; });
  return fmt::format("{} at {}", long_number(least->y), long_number(least->x));
}

// Of the second half, when the run has found its pace.
std::string median_rate(const Series& series, double scale) {
  if (series.empty()) return "-";
  const auto middle = series.begin() + static_cast<std::ptrdiff_t>(series.size() / 2);
  const double median = scale * median_of(Series(middle, series.end()));
  return median < 1000 ? fmt::format("{:.1f}", median) : long_number(median);
}

size_t count(const RunRecords& run, EventKind kind) {
  return static_cast<size_t>(
      std::count_if(run.events.begin(), run.events.end(), [&](const RunEvent& event) { return event.kind == kind; }));
}

std::string value_or(const RunRecords& run, const char* key, const char* otherwise) {
  const auto found = run.config.find(key);
  return found != run.config.end() ? found->second : otherwise;
}

std::string summary_row(const RunRecords& run, size_t color) {
  const Series& memory = run.metric("memory_gib");
  std::string row =
      fmt::format("<tr><td><i class=\"swatch box s{}\" style=\"display:inline-block;margin-right:8px\"></i>{}</td>",
                  color % kColors, html_escape(run.name));
  row += cell(fmt::format("{} / {}", run.last_step, value_or(run, "training.steps", "?")), "n");
  row += cell(run.metric("tokens").empty() ? "-" : short_number(run.metric("tokens").back().y), "n");
  row += cell(last_of(run.metric("loss")), "n") + cell(least_of(run.metric("validation_loss")), "n");
  row += cell(median_rate(run.metric("wps"), 1), "n");
  row += cell(run.metric("mfu").empty() ? "-" : median_rate(run.metric("mfu"), 100) + "%", "n");
  row += cell(memory.empty() ? "-" : last_of(memory) + " GiB", "n");
  row += cell(run.metric("goodput").empty() ? "-" : fmt::format("{:.1f}%", 100 * run.metric("goodput").back().y), "n");
  row +=
      cell(fmt::format("{}", std::max(count(run, EventKind::kRestart), run.starts.empty() ? 0 : run.starts.size() - 1)),
           "n");
  row += cell(fmt::format("{}", count(run, EventKind::kCheckpoint)), "n");
  row += cell(run.metric("skipped_steps").empty() ? "0" : last_of(run.metric("skipped_steps")), "n");
  return row + "</tr>\n";
}

std::string summary(Runs runs) {
  std::string html = "<div class=\"scroll\"><table id=\"summary\">\n<tr><th>run</th>";
  for (const char* head : {"steps", "tokens", "loss", "least validation loss", "wps", "MFU", "memory", "goodput",
                           "restarts", "checkpoints", "skipped"}) {
    html += fmt::format("<th class=\"n\">{}</th>", head);
  }
  html += "</tr>\n";
  for (size_t i = 0; i < runs.size(); ++i) html += summary_row(runs[i], i);
  return html + "</table></div>\n";
}

std::string starts_table(Runs runs) {
  std::string rows;
  for (const RunRecords& run : runs) {
    for (const RunStart& start : run.starts) {
      rows += "<tr>" + (runs.size() > 1 ? cell(run.name) : "") + cell(start.time, "nowrap") +
              cell(start.version, "nowrap") + cell(start.runs_on) + cell(start.hosts) + cell(start.command, "mono") +
              "</tr>\n";
    }
  }
  if (rows.empty()) return "";
  return fmt::format(
      "<h2>Starts</h2>\n<div class=\"scroll\"><table id=\"starts\">\n<tr>{}<th>time "
      "(UTC)</th><th>version</th><th>on</th><th>hosts</th><th>command</th></tr>\n{}</table></div>\n",
      runs.size() > 1 ? "<th>run</th>" : "", rows);
}

std::string events_table(Runs runs) {
  std::string rows;
  size_t left_out = 0;
  for (const RunRecords& run : runs) {
    const size_t first = run.events.size() > kMaxEvents ? run.events.size() - kMaxEvents : 0;
    left_out += first;
    for (size_t i = first; i < run.events.size(); ++i) {
      const RunEvent& event = run.events[i];
      rows += "<tr>" + (runs.size() > 1 ? cell(run.name) : "") + cell(event.time, "nowrap") +
              cell(event.step ? std::to_string(*event.step) : "", "n") +
              cell(event_kind_name(event.kind), fmt::format("kind k{}", static_cast<int>(event.kind)).c_str()) +
              cell(event.text) + "</tr>\n";
    }
  }
  if (rows.empty()) return "";
  return fmt::format(
      "<h2>Events</h2>\n{}<div class=\"scroll\"><table id=\"events\">\n<tr>{}<th>time</th><th "
      "class=\"n\">step</th><th>what</th><th>log</th></tr>\n{}</table></div>\n",
      left_out > 0 ? fmt::format("<p class=\"soft\">Without the first {}.</p>\n", left_out) : "",
      runs.size() > 1 ? "<th>run</th>" : "", rows);
}

struct ConfigRow {
  std::string key;
  std::vector<std::string> values;  // by run
  bool differs() const {
    return std::any_of(values.begin(), values.end(), [this](const std::string& v) { return v != values[0]; });
  }
};

std::vector<ConfigRow> config_rows(Runs runs) {
  std::set<std::string> keys;
  for (const RunRecords& run : runs) {
    for (const auto& [key, value] : run.config) keys.insert(key);
  }
  std::vector<ConfigRow> rows;
  for (const std::string& key : keys) {
    ConfigRow& row = rows.emplace_back(ConfigRow{.key = key, .values = {}});
    for (const RunRecords& run : runs) row.values.push_back(value_or(run, key.c_str(), "-"));
  }
  return rows;
}

std::string config_table(Runs runs, const std::vector<ConfigRow>& rows, const char* id) {
  std::string html = fmt::format("<div class=\"scroll\"><table id=\"{}\">\n<tr><th>key</th>", id);
  for (const RunRecords& run : runs) html += fmt::format("<th>{}</th>", html_escape(run.name));
  html += "</tr>\n";
  for (const ConfigRow& row : rows) {
    html += fmt::format("<tr{}>{}", row.differs() ? " class=\"diff\"" : "", cell(row.key, "mono"));
    for (const std::string& value : row.values) html += cell(value, "mono");
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string configs(Runs runs) {
  const std::vector<ConfigRow> rows = config_rows(runs);
  if (rows.empty()) return "";
  std::string html = fmt::format("<h2>Config{}</h2>\n", runs.size() > 1 ? "s" : "");
  if (runs.size() > 1) {
    std::vector<ConfigRow> differing;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(differing),
                 [](const ConfigRow& row) { return row.differs(); });
    html += differing.empty() ? "<p>They are the same.</p>\n" : config_table(runs, differing, "config-differences");
  }
  return html + "<details><summary>Every key</summary>\n" + config_table(runs, rows, "config") + "</details>\n";
}

std::string title_of(Runs runs) {
  std::string names;
  for (const RunRecords& run : runs) names += (names.empty() ? "" : ", ") + run.name;
  return names;
}

constexpr const char* kClips =
    "<svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\"><defs>"
    "<clipPath id=\"clip\"><rect x=\"62\" y=\"8\" width=\"564\" height=\"208\"/></clipPath>"
    "<clipPath id=\"clip-wide\"><rect x=\"62\" y=\"8\" width=\"1234\" height=\"298\"/></clipPath></defs></svg>\n";

std::string script_of(const std::vector<Chart>& charts, const std::vector<ChartMark>& marks, double last_x) {
  nlohmann::ordered_json data = nlohmann::ordered_json::array();
  for (const Chart& chart : charts) data.push_back(chart_json(chart));
  nlohmann::ordered_json marked = nlohmann::ordered_json::array();
  for (const ChartMark& mark : marks)
    marked.push_back({{"kind", static_cast<int>(mark.kind)}, {"x", mark.x}, {"text", mark.text}});
  const auto text = [](const nlohmann::ordered_json& json) {
    return script_escape(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  };
  return fmt::format("\"use strict\";\nconst lastX={};\nconst marks={};\nconst charts={};\n", last_x, text(marked),
                     text(data)) +
         std::string(chart_script());
}

}  // namespace

std::string report_page(Runs runs) {
  const std::vector<Chart> charts = report_charts(runs);
  const std::vector<ChartMark> marks = report_marks(runs);
  double last_x = 1;
  for (const RunRecords& run : runs) last_x = std::max(last_x, static_cast<double>(run.last_step));
  const std::string title = title_of(runs);
  std::string body = fmt::format(
      "<h1>{}</h1>\n<p class=\"soft\">octavo report of {}. Drag over a chart to zoom into all of them, double-click to "
      "go back. Dashed lines are restarts, ticks on the axis checkpoints, red lines skipped steps, set-backs and "
      "warnings.</p>\n",
      html_escape(title), runs.size() == 1 ? html_escape(runs[0].dir) : fmt::format("{} runs", runs.size()));
  body += summary(runs) + kClips + "<h2>Metrics</h2>\n<div class=\"charts\">\n";
  for (const Chart& chart : charts) body += chart_figure(chart, marks, last_x);
  body += "</div>\n" + configs(runs) + events_table(runs) + starts_table(runs);
  return html_page(title + " - octavo report", body, script_of(charts, marks, last_x));
}

}  // namespace octavo
