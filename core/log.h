// The log of a run: lines for people, written through spdlog's default logger. Control characters of paths and names
// are escaped. This header hides spdlog, because its headers would make every file that logs compile the formatting
// again.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

namespace spdlog::sinks {
class sink;
}

namespace octavo {

using LogSink = std::shared_ptr<spdlog::sinks::sink>;

// Starts the log with the console as a sink. Each line goes to all sinks added at the time. Sinks may be added and
// removed while other threads log. Before this call lines go to spdlog's default logger.
void start_log(LogSink console);
void add_log_sink(LogSink sink);
void remove_log_sink(LogSink sink);

// Importance of a line. A detail goes to log files only (app/records/run_folder.h), not to the console.
enum class LogLevel { kDetail, kInfo, kWarning };
void log_line(LogLevel level, const std::string& text);

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace octavo
