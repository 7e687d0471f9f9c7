// Bytes from rank to rank, as many as there are, by whatever thread: beside the collectives of the main thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "parallel/ranks/process_group.h"

namespace octavo {

// What a rank sends another arrives in the order sent. No two threads of a rank send to, or receive from, the same rank
// at once. A rank that is lost is the matter of whoever waits for all of them (the watchdog, the launcher).
class RankTransfers {
 public:
  // A collective, as the destructor is. InputError when this MPI cannot be used by several threads.
  explicit RankTransfers(ProcessGroup& group);
  ~RankTransfers();
  RankTransfers(const RankTransfers&) = delete;
  RankTransfers& operator=(const RankTransfers&) = delete;

  // All parts, one after the other. Returns when they may be changed: all but the end is with the receiver.
  void send(int to, std::span<const std::span<const std::byte>> parts);
  // In place of that, for a receiver that would wait in vain.
  void send_failure(int to);
  // Hands what `from` sends to `take`, block by block. Error where it sends a failure. When `take` throws, the rest is
  // received all the same, and what it threw is thrown then.
  void receive(int from, const std::function<void(std::span<const std::byte>)>& take);

 private:
  struct Channel;
  std::unique_ptr<Channel> channel_;
};

}  // namespace octavo
