// Exit codes of octavo.
#pragma once

namespace octavo {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;  // Failed while running.
// Bad command line, config, data file or checkpoint, found before any training.
inline constexpr int kExitBadInput = 2;
inline constexpr int kExitStopped = 3;  // Stopped by a signal after saving a checkpoint.

}  // namespace octavo
