// SIGTERM and SIGINT ask a run to save and stop; a second one of them ends the process at once.
#pragma once

namespace octavo {

// Counts the signals from now on, until the process ends.
void catch_stop_signals();
// Whether one has come.
bool stop_requested();

}  // namespace octavo
