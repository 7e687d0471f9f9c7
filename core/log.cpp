#include "core/log.h"

#include <spdlog/sinks/dist_sink.h>
#include <spdlog/spdlog.h>

#include "core/printable.h"

namespace octavo {

namespace {

// Returns the common sink. A logger's list of sinks must not change while threads log, but that of a dist_sink may.
const std::shared_ptr<spdlog::sinks::dist_sink_mt>& all_sinks() {
  static const auto sinks = std::make_shared<spdlog::sinks::dist_sink_mt>();
  return sinks;
}

}  // namespace

void start_log(LogSink console) {
  add_log_sink(std::move(console));
  auto logger = std::make_shared<spdlog::logger>("octavo", all_sinks());
  logger->set_level(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
}

void add_log_sink(LogSink sink) { all_sinks()->add_sink(std::move(sink)); }
void remove_log_sink(LogSink sink) { all_sinks()->remove_sink(std::move(sink)); }

void log_line(LogLevel level, const std::string& text) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn};
  // The limit keeps the whole text, because escaping makes a line at most four times as long.
  spdlog::log(kLevels[static_cast<size_t>(level)], printable(text, 4 * text.size()));
}

}  // namespace octavo
