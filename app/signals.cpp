#include "app/signals.h"

#include <csignal>

namespace octavo {

namespace {

// A signal handler can reach nothing but a global.
volatile std::sig_atomic_t received = 0;

void on_signal(int signal) {
  received = 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

void catch_stop_signals() {
  std::signal(SIGTERM, on_signal);
  std::signal(SIGINT, on_signal);
  std::signal(SIGUSR1, on_signal);
}

bool stop_requested() { return received != 0; }

}  // namespace octavo
