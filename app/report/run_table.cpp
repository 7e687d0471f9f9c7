#include "app/report/run_table.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "core/printable.h"

namespace octavo {

namespace {

constexpr double kLossWindow = 20;  // Number of logged steps on each side that the smoothed loss averages over.
constexpr const char* kUnknown = "-";

std::string row(const char* name, const std::string& text) { return fmt::format("{:<16}{}\n", name, text); }

std::string number(double value) { return with_thousands_separators(std::llround(value)); }

std::string steps_of(const RunRecords& run) {
  const int64_t total = run.total_steps();
  const std::string done = with_thousands_separators(run.last_step);
  return total > 0 ? fmt::format("{} of {}", done, with_thousands_separators(total)) : done;
}

std::string tokens_of(const Series& tokens) { return tokens.empty() ? kUnknown : number(tokens.back().y); }

// Returns the loss that a report shows too.
std::string loss_of(const Series& loss) {
  if (loss.empty()) return kUnknown;
  const size_t points = tail_points(loss);
  return fmt::format("{:.4f} at step {}{}", tail_mean(loss), number(loss.back().x),
                     points == 1 ? "" : fmt::format(", mean of the last {} logged steps", points));
}

std::string validation_of(const Series& validation, const Series& smoothed) {
  if (validation.empty()) return kUnknown;
  const Point last = validation.back();
  const auto behind = std::upper_bound(smoothed.begin(), smoothed.end(), last.x,
                                       [](double step, const Point& point) { return step < point.x; });
  std::string text = fmt::format("{:.4f} at step {}", last.y, number(last.x));
  if (behind != smoothed.begin()) text += fmt::format(", where the smoothed loss is {:.4f}", std::prev(behind)->y);
  return text;
}

std::string goodput_of(const nlohmann::ordered_json& goodput) {
  const auto value = [&](const char* key) -> double {
    const auto found = goodput.is_object() ? goodput.find(key) : goodput.end();
    return found != goodput.end() && found->is_number() ? found->get<double>() : std::nan("");
  };
  if (!std::isfinite(value("goodput"))) return kUnknown;
  const double restarts = value("restarts");
  std::string text = fmt::format("{:.1f}% of {}", 100 * value("goodput"), format_duration(value("wall_s")));
  if (restarts >= 1) text += fmt::format(", {} restart{}", number(restarts), restarts == 1 ? "" : "s");
  return text;
}

std::string warnings_of(const RunRecords& run) {
  if (!run.has_events) return row("warnings", kUnknown) + fmt::format("  {}\n", run.events.front().text);
  const LastWarnings warnings = last_warnings(run);
  const size_t shown = warnings.newest.size();
  std::string count = with_thousands_separators(static_cast<int64_t>(warnings.count));
  if (shown < warnings.count) count += fmt::format(", the last {} of them:", shown);
  std::string text = row("warnings", count);
  for (const RunEvent* event : warnings.newest)
    text += fmt::format("  {}  {}\n", printable(event->time), printable(event->text));
  return text;
}

}  // namespace

std::string run_table(const RunRecords& run, const nlohmann::ordered_json& goodput) {
  const Series smoothed = smooth(run.metric("loss"), kLossWindow);
  return row("run", printable(run.dir)) + row("steps", steps_of(run)) + row("tokens", tokens_of(run.metric("tokens"))) +
         row("loss", loss_of(run.metric("loss"))) +
         row("validation loss", validation_of(run.metric("validation_loss"), smoothed)) +
         row("goodput", goodput_of(goodput)) + warnings_of(run);
}

}  // namespace octavo
