// How a process of octavo ends.
#pragma once

namespace octavo {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;    // at run time
inline constexpr int kExitBadInput = 2;  // a command line, config, data file or checkpoint, found before any training
inline constexpr int kExitStopped = 3;   // by a signal, after saving a checkpoint

}  // namespace octavo
