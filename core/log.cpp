#include "core/log.h"

#include <spdlog/spdlog.h>

namespace octavo {

void log_line(LogLevel level, const std::string& text) {
  spdlog::log(level == LogLevel::kInfo ? spdlog::level::info : spdlog::level::warn, text);
}

}  // namespace octavo
