// SIGTERM, SIGINT and SIGUSR1 ask a run to save and stop; a second one of them ends the process at once. SIGUSR1 is for
// launchers: mpirun passes it on to its ranks as it is, while SIGTERM makes mpirun itself end them, within seconds.
#pragma once

namespace octavo {

// Counts the signals from now on, until the process ends.
void catch_stop_signals();
// Whether one has come.
bool stop_requested();

}  // namespace octavo
