#include "app/records/metric_row.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/format.h"

namespace octavo {

namespace {

using OrderedJson = nlohmann::ordered_json;

std::string format_rate(double rate) {
  return std::isfinite(rate) ? with_thousands_separators(std::llround(rate)) : "-";
}

// Formats milliseconds without decimals, or with one decimal below 10 ms.
std::string format_ms(double ms) { return ms < 10 ? fmt::format("{:.1f}", ms) : format_rate(ms); }

// Calls visit(key, value) for each metric, with an integer if the metric is one.
template <typename Visit>
void visit_numbers(const MetricRow& row, Visit visit) {
  row.visit_numbers([&](const MetricSpec& spec, double value) {
    spec.integer ? visit(spec.key, static_cast<int64_t>(value)) : visit(spec.key, value);
  });
}

template <typename Visit>
void visit_numbers(const NumbersByName& numbers, Visit visit) {
  for (const auto& [name, value] : numbers) visit(name.c_str(), value);
}

template <typename Visit>
void visit_numbers(const Fp8TensorReport& report, Visit visit) {
  visit("amax", report.stats.amax);
  if (report.per_tensor) {
    visit("scale", report.stats.smallest_scale);
  } else {
    visit("scale_min", report.stats.smallest_scale);
    visit("scale_max", report.stats.largest_scale);
  }
  visit("saturated", report.saturated_share());
  visit("flushed", report.flushed_share());
}

// Sets json[key] for each value. A value that is not finite becomes null, and json["nonfinite"], the last key, names
// it.
template <typename Numbers>
void add_numbers(OrderedJson& json, OrderedJson& nonfinite, const Numbers& numbers) {
  visit_numbers(numbers, [&](const char* key, auto value) {
    if (std::isfinite(static_cast<double>(value))) {
      json[key] = value;
    } else {
      json[key] = nullptr;
      nonfinite[key] = fmt::format("{}", unsigned_nan(static_cast<double>(value)));
    }
  });
}

// Returns `json` with the values appended.
template <typename Numbers>
OrderedJson with_numbers(OrderedJson json, const Numbers& numbers) {
  OrderedJson nonfinite;
  add_numbers(json, nonfinite, numbers);
  if (!nonfinite.empty()) json["nonfinite"] = nonfinite;
  return json;
}

// Returns a label in Prometheus' text format, with \, " and newlines escaped.
std::string label(const char* name, const std::string& value) {
  std::string escaped;
  for (const char c : value) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c == '\n' ? "\\n" : std::string(1, c);
  }
  return fmt::format("{}=\"{}\"", name, escaped);
}

std::string prometheus_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

}  // namespace

std::string metric_table_json() {
  OrderedJson table;
  for (const MetricSpec& spec : kMetrics) {
    table.push_back({{"key", spec.key}, {"tag", spec.tag}, {"title", spec.title}, {"unit", spec.unit}});
  }
  return table.dump(1) + "\n";
}

void MetricInterval::add(const MetricRow& row) {
  ++steps_;
  for (size_t i = 0; i < kNumMetrics; ++i) {
    const std::optional<double>& value = row.values_[i];
    std::optional<double>& combined = combined_.values_[i];
    if (!value) continue;
    if (kMetrics[i].over == Over::kMean) combined = combined.value_or(0) + *value;
    if (kMetrics[i].over == Over::kMax) combined = std::max(combined.value_or(*value), *value);
  }
}

void MetricInterval::combine_into(MetricRow& row) const {
  for (size_t i = 0; i < kNumMetrics; ++i) {
    const std::optional<double>& combined = combined_.values_[i];
    if (!combined) continue;
    row.values_[i] = kMetrics[i].over == Over::kMean ? *combined / static_cast<double>(steps_) : *combined;
  }
}

