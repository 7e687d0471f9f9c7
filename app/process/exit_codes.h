// Exit codes of octavo.
#pragma once

namespace octavo {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;  // Failed while running.
// Invalid command line, config, data file or checkpoint, detected before training begins.
inline constexpr int kExitBadInput = 2;
inline constexpr int kExitStopped = 3;  // Stopped by a signal, after saving a checkpoint if training had begun.

}  // namespace octavo
