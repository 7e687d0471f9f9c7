#include "app/records/goodput.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "app/process/startup_timer.h"
#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/json_input.h"
#include "core/format.h"
#include "core/log.h"

namespace octavo {

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr double kWriteInterval = 5;  // Minimum time between two writes in seconds.

constexpr std::array<const char*, Goodput::kUses> kNames = {"steps",      "start",  "tuning",   "data",   "saving",
                                                            "validation", "checks", "recovery", "skipped"};

std::string key_of(size_t use) { return fmt::format("{}_s", kNames[use]); }

constexpr double kMaxRestarts = 1e15;  // Larger values cannot come from this program and might overflow an integer.

double number_at(const nlohmann::json& json, const std::string& key) {
  return std::max(find_value<double>(json, "/" + key).value_or(0), 0.0);
}

}  // namespace

Goodput::Clocks Goodput::system_clocks() {
  return {.since_launch = seconds_since_launch, .wall = [] {
            const std::chrono::duration<double> time = std::chrono::system_clock::now().time_since_epoch();
            return time.count();
          }};
}

Goodput::Goodput(std::string dir, bool continues, double steps_s, Clocks clocks)
    : path_(std::move(dir) + "/" + kFileName), clocks_(std::move(clocks)) {
  if (!continues || !path_exists(path_)) return;
  try {
    add_earlier(read_json_file(path_), steps_s);
  } catch (const Error& error) {
    log_warning("goodput starts from zero: {}", error.what());
  }
}

void Goodput::add_earlier(const nlohmann::json& earlier, double steps_s) {
  CHECK_INPUT(earlier.is_object(), "{}: is {}, expected an object", path_, earlier.type_name());
  for (const char* key : {"wall_s", "updated"})
    CHECK_INPUT(number_at(earlier, key) > 0, "{}: has no {}, expected a number above 0", path_, key);
  for (size_t use = 0; use < kUses; ++use) seconds_[use] = number_at(earlier, key_of(use));
  earlier_wall_s_ = number_at(earlier, "wall_s");
  restarts_ = static_cast<int64_t>(std::min(number_at(earlier, "restarts"), kMaxRestarts)) + 1;
  roll_back(steps_s);
  if (earlier.value("ended", nlohmann::json(false)) == true) return;
  const double gap = clocks_.wall() - clocks_.since_launch() - number_at(earlier, "updated");
  // The clocks of two machines differ, or the file was written by a process that has not ended yet.
  if (gap <= 0) return;
  add(kRecovery, gap);
  earlier_wall_s_ += gap;
}

void Goodput::roll_back(double steps_s) {
  const double lost = std::max(seconds_[kSteps] - steps_s, 0.0);
  seconds_[kSteps] -= lost;
  seconds_[kRecovery] += lost;
}

double Goodput::share() const {
  const double wall = wall_seconds();
  return wall > 0 ? seconds_[kSteps] / wall : 0;
}

std::string Goodput::report() const {
  const double wall = wall_seconds();
  std::string text = fmt::format("goodput {:.1f}% of {}", 100 * share(), format_duration(wall));
  const char* separator = ": ";
  const auto append = [&](const char* name, double seconds) {
    constexpr double kMinShown = 0.0005;
    if (seconds < kMinShown * wall) return;
    text += fmt::format("{}{} {:.1f}%", std::exchange(separator, ", "), name, 100 * seconds / wall);
  };
  for (size_t use = kSteps + 1; use < kUses; ++use) append(kNames[use], seconds_[use]);
  append("other", wall - std::accumulate(seconds_.begin(), seconds_.end(), 0.0));
  if (restarts_ > 0) text += fmt::format("; {} restart{}", restarts_, restarts_ == 1 ? "" : "s");
  return text;
}

OrderedJson Goodput::to_json() const {
  OrderedJson json{{"goodput", share()}, {"wall_s", wall_seconds()}};
  for (size_t use = 0; use < kUses; ++use) json[key_of(use)] = seconds_[use];
  json["restarts"] = restarts_;
  return json;
}

std::function<void()> Goodput::writing(bool end) {
  const double now = clocks_.since_launch();
  if (!end && written_ > 0 && now - written_ < kWriteInterval) return {};
  written_ = now;
  OrderedJson json = to_json();
  json["updated"] = clocks_.wall();
  json["ended"] = end;
  return [path = path_, text = json.dump(1) + "\n"] {
    // Not synced to disk: while a checkpoint is being written that takes seconds, and losing this file does no harm.
    const std::string temporary = path + ".tmp";
    std::ofstream file(temporary);
    file << text;
    file.close();
    CHECK(!file.fail() && std::rename(temporary.c_str(), path.c_str()) == 0, "{} cannot be written: {}", path,
          std::strerror(errno));
  };
}

}  // namespace octavo
