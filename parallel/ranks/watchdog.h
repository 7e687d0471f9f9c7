// Watchdog ends the run when a collective does not complete because a rank died, hangs or runs different code. Without
// it, the other ranks would wait forever and keep their GPUs. A thread checks regularly (at least twenty times within
// the time limit) how long the main thread has been inside a collective, and checks the registered queues (NCCL's
// collectives). When a collective exceeds the time limit, or a queue reports a failure, the thread prints one line per
// machine and ends all processes with exit code 1. The line names the rank, the collective, and the ranks of this
// machine that have not entered the collective. The thread does not depend on the main thread, which may be blocked.
//
// If the process of another rank of this machine is gone (it was killed or crashed), the run ends within a second,
// whatever the main thread is doing. No collective can complete any more, so no checkpoint can be saved either.
//
// Time during which this process is suspended (SIGSTOP) does not count: after a suspension the time limit begins again.
//
// Waits for a rank that works with files have no time limit, because disks may be slow. When such a wait exceeds the
// time limit, one line says so.
//
// Only the main thread may use Scope. A Scope costs two uncontended locks.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "parallel/ranks/rank_board.h"

namespace octavo {

// A collective in progress, as messages name it. The strings are borrowed.
struct Collective {
  const char* op = "";  // "all_gather"
  // Tensor that the collective works on: "weights of block 3". May be empty.
  const char* what = "";
  const char* axis = "";  // Name of the mesh axis. May be empty.
  // Number of collectives that this rank has entered, including this one. Scope sets it.
  int64_t number = 0;
  // True if ranks that have not entered the collective may be working with files.
  bool waits_for_files = false;

  // Returns the collective as text: "all_gather of weights of block 3 (shard axis)".
  std::string describe() const;
};

class Watchdog {
 public:
  using Clock = std::chrono::steady_clock;

  // A collective that has not completed.
  struct Stuck {
    Collective collective;
    Clock::time_point since;
    // Failure that the library reports, which ends the run at once. Empty if the collective is only late.
    std::string failure;
  };

  // Collectives that are queued and still in progress. The thread of the watchdog calls oldest_unfinished().
  class Queue {
   public:
    virtual ~Queue() = default;
    virtual std::optional<Stuck> oldest_unfinished() = 0;
  };

  // `end_all` ends all ranks with exit code 1 if possible. It is called at most once, from another thread.
  Watchdog(int rank, RankBoard board, std::function<void()> end_all);
  ~Watchdog();

  // Sets the time limit of collectives that do not wait for files. 0, the initial value, means no limit.
  void set_timeout(double seconds);

  // Prints one line and ends all ranks with exit code 1 if the process of a rank of this machine is gone. Any thread
  // may call this method.
  void end_if_gone();
  // Marks this rank as about to exit on purpose, so that the other ranks do not end because of its exit.
  void leave() { board_.sign_out(); }
  // Sets the pipeline stage of this rank. Ranks of different stages enter different collectives.
  void set_stage(int64_t stage) { board_.set_stage(stage); }
  // Raises this rank's count of collectives to the next multiple of RankBoard::kInterval. All ranks call this method at
  // the same points of a step.
  void begin_interval();
  // Makes the watchdogs of this machine print no final message, because this rank prints the reason for the end itself.
  void claim_report() { board_.claim_report(); }

  // Start and stop watching a queue. remove() waits until the thread no longer uses the queue.
  void add(Queue* queue);
  void remove(Queue* queue);

  // Marks the main thread as inside a collective for the lifetime of the object.
  class Scope {
   public:
    Scope(Watchdog& watchdog, const Collective& collective);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    const Collective& collective() const { return collective_; }

   private:
    Watchdog& watchdog_;
    Collective collective_;
  };

 private:
  void run();
  std::optional<Stuck> find_stuck();
  std::string describe(const Stuck& stuck) const;
  void note_wait_for_files();
  // Prints the sentence and ends all ranks, if this is the first rank of its machine to do so.
  // Requires: the caller holds the mutex.
  [[noreturn]] void end(const std::string& sentence);

  int rank_;
  RankBoard board_;
  std::function<void()> end_all_;
  std::mutex mutex_;  // Protects all following members.
  std::condition_variable changed_;
  bool is_stopping_ = false;
  double timeout_s_ = 0;
  Clock::time_point running_since_ = Clock::now();  // End of the last suspension, or the start of the process.
  int64_t entered_ = 0;
  std::optional<Stuck> inside_;
  std::vector<Queue*> queues_;
  std::thread thread_;
};

}  // namespace octavo
