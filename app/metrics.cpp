#include "app/metrics.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/core/error.h"

namespace octavo {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMinute = 60;
constexpr int64_t kHour = 60 * kMinute;
constexpr int64_t kDay = 24 * kHour;

std::string nonfinite_name(double value) {
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

std::string format_rate(double rate) {
  return std::isfinite(rate) ? with_thousands_separators(std::llround(rate)) : "-";
}

// Whole milliseconds, and a decimal where a whole one would say little.
std::string format_ms(double ms) { return ms < 10 ? fmt::format("{:.1f}", ms) : format_rate(ms); }

// json[key] = value, or null where there is no such JSON, and what it was in `nonfinite`.
void add_number(Json& json, Json& nonfinite, const char* key, double value) {
  json[key] = nullptr;
  if (std::isfinite(value))
    json[key] = value;
  else
    nonfinite[key] = nonfinite_name(value);
}

Json fp8_json(const Fp8TensorReport& report) {
  Json json{{"layer", report.layer}, {"linear", report.linear}, {"tensor", report.tensor}};
  Json nonfinite;
  add_number(json, nonfinite, "amax", report.stats.amax);
  if (report.per_tensor) {
    add_number(json, nonfinite, "scale", report.stats.smallest_scale);
  } else {
    add_number(json, nonfinite, "scale_min", report.stats.smallest_scale);
    add_number(json, nonfinite, "scale_max", report.stats.largest_scale);
  }
  json["saturated"] = report.saturated_share();
  json["flushed"] = report.flushed_share();
  if (!nonfinite.empty()) json["nonfinite"] = nonfinite;
  return json;
}

}  // namespace

std::string with_thousands_separators(int64_t value) {
  std::string digits = std::to_string(value);
  const size_t first = value < 0 ? 1 : 0;
  for (size_t end = digits.size(); end > first + 3; end -= 3) digits.insert(end - 3, 1, ',');
  return digits;
}

std::string format_duration(double seconds) {
  constexpr double kLongest = 1e15;
  if (!(seconds >= 0 && seconds < kLongest)) return "-";
  const int64_t whole = std::llround(seconds);
  if (whole < kMinute) return fmt::format("{}s", whole);
  if (whole < kHour) return fmt::format("{}m", whole / kMinute);
  if (whole < kDay) return fmt::format("{}h {}m", whole / kHour, whole % kHour / kMinute);
  return fmt::format("{}d {}h", whole / kDay, whole % kDay / kHour);
}

std::string console_line(const StepMetrics& metrics, double eta_seconds) {
  std::string line = fmt::format(
      "step {}/{}  loss {:.4f}  grad_norm {:.3f}  lr {:.2e}  wps {}  mfu {}  mem {:.1f} GiB  step {} ms  eta {}",
      metrics.step, metrics.total_steps, metrics.loss, metrics.grad_norm, metrics.lr, format_rate(metrics.wps),
      metrics.mfu ? fmt::format("{:.1f}%", 100 * *metrics.mfu) : "-", metrics.memory_gib, format_ms(metrics.step_ms),
      format_duration(eta_seconds));
  if (metrics.validation_loss) line += fmt::format("  validation_loss {:.4f}", *metrics.validation_loss);
  return line;
}

std::string metrics_json(const StepMetrics& metrics) {
  Json json;
  Json nonfinite;
  const auto add = [&](const char* key, double value) { add_number(json, nonfinite, key, value); };
  json["step"] = metrics.step;
  add("loss", metrics.loss);
  add("grad_norm", metrics.grad_norm);
  add("lr", metrics.lr);
  json["tokens"] = metrics.tokens;
  add("wps", metrics.wps);
  json["mfu"] = nullptr;
  if (metrics.mfu) add("mfu", *metrics.mfu);
  add("tflops", metrics.tflops);
  add("step_ms", metrics.step_ms);
  add("data_ms", metrics.data_ms);
  add("memory_gib", metrics.memory_gib);
  if (metrics.validation_loss) add("validation_loss", *metrics.validation_loss);
  for (const Fp8TensorReport& report : metrics.fp8) json["fp8"].push_back(fp8_json(report));
  if (!nonfinite.empty()) json["nonfinite"] = nonfinite;
  return json.dump();
}

MetricsWriter::MetricsWriter(const std::string& dir, bool tensorboard) : file_(dir + "/metrics.jsonl") {
  if (!file_.ends_a_line()) file_.write("\n");
  if (tensorboard) tensorboard_.emplace(dir);
}

void MetricsWriter::write(const StepMetrics& metrics) {
  file_.write(metrics_json(metrics) + "\n");
  if (!tensorboard_) return;
  std::vector<Scalar> scalars{
      {"loss", metrics.loss}, {"grad_norm", metrics.grad_norm}, {"lr", metrics.lr}, {"wps", metrics.wps}};
  if (metrics.mfu) scalars.push_back({"mfu", *metrics.mfu});
  if (metrics.validation_loss) scalars.push_back({"validation_loss", *metrics.validation_loss});
  tensorboard_->write(metrics.step, scalars);
}

}  // namespace octavo
