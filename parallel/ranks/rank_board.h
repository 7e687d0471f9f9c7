// RankBoard is a page of memory, shared by the ranks of one machine, in which each rank writes how many collectives it
// has entered. A rank that waits too long for a collective reads there which other ranks have not entered it, without
// their help. All ranks enter the same collectives in the same order, so equal counts mean the same collective. Ranks
// of different pipeline stages enter different collectives. At certain points of a step every rank therefore raises its
// count to the next multiple of kInterval, and ranks of different stages compare only count / kInterval.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace octavo {

class RankBoard {
 public:
  // Creates a board of one rank that is not shared.
  RankBoard() : RankBoard("", 1) {}
  // Create or open the board of this machine's `local_size` ranks in POSIX shared memory. The first rank creates
  // `name`, the other ranks then open it, and afterwards the name may be unlinked. Both throw Error if there is no
  // shared memory.
  static RankBoard create(const std::string& name, int local_size);
  static RankBoard open(const std::string& name, int local_size);
  static void unlink(const std::string& name) noexcept;

  // Registers this rank. A board that is not shared has one entry, whatever the local rank is.
  void sign_in(int local_rank, int rank);
  // Marks this rank as about to exit on purpose, so that gone() of other ranks does not report it.
  void sign_out();
  void set_entered(int64_t number);
  // Sets the pipeline stage of this rank, which messages then name.
  void set_stage(int64_t stage);
  // Unit in which the counts of ranks of different pipeline stages are compared.
  static constexpr int64_t kInterval = int64_t{1} << 20;

  // Returns one sentence about the ranks of this machine that have entered fewer than `number` collectives. Empty if
  // there are none.
  std::string missing(int64_t number) const;
  // Returns one sentence about the ranks of this machine whose processes ended without sign_out(). Empty if there are
  // none. Any thread may call this method.
  std::string gone() const;
  // Returns true for the first rank of the machine that calls this method. That rank prints the final message.
  bool claim_report();
  // Returns true for the first rank of the machine that asks about the collective with this number. That rank prints
  // the notice that a wait for files takes long.
  bool claim_notice(int64_t number);

 private:
  struct Entry {
    std::atomic<int64_t> entered;
    std::atomic<int32_t> rank;
    // Process id. 0 before sign_in() and after sign_out().
    std::atomic<int32_t> pid;
    // Pipeline stage plus 1. 0 without pipeline stages.
    std::atomic<int64_t> stage;
    // Namespace of `pid`. Process ids are comparable only within one namespace.
    std::atomic<uint64_t> pid_namespace;
    // Whether a rank of the machine has claimed the report. Used in the first rank's entry only.
    std::atomic<int32_t> is_reported;
    // Number of the last collective whose notice a rank has claimed. Used in the first rank's entry only.
    std::atomic<int64_t> noticed;
  };

  // Maps the shared memory `name`, or memory of this process only if `name` is empty. `flags` are those of shm_open.
  RankBoard(const std::string& name, int local_size, int flags = 0);
  std::span<const Entry> entries() const { return {entries_.get(), static_cast<size_t>(local_size_)}; }
  Entry& mine() const { return entries_[static_cast<size_t>(local_rank_)]; }
  bool is_gone(const Entry& entry) const;
  bool is_missing(const Entry& entry, int64_t number) const;
  static std::string name_of(const Entry& entry);

  std::unique_ptr<Entry[], std::function<void(Entry*)>> entries_;  // Entries of the board, one per rank.
  int local_rank_ = 0;
  int local_size_;
};

}  // namespace octavo