std::string console_line(const MetricRow& row, double eta_seconds) {
  std::string line = fmt::format("step {}/{}  loss {:.4f}  grad_norm {:.3f}  lr {:.2e}  wps {}", row.step,
                                 row.total_steps, unsigned_nan(row.at("loss")), unsigned_nan(row.at("grad_norm")),
                                 row.at("lr"), format_rate(row.at("wps")));
  if (const auto mfu = row.get("mfu")) line += fmt::format("  mfu {:.1f}%", 100 * *mfu);
  line += fmt::format("  mem {:.1f} GiB  step {} ms  eta {}", row.at("memory_gib"), format_ms(row.at("step_ms")),
                      format_duration(eta_seconds));
  if (const auto loss = row.get("validation_loss"))
    line += fmt::format("  validation_loss {:.4f}", unsigned_nan(*loss));
  if (const auto use = row.get("utilization")) line += fmt::format("  utilization {:.1f}%", 100 * *use);
  if (const auto bubble = row.get("pipeline_bubble")) {
    line += fmt::format("  bubble {:.1f}%, pipeline stage {:.0f} is the slowest", 100 * *bubble,
                        row.at("pipeline_slowest_stage"));
  }
  std::vector<std::string> marks;
  if (const auto z = row.get("loss_z")) marks.push_back(fmt::format("loss spike z {:.1f}", *z));
  if (const auto z = row.get("grad_norm_z")) marks.push_back(fmt::format("grad_norm spike z {:.1f}", *z));
  if (const auto times = row.get("slowdown")) marks.push_back(fmt::format("slow {:.1f}x", *times));
  if (!marks.empty()) line += fmt::format("  [{}]", fmt::join(marks, ", "));
  return line;
}

std::string prometheus_text(const MetricRow& row, const std::string& run, int64_t time_s) {
  std::map<std::string, std::string> lines;  // Lines by metric name, because lines with the same name must be adjacent.
  const std::string of_run = label("run", run);
  const auto add = [&](const std::string& key, double value, const std::string& labels = "") {
    const std::string name = "octavo_" + key;
    lines[name] += fmt::format("{}{{{}{}}} {}\n", name, of_run, labels, prometheus_number(value));
  };
  add("step", static_cast<double>(row.step));
  add("steps", static_cast<double>(row.total_steps));
  add("time_seconds", static_cast<double>(time_s));
  row.visit_numbers([&](const MetricSpec& spec, double value) { add(spec.key, value); });
  row.visit_datasets([&](const MetricSpec& spec, const NumbersByName& numbers) {
    for (const auto& [name, value] : numbers) add(spec.key, value, "," + label("dataset", name));
  });
  for (const Fp8TensorReport& report : row.fp8) {
    const std::string labels = fmt::format(",layer=\"{}\",{},{}", report.layer, label("linear", report.linear),
                                           label("tensor", report.tensor));
    visit_numbers(report, [&](const char* key, auto value) {
      add(fmt::format("fp8_{}", key), static_cast<double>(value), labels);
    });
  }
  std::string text;
  for (const auto& [name, of_name] : lines) text += fmt::format("# TYPE {} gauge\n{}", name, of_name);
  return text;
}

std::vector<Scalar> tensorboard_scalars(const MetricRow& row) {
  std::vector<Scalar> all;
  row.visit_numbers([&](const MetricSpec& spec, double value) { all.push_back({spec.tag, value}); });
  row.visit_datasets([&](const MetricSpec& spec, const NumbersByName& numbers) {
    for (const auto& [name, value] : numbers) all.push_back({fmt::format("{}/{}", spec.tag, name), value});
  });
  for (const Fp8TensorReport& report : row.fp8) {
    visit_numbers(report, [&](const char* key, auto value) {
      all.push_back({fmt::format("fp8/{}/{}/{}/{}", report.layer, report.linear, report.tensor, key),
                     static_cast<double>(value)});
    });
  }
  return all;
}

std::string metrics_json(const MetricRow& row) {
  OrderedJson json{{"step", row.step}};
  OrderedJson nonfinite;
  add_numbers(json, nonfinite, row);
  row.visit_datasets([&](const MetricSpec& spec, const NumbersByName& numbers) {
    json[spec.key] = with_numbers(OrderedJson::object(), numbers);
  });
  for (const Fp8TensorReport& report : row.fp8) {
    const OrderedJson names{{"layer", report.layer}, {"linear", report.linear}, {"tensor", report.tensor}};
    json["fp8"].push_back(with_numbers(names, report));
  }
  if (!nonfinite.empty()) json["nonfinite"] = nonfinite;
  return json.dump();
}

}  // namespace octavo
