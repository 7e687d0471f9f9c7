#include "core/log.h"

#include <spdlog/spdlog.h>

#include "core/printable.h"

namespace octavo {

void log_line(LogLevel level, const std::string& text) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn};
  // Nothing is cut: escaping makes a line four times as long at most.
  spdlog::log(kLevels[static_cast<size_t>(level)], printable(text, 4 * text.size()));
}

}  // namespace octavo
