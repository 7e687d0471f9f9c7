// Watchdog: ends the run when a collective does not come to an end, because a rank died, hangs or went another way, so
// that no rank waits for ever and holds its GPU. A thread looks now and then, at least twenty times in the time
// allowed, at how long the main thread has been inside a collective and at what else it was given to watch (NCCL's
// queues); past the limit, or when one of these reports a failure, it prints one line a machine naming the rank, the
// collective and, among the ranks of this machine, those that have not come to it, and ends the process with exit code
// 1 and all others with it. It needs nothing of the main thread, which may never come back.
//
// When the process of another rank of this machine is gone (killed, or it crashed), the run ends within a second,
// whatever the main thread is doing: no collective can complete any more, and so no checkpoint.
//
// Ranks that wait for one at work with files wait any time, as disks are slow: past the limit they say so once.
//
// Scope is for the main thread alone; it costs two uncontended locks.
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

// A collective under way, as messages name it. The texts are borrowed.
struct Collective {
  const char* op = "";    // "all_gather"
  const char* what = "";  // whose tensor, if given: "weights of block 3"
  const char* axis = "";  // if it is of one
  int64_t number = 0;     // of the collectives this rank has entered; Scope sets it
  // The ranks that have not come to it may be at work with files.
  bool waits_for_files = false;

  std::string describe() const;  // "all_gather of weights of block 3 (shard axis)"
};

class Watchdog {
 public:
  using Clock = std::chrono::steady_clock;

  // What does not come to an end.
  struct Stuck {
    Collective collective;
    Clock::time_point since;
    std::string failure;  // reported by the library, to be passed on at once; empty while it is only late
  };

  // Collectives that go on after the main thread has queued them. Called by the watchdog's thread.
  class Queue {
   public:
    virtual ~Queue() = default;
    virtual std::optional<Stuck> oldest_unfinished() = 0;
  };

  // `end_all` ends all ranks with exit code 1, if it can; called at most once, from another thread.
  Watchdog(int rank, RankBoard board, std::function<void()> end_all);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // From now on a collective may take this long, unless it waits for files; 0: any time, which is how it starts.
  void set_timeout(double seconds);

  // Ends all ranks with exit code 1, after one line, if the process of a rank of this machine is gone. For any thread.
  void end_if_gone();
  // This rank is about to end by itself, which is no reason for the others to end.
  void leave() { board_.sign_out(); }
  // This rank says itself why all ranks end.
  void claim_report() { board_.claim_report(); }

  // Until removed, which waits for a look that is under way.
  void add(Queue* queue);
  void remove(Queue* queue);

  // The main thread is inside a collective.
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
  // Prints the sentence, as the first rank of its machine that does. Requires the mutex.
  [[noreturn]] void end(const std::string& sentence);

  int rank_;
  RankBoard board_;
  std::function<void()> end_all_;
  std::mutex mutex_;  // over all that follows
  std::condition_variable changed_;
  bool is_stopping_ = false;
  double timeout_s_ = 0;
  int64_t entered_ = 0;
  std::optional<Stuck> inside_;
  std::vector<Queue*> queues_;
  std::thread thread_;
};

}  // namespace octavo
