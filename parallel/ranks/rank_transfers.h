// Point-to-point transfers of bytes of any length between ranks. Any thread may transfer while the main thread runs
// collectives.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "parallel/ranks/process_group.h"

namespace octavo {

// Messages from one rank to another arrive in the order in which they were sent. Lost ranks are not detected here. The
// watchdog and the launcher detect them.
// Requires: no two threads of a rank send to the same rank, or receive from the same rank, at the same time.
class RankTransfers {
 public:
  // Creates the channel. Constructor and destructor are collectives. Throws InputError if this MPI does not support
  // calls from several threads.
  explicit RankTransfers(ProcessGroup& group);
  ~RankTransfers();

  // Sends all parts in order. After this returns, the caller may change the parts.
  void send(int to, std::span<const std::span<const std::byte>> parts);
  // Sends a failure instead of bytes, so that the receiver does not wait forever.
  void send_failure(int to);
  // Receives what `from` sends and passes it to `take` block by block. Throws Error if `from` sends a failure. If
  // `take` throws, the remaining blocks are still received, and then the exception of `take` is rethrown.
  void receive(int from, const std::function<void(std::span<const std::byte>)>& take);

 private:
  struct Channel;
  std::unique_ptr<Channel> channel_;
};

}  // namespace octavo
