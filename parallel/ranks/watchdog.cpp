#include "parallel/ranks/watchdog.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "core/error.h"
#include "core/thread.h"

namespace octavo {

namespace {

using Seconds = std::chrono::duration<double>;

constexpr const char* kGoneEnds = " (killed, or it crashed), so the run ends without saving a checkpoint";
// Maximum time that ending the other ranks may take. This process then exits in any case.
constexpr Seconds kGrace{5};

// Blocks all signals in the calling thread, and in threads that it starts, during the lifetime of the object.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

// Starts a thread that receives no signals. They must reach the main thread, because they interrupt its system calls.
std::thread start_without_signals(std::function<void()> work) {
  const BlockedSignals blocked;
  return start_thread("the time limit of collectives", std::move(work));
}

// Writes with a system call, because the main thread may hold the locks of the standard library's streams.
void print(const std::string& line) {
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = write(STDERR_FILENO, line.data() + written, line.size() - written);
    if (count <= 0) return;
    written += static_cast<size_t>(count);
  }
}

}  // namespace

std::string Collective::describe() const {
  const std::string of = what[0] == '\0' ? "" : fmt::format(" of {}", what);
  const std::string where = axis[0] == '\0' ? "" : fmt::format(" ({} axis)", axis);
  return op + of + where;
}

Watchdog::Watchdog(int rank, RankBoard board, std::function<void()> end_all)
    : rank_(rank), board_(std::move(board)), end_all_(std::move(end_all)) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::set_timeout(double seconds) {
  {
    const std::lock_guard lock(mutex_);
    timeout_s_ = seconds;
  }
  changed_.notify_all();
  if (!thread_.joinable()) thread_ = start_without_signals([this] { run(); });
}

void Watchdog::begin_interval() {
  const std::lock_guard lock(mutex_);
  entered_ = (entered_ / RankBoard::kInterval + 1) * RankBoard::kInterval;
  board_.set_entered(entered_);
}

void Watchdog::add(Queue* queue) {
  const std::lock_guard lock(mutex_);
  queues_.push_back(queue);
}

void Watchdog::remove(Queue* queue) {
  const std::lock_guard lock(mutex_);
  std::erase(queues_, queue);
}

Watchdog::Scope::Scope(Watchdog& watchdog, const Collective& collective)
    : watchdog_(watchdog), collective_(collective) {
  const std::lock_guard lock(watchdog_.mutex_);
  collective_.number = ++watchdog_.entered_;
  watchdog_.board_.set_entered(collective_.number);
  watchdog_.inside_ = Stuck{collective_, Clock::now(), ""};
}

Watchdog::Scope::~Scope() {
  const std::lock_guard lock(watchdog_.mutex_);
  watchdog_.inside_.reset();
}

// A check that is late by half of the time limit shows that this process was suspended (SIGSTOP).
void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    const Seconds period{timeout_s_ > 0 ? std::clamp(timeout_s_ / 20, 0.01, 1.0) : 1.0};
    const Clock::time_point before = Clock::now();
    changed_.wait_for(lock, period);
    if (is_stopping_) continue;
    if (Clock::now() - before > period + Seconds(timeout_s_ / 2)) running_since_ = Clock::now();
    if (const std::string gone = board_.gone(); !gone.empty()) end(gone + kGoneEnds);
    if (timeout_s_ == 0) continue;
    if (const std::optional<Stuck> stuck = find_stuck()) end(describe(*stuck));
  }
}

void Watchdog::end_if_gone() {
  const std::string gone = board_.gone();
  if (gone.empty()) return;
  const std::lock_guard lock(mutex_);
  end(gone + kGoneEnds);
}

std::string Watchdog::describe(const Stuck& stuck) const {
  const std::string where = stuck.collective.describe();
  if (!stuck.failure.empty()) return fmt::format("{} failed: {}", where, stuck.failure);
  const std::string missing = board_.missing(stuck.collective.number);
  return fmt::format("{} did not complete within {} s (parallel.timeout_s){}{}", where, timeout_s_,
                     missing.empty() ? "" : "; ", missing);
}

std::optional<Watchdog::Stuck> Watchdog::find_stuck() {
  const auto is_over = [&](const Stuck& one) {
    return !one.failure.empty() || Clock::now() - std::max(one.since, running_since_) > Seconds(timeout_s_);
  };
  for (Queue* queue : queues_) {
    const std::optional<Stuck> one = queue->oldest_unfinished();
    if (one && is_over(*one)) return one;
  }
  if (!inside_ || !is_over(*inside_)) return std::nullopt;
  if (!inside_->collective.waits_for_files) return inside_;
  note_wait_for_files();
  return std::nullopt;
}

void Watchdog::note_wait_for_files() {
  const Collective& collective = inside_->collective;
  if (!board_.claim_notice(collective.number)) return;
  const std::string missing = board_.missing(collective.number);
  print(fmt::format("octavo: rank {}: has waited for {} for more than {} s{}{}\n", rank_, collective.describe(),
                    timeout_s_, missing.empty() ? "" : "; ", missing));
}

// Keeps the mutex locked, so that the main thread cannot continue if the collective completes after all.
void Watchdog::end(const std::string& sentence) {
  std::thread last_resort = start_thread_if_possible([] {
    std::this_thread::sleep_for(kGrace);
    std::_Exit(1);
  });
  if (last_resort.joinable()) last_resort.detach();
  if (!board_.claim_report()) {
    // Another rank of this machine has claimed the message and ends all ranks.
    std::this_thread::sleep_for(kGrace);
    std::_Exit(1);
  }
  print(fmt::format("octavo: rank {}: {}\n", rank_, sentence));
  end_all_();
  std::_Exit(1);
}

}  // namespace octavo
