// The log of a run: lines for people, through spdlog's default logger, which main() sets up. Control characters in them
// (of paths and names) are escaped. spdlog's own headers would have every file that logs compile its formatting anew.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

namespace octavo {

// A detail is for files of the log alone (app/train/run_folder.h), not for the console.
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
