#include "core/log.h"

#include <spdlog/spdlog.h>

#include "core/printable.h"

namespace octavo {

void log_line(LogLevel level, const std::string& text) {
  // Nothing is cut: escaping makes a line four times as long at most.
  spdlog::log(level == LogLevel::kInfo ? spdlog::level::info : spdlog::level::warn, printable(text, 4 * text.size()));
}

}  // namespace octavo
