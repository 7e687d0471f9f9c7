// RankBoard: a page of memory that the ranks of one machine share, on which each writes how many collectives it has
// entered. When one of them waits too long it can so tell which of the others have not come, without their help. All
// ranks enter the same collectives in the same order, so equal numbers mean the same collective.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace octavo {

class RankBoard {
 public:
  // A board of one rank, shared with nobody.
  RankBoard() : RankBoard("", 1) {}
  // The board of this machine's `local_size` ranks, in POSIX shared memory: the first rank creates `name`, the others
  // open it afterwards, and then it may be unlinked. Throws Error where there is no shared memory.
  static RankBoard create(const std::string& name, int local_size);
  static RankBoard open(const std::string& name, int local_size);
  static void unlink(const std::string& name) noexcept;

  void sign_in(int local_rank, int rank);
  // This rank is about to end by itself: from now on the others do not take it for one that is gone.
  void sign_out();
  void set_entered(int64_t number);

  // One sentence on the ranks of this machine that have entered fewer than `number` collectives; empty if none has.
  std::string missing(int64_t number) const;
  // One sentence on the ranks of this machine whose processes have ended without a sign_out(); empty if none has. Any
  // thread may call it.
  std::string gone() const;
  // True for the first rank of the machine that asks.
  bool claim_report();
  // The same for each collective: true for the first that asks for one of this number.
  bool claim_notice(int64_t number);

 private:
  struct Entry {
    std::atomic<int64_t> entered;
    std::atomic<int32_t> rank;
    std::atomic<int32_t> pid;             // 0 before sign_in() and after sign_out()
    std::atomic<uint64_t> pid_namespace;  // pids mean the same only within one
    // Of the first rank's entry, for the whole machine:
    std::atomic<int32_t> is_reported;
    std::atomic<int64_t> noticed;  // the last collective that was
  };

  // Maps `name`, or memory of this process alone when it is empty; `flags` as for shm_open.
  RankBoard(const std::string& name, int local_size, int flags = 0);
  Entry& mine() const { return entries_[static_cast<size_t>(local_rank_)]; }
  bool is_gone(const Entry& entry) const;

  std::unique_ptr<Entry[], std::function<void(Entry*)>> entries_;  // one a rank
  int local_rank_ = 0;
  int local_size_;
};

}  // namespace octavo
