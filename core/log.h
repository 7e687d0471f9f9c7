// The log of a run: lines for people, through spdlog's default logger. Control characters in them
// (of paths and names) are escaped. spdlog's own headers would have every file that logs compile its formatting anew.
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

// Lines go to every sink that was added and not removed, whichever threads log meanwhile. main() starts the log with
// the console; before that, lines go where spdlog's default logger has them.
void start_log(LogSink console);
void add_log_sink(LogSink sink);
void remove_log_sink(LogSink sink);

// A detail is for files of the log alone (app/records/run_folder.h), not for the console.
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
