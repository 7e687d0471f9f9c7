#include "app/process/signals.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>
#include <initializer_list>

#include "app/process/events.h"
#include "app/process/exit_codes.h"
#include "app/process/launcher.h"
#include "core/error.h"
#include "core/log.h"
#include "core/thread.h"

namespace octavo {

namespace {

// State of the signal handler, which can only access globals. Several threads may run the handler at once, and running
// it twice is harmless.
volatile std::sig_atomic_t received = 0;  // Signal of the first request.
std::atomic<int64_t> received_ms{0};      // Time of the first request on the monotonic clock.
static_assert(std::atomic<int64_t>::is_always_lock_free);
pid_t launcher = 0;
int wake_up = -1;   // Write end of the pipe to the thread.
int terminal = -1;  // Standard output if it is a terminal.

constexpr char kRequest = 'r';
// SIGCONT from the launcher, which is a request to stop unless the process was suspended.
constexpr char kLauncherContinues = 'c';
constexpr char kEnd = 'e';
constexpr int kTickMs = 100;
constexpr int64_t kSuspendedMs = 500;
constexpr int64_t kSameEventMs = 1000;

int64_t now_ms() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1000 + time.tv_nsec / 1'000'000;
}

void tell_thread(char word) { [[maybe_unused]] const ssize_t written = ::write(wake_up, &word, 1); }

// Writes a newline to the terminal, because the shell prints its prompt next.
void end_line_of_terminal() {
  if (terminal < 0) return;
  [[maybe_unused]] const ssize_t written = ::write(terminal, "\n", 1);
}

void record_request(int signal) {
  received_ms = now_ms();
  received = signal;
}

void on_signal(int signal, siginfo_t* info, void*) {
  const int saved_errno = errno;
  if (signal == SIGCONT) {
    if (info->si_code == SI_USER && info->si_pid == launcher) tell_thread(kLauncherContinues);
  } else if (received == 0) {
    record_request(signal);
    tell_thread(kRequest);
  } else if (signal == SIGINT && (info->si_code == SI_KERNEL || now_ms() - received_ms > kSameEventMs)) {
    end_line_of_terminal();
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  errno = saved_errno;
}

void handle(std::initializer_list<int> signals, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (const int signal : signals) ::sigaction(signal, &action, nullptr);
}

// Changes the signal mask of the calling thread.
void mask(int how) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGCONT}) sigaddset(&signals, signal);
  pthread_sigmask(how, &signals, nullptr);
}

std::string name_of(int signal) {
  switch (signal) {
    case SIGTERM:
      return "SIGTERM received";
    case SIGINT:
      return "SIGINT received";
    case SIGUSR1:
      return "SIGUSR1 received";
    default:
      return "mpirun is ending this run";
  }
}

}  // namespace

bool SuspensionClock::tick(int64_t now_ms, int64_t waited_ms) {
  const int64_t asleep_ms = (now_ms - tick_ms_) - (waited_ms - waited_ms_);
  if (asleep_ms > kSuspendedMs) resumed_ms_ = now_ms;
  tick_ms_ = now_ms;
  waited_ms_ = waited_ms;
  return resumed_ms_ && now_ms - *resumed_ms_ < kSameEventMs;
}

// The file has three numbers: nanoseconds on a core, nanoseconds of waiting for a core, and the number of time slices.
int64_t waited_for_core_ms() {
  std::ifstream file("/proc/thread-self/schedstat");
  int64_t on_core_ns = 0;
  int64_t waited_ns = 0;
  return file >> on_core_ns >> waited_ns ? waited_ns / 1'000'000 : 0;
}

StopSignals::StopSignals(ProcessGroup& group) : group_(group) {
  int ends[2];
  CHECK(::pipe2(ends, O_CLOEXEC) == 0, "a pipe for signals cannot be created: {}", std::strerror(errno));
  received = 0;
  wake_up = ends[1];
  launcher = find_launcher();
  terminal = ::isatty(STDOUT_FILENO) == 1 ? STDOUT_FILENO : -1;
  // Only that thread handles signals, because generated matmul code keeps no stack on which a handler could run.
  // Threads that are started later inherit the blocked signals.
  mask(SIG_BLOCK);
  thread_ = start_thread("signals", [this, pipe = ends[0]] { listen(pipe); });
  handle({SIGTERM, SIGINT, SIGUSR1}, on_signal);
  if (launcher != 0) handle({SIGCONT}, on_signal);
  for (const int signal : {SIGHUP, SIGPIPE}) std::signal(signal, SIG_IGN);
}

StopSignals::~StopSignals() {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) std::signal(signal, SIG_IGN);
  std::signal(SIGCONT, SIG_DFL);
  ending_ = true;
  tell_thread(kEnd);
  thread_.join();
  ::close(wake_up);
  mask(SIG_UNBLOCK);
}

void StopSignals::listen(int pipe) {
  mask(SIG_UNBLOCK);
  SuspensionClock clock(now_ms(), waited_for_core_ms());
  for (char word = 0; word != kEnd && !ending_;) {
    pollfd ready{pipe, POLLIN, 0};
    const bool has_word = ::poll(&ready, 1, kTickMs) > 0;
    const bool was_suspended = clock.tick(now_ms(), waited_for_core_ms());
    if (!has_word || ::read(pipe, &word, 1) != 1) continue;
    if (word == kLauncherContinues && received == 0 && !was_suspended) {
      record_request(SIGCONT);
      word = kRequest;
    }
    if (word == kRequest) acknowledge();
  }
  ::close(pipe);
}

bool StopSignals::requested() const { return received != 0; }

void StopSignals::acknowledge() {
  group_.watchdog().end_if_gone();
  const int64_t step = step_.load(std::memory_order_relaxed);
  const std::string what = name_of(received);
  if (step > 0) {
    const char* again = received == SIGINT ? "; Ctrl-C again ends at once" : "";
    if (group_.is_root())
      log_event(EventKind::kNote, step, "{}: saving a checkpoint after the current step, then ending{}", what, again);
    return;
  }
  if (group_.is_root()) log_info("{} before the first step, so there is nothing to save", what);
  group_.watchdog().leave();
  ::_exit(kExitStopped);
}

}  // namespace octavo
