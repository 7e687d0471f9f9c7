#include "app/process/signals.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

#include "app/process/events.h"
#include "app/process/exit_codes.h"
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
int wake_up = -1;   // Write end of the pipe to the thread.
int terminal = -1;  // Standard output if it is a terminal.

constexpr int kRequests[] = {SIGTERM, SIGINT, SIGUSR1};

// Words that the thread reads from the pipe.
constexpr char kRequest = 'r';
constexpr char kEnd = 'e';
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

void on_signal(int signal, siginfo_t* info, void*) {
  const int saved_errno = errno;
  if (received == 0) {
    received_ms = now_ms();
    received = signal;
    tell_thread(kRequest);
  } else if (signal == SIGINT && (info->si_code == SI_KERNEL || now_ms() - received_ms > kSameEventMs)) {
    end_line_of_terminal();
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  errno = saved_errno;
}

// Changes the signal mask of the calling thread.
void mask(int how) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : kRequests) sigaddset(&signals, signal);
  pthread_sigmask(how, &signals, nullptr);
}

const char* name_of(int signal) { return signal == SIGTERM ? "SIGTERM" : signal == SIGINT ? "SIGINT" : "SIGUSR1"; }

}  // namespace

StopSignals::StopSignals(ProcessGroup& group) : group_(group) {
  int ends[2];
  CHECK(::pipe2(ends, O_CLOEXEC) == 0, "a pipe for signals cannot be created: {}", std::strerror(errno));
  received = 0;
  wake_up = ends[1];
  terminal = ::isatty(STDOUT_FILENO) == 1 ? STDOUT_FILENO : -1;
  // Only that thread handles signals, because generated matmul code keeps no stack on which a handler could run.
  // Threads that are started later inherit the blocked signals.
  mask(SIG_BLOCK);
  thread_ = start_thread("signals", [this, pipe = ends[0]] { listen(pipe); });
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (const int signal : kRequests) ::sigaction(signal, &action, nullptr);
  for (const int signal : {SIGHUP, SIGPIPE}) std::signal(signal, SIG_IGN);
}

StopSignals::~StopSignals() {
  for (const int signal : kRequests) std::signal(signal, SIG_IGN);
  tell_thread(kEnd);
  thread_.join();
  ::close(wake_up);
  mask(SIG_UNBLOCK);
}

void StopSignals::listen(int pipe) {
  mask(SIG_UNBLOCK);
  for (char word = kRequest; ::read(pipe, &word, 1) == 1 && word == kRequest;) acknowledge();
  ::close(pipe);
}

bool StopSignals::requested() const { return received != 0; }

void StopSignals::acknowledge() {
  group_.watchdog().end_if_gone();
  const int64_t step = step_.load(std::memory_order_relaxed);
  const char* what = name_of(received);
  if (step > 0) {
    const char* again = received == SIGINT ? "; Ctrl-C again ends at once" : "";
    if (group_.is_root())
      log_event(EventKind::kNote, step, "{} received: saving a checkpoint after the current step, then ending{}", what,
                again);
    return;
  }
  if (group_.is_root()) log_info("{} received before the first step, so there is nothing to save", what);
  group_.watchdog().leave();
  ::_exit(kExitStopped);
}

}  // namespace octavo
