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
  group.agree([&] {
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
  // The receiver does not know the lengths of the parts, so blocks may span several parts.
  std::vector<std::byte> block;
  block.reserve(static_cast<size_t>(std::min(bytes, kBlockBytes)));
  const auto send_block = [&] {
    check(MPI_Send(block.data(), static_cast<int>(block.size()), MPI_BYTE, to, 0, channel_->comm.get()), "MPI_Send");
    block.clear();
  };
  for (std::span<const std::byte> part : parts) {
    while (!part.empty()) {
      const size_t count = std::min(part.size(), static_cast<size_t>(kBlockBytes) - block.size());
      block.insert(block.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(count));
      part = part.subspan(count);
      if (std::ssize(block) == kBlockBytes) send_block();
    }
  }
  if (!block.empty()) send_block();
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
  for (int64_t received = 0; received < bytes; received += kBlockBytes) {
    const auto count = static_cast<size_t>(std::min(kBlockBytes, bytes - received));
    check(MPI_Recv(block.data(), static_cast<int>(count), MPI_BYTE, from, 0, channel_->comm.get(), MPI_STATUS_IGNORE),
          "MPI_Recv");
    if (failure) continue;
    try {
      take({block.data(), count});
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace octavo
