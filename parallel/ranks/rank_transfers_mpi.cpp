#include <algorithm>
#include <exception>
#include <vector>

#include "core/error.h"
#include "parallel/ranks/handles_mpi.h"
#include "parallel/ranks/rank_transfers.h"

namespace octavo {

namespace {

using mpi::check;

constexpr int64_t kBlockBytes = int64_t{1} << 24;
// Value that is sent instead of a number of bytes after a failure.
constexpr int64_t kFailure = -1;

}  // namespace

struct RankTransfers::Channel {
  int rank;
  mpi::Comm comm;
};

RankTransfers::RankTransfers(ProcessGroup& group) {
  group.throw_on_all_ranks([&] {
    CHECK_INPUT(group.has_threads(), "{} does not support several threads per process, expected MPI_THREAD_MULTIPLE",
                mpi_version());
  });
  channel_ = std::make_unique<Channel>(Channel{group.rank(), mpi::Comm::split(MPI_COMM_WORLD, 0, group.rank())});
}

RankTransfers::~RankTransfers() = default;

void RankTransfers::send(int to, std::span<const std::span<const std::byte>> parts) {
  int64_t bytes = 0;
  for (const auto& part : parts) bytes += std::ssize(part);
  check(MPI_Send(&bytes, 1, MPI_INT64_T, to, 0, channel_->comm.get()), "MPI_Send");
  for (std::span<const std::byte> part : parts) {
    while (!part.empty()) {
      const int count = static_cast<int>(std::min(std::ssize(part), kBlockBytes));
      check(MPI_Send(part.data(), count, MPI_BYTE, to, 0, channel_->comm.get()), "MPI_Send");
      part = part.subspan(static_cast<size_t>(count));
    }
  }
}

void RankTransfers::send_failure(int to) {
  check(MPI_Send(&kFailure, 1, MPI_INT64_T, to, 0, channel_->comm.get()), "MPI_Send");
}

void RankTransfers::receive(int from, const std::function<void(std::span<const std::byte>)>& take) {
  int64_t bytes = 0;
  check(MPI_Recv(&bytes, 1, MPI_INT64_T, from, 0, channel_->comm.get(), MPI_STATUS_IGNORE), "MPI_Recv");
  CHECK(bytes != kFailure, "rank {} failed to read what it should send to rank {}", from, channel_->rank);
  std::vector<std::byte> block(static_cast<size_t>(std::min(bytes, kBlockBytes)));
  std::exception_ptr failure;
  for (int64_t received = 0; received < bytes;) {
    MPI_Status status;
    int count = 0;
    check(MPI_Recv(block.data(), static_cast<int>(block.size()), MPI_BYTE, from, 0, channel_->comm.get(), &status),
          "MPI_Recv");
    check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
    received += count;
    if (failure) continue;
    try {
      take({block.data(), static_cast<size_t>(count)});
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace octavo
