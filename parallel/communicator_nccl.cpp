#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/cuda_backend.h"
#include "core/cuda_check.h"
#include "core/error.h"
#include "parallel/communicator_backends.h"

// NCCL 2.28 introduced windows and the zero-CTA policy, which runs gathers on the copy engines.
static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0), "NCCL 2.28 or newer is needed");

namespace octavo {

namespace {

void check(ncclResult_t status, const char* what) {
  CHECK(status == ncclSuccess, "NCCL: {} failed: {} ({})", what, ncclGetErrorString(status), ncclGetLastError(nullptr));
}

cudaStream_t native(const Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

ncclDataType_t sum_dtype(const Tensor& tensor) {
  return tensor.dtype() == DType::kBFloat16 ? ncclBfloat16 : ncclFloat32;
}

// Queue of the collectives of one communicator that the GPU has not completed. An event follows each collective on its
// stream. The events are created once. If all of them are in use, the newest entry is reused for the collective that is
// queued next, so a late collective may be reported under the name of a later one.
class NcclQueue final : public Watchdog::Queue {
 public:
  explicit NcclQueue(ncclComm_t comm) : comm_(comm), entries_(kEntries) {
    cuda::check(cudaGetDevice(&device_), "cudaGetDevice");
    for (Entry& entry : entries_) entry.event = Event(Device::kCuda);
  }

  void push(const Collective& collective, const Stream& stream) {
    const std::lock_guard lock(mutex_);
    if (count_ < kEntries) ++count_;
    Entry& entry = entries_[(first_ + count_ - 1) % kEntries];
    entry.collective = collective;
    entry.queued = Watchdog::Clock::now();
    entry.event.record(stream);
  }

  // The waiting time of a collective begins when the previous collective is found complete, because the host may queue
  // a collective long before the GPU starts it.
  std::optional<Watchdog::Stuck> oldest_unfinished() override {
    const std::lock_guard lock(mutex_);
    ncclResult_t result = ncclSuccess;
    const ncclResult_t status = ncclCommGetAsyncError(comm_, &result);
    if (status != ncclSuccess) result = status;
    // Sets the GPU of this thread. Otherwise CUDA would use GPU 0 and create a context there.
    if (count_ > 0 && cudaSetDevice(device_) != cudaSuccess) return std::nullopt;
    while (count_ > 0 && entries_[first_].event.is_reached()) {
      first_ = (first_ + 1) % kEntries;
      --count_;
      progress_ = Watchdog::Clock::now();
    }
    const bool has_failed = result != ncclSuccess && result != ncclInProgress;
    if (count_ == 0 && !has_failed) return std::nullopt;
    const Entry& oldest = entries_[first_];
    return Watchdog::Stuck{count_ > 0 ? oldest.collective : Collective{"NCCL's connection"},
                           std::max(oldest.queued, progress_), has_failed ? ncclGetErrorString(result) : ""};
  }

 private:
  static constexpr size_t kEntries = 1024;
  struct Entry {
    Event event{Device::kCpu};
    Collective collective;
    Watchdog::Clock::time_point queued;
  };

  ncclComm_t comm_;
  int device_ = 0;
  std::mutex mutex_;  // Protects all following members.
  std::vector<Entry> entries_;
  size_t first_ = 0;
  size_t count_ = 0;
  Watchdog::Clock::time_point progress_;
};

class NcclCommunicator final : public Communicator {
 public:
  // Creates the communicator of all ranks of `group`. `ids` are equal on all ranks.
  NcclCommunicator(ProcessGroup& group, std::vector<ncclUniqueId> ids)
      : Communicator(group.watchdog(), kWorld, group.rank(), group.size()) {
    connect(0, "ncclCommInitRankScalable", [&](ncclConfig_t* config) {
      return ncclCommInitRankScalable(&comm_, size(), rank(), static_cast<int>(ids.size()), ids.data(), config);
    });
  }
  // Creates the communicator of some of the ranks of `parent`. All ranks of `parent` call this.
  NcclCommunicator(const NcclCommunicator& parent, const RankGroup& ranks)
      : Communicator(parent.watchdog(), ranks.name, ranks.rank, ranks.size) {
    connect(ranks.max_multiprocessors, "ncclCommSplit",
            [&](ncclConfig_t* config) { return ncclCommSplit(parent.comm_, ranks.color, ranks.rank, &comm_, config); });
  }
  // ncclCommDestroy waits for unfinished collectives. During stack unwinding other ranks may never complete them, so
  // the communicator is aborted instead.
  ~NcclCommunicator() override {
    watchdog().remove(&*queue_);
    const Watchdog::Scope scope(watchdog(), {"ncclCommDestroy", "", name().c_str()});
    if (std::uncaught_exceptions() > 0) {
      ncclCommAbort(comm_);
    } else {
      ncclCommDestroy(comm_);
    }
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  Registration register_memory(const Buffer& buffer) override {
    const Watchdog::Scope scope(watchdog(), {"ncclCommWindowRegister", "", name().c_str()});
    ncclWindow_t window = nullptr;
    check(ncclCommWindowRegister(comm_, buffer.data(), static_cast<size_t>(buffer.bytes()), &window,
                                 NCCL_WIN_COLL_SYMMETRIC),
          "ncclCommWindowRegister");
    // The window is null if the GPUs cannot access each other's memory.
    return {window,
            [comm = comm_](void* handle) { ncclCommWindowDeregister(comm, static_cast<ncclWindow_t>(handle)); }};
  }

 private:
  template <typename Connecting>
  void connect(int max_multiprocessors, const char* call, Connecting connecting) {
    const Watchdog::Scope scope(watchdog(), {call, "", name().c_str()});
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.commName = name().c_str();
    if (max_multiprocessors > 0) config.maxCTAs = max_multiprocessors;
    check(connecting(&config), call);
    int count = 0, place = 0;
    check(ncclCommCount(comm_, &count), "ncclCommCount");
    check(ncclCommUserRank(comm_, &place), "ncclCommUserRank");
    CHECK(count == size() && place == rank(),
          "NCCL: {} made a group for the {} axis with {} ranks in which this is rank {}, expected "
          "{} and {}",
          call, name(), count, place, size(), rank());
    queue_.emplace(comm_);
    watchdog().add(&*queue_);
  }

  std::unique_ptr<Communicator> do_split(const RankGroup& ranks) override {
    return std::make_unique<NcclCommunicator>(*this, ranks);
  }

  void do_all_gather(const Tensor& out, const Tensor& shard, Stream& stream) override {
    check(ncclAllGather(shard.raw(), out.raw(), static_cast<size_t>(shard.bytes()), ncclUint8, comm_, native(stream)),
          "ncclAllGather");
  }

  void do_reduce_scatter_sum(const Tensor& out, const Tensor& in, Stream& stream) override {
    check(ncclReduceScatter(in.raw(), out.raw(), static_cast<size_t>(out.numel()), sum_dtype(in), ncclSum, comm_,
                            native(stream)),
          "ncclReduceScatter");
  }

  void do_all_to_all(const Tensor& out, const Tensor& in, int64_t begin, Stream& stream) override {
    const int64_t bytes = out.bytes() / size();
    const int64_t slice = in.bytes() / size();
    const char* from = static_cast<const char*>(in.raw()) + begin * dtype_bytes(in.dtype());
    char* to = static_cast<char*>(out.raw());
    const auto count = static_cast<size_t>(bytes);
    check(ncclGroupStart(), "ncclGroupStart");
    for (int peer = 0; peer < size(); ++peer) {
      check(ncclSend(from + peer * slice, count, ncclUint8, peer, comm_, native(stream)), "ncclSend");
      check(ncclRecv(to + peer * bytes, count, ncclUint8, peer, comm_, native(stream)), "ncclRecv");
    }
    check(ncclGroupEnd(), "ncclGroupEnd");
  }

  void do_exchange(const Tensor& out, const Tensor& in, int peer, Stream& stream) override {
    const auto count = static_cast<size_t>(in.bytes());
    check(ncclGroupStart(), "ncclGroupStart");
    check(ncclSend(in.raw(), count, ncclUint8, peer, comm_, native(stream)), "ncclSend");
    check(ncclRecv(out.raw(), count, ncclUint8, peer, comm_, native(stream)), "ncclRecv");
    check(ncclGroupEnd(), "ncclGroupEnd");
  }

  void do_send(const Tensor& tensor, int to, Stream& stream) override {
    check(ncclSend(tensor.raw(), static_cast<size_t>(tensor.bytes()), ncclUint8, to, comm_, native(stream)),
          "ncclSend");
  }

  void do_receive(const Tensor& tensor, int from, Stream& stream) override {
    check(ncclRecv(tensor.raw(), static_cast<size_t>(tensor.bytes()), ncclUint8, from, comm_, native(stream)),
          "ncclRecv");
  }

  void do_all_reduce_sum(const Tensor& tensor, Stream& stream) override {
    all_reduce(tensor, sum_dtype(tensor), ncclSum, stream);
  }

  void do_all_reduce_max(const Tensor& tensor, Stream& stream) override {
    all_reduce(tensor, ncclUint32, ncclMax, stream);
  }

  void after_queueing(const Collective& collective, Stream& stream) override { queue_->push(collective, stream); }

  void all_reduce(const Tensor& tensor, ncclDataType_t dtype, ncclRedOp_t op, Stream& stream) {
    check(ncclAllReduce(tensor.raw(), tensor.raw(), static_cast<size_t>(tensor.numel()), dtype, op, comm_,
                        native(stream)),
          "ncclAllReduce");
  }

  ncclComm_t comm_ = nullptr;
  std::optional<NcclQueue> queue_;
};

// Number of ranks per unique id. The rank that creates an id accepts the connections of these ranks one after the
// other, so several ranks create ids and accept connections in parallel.
constexpr int kRanksPerId = 128;

// Returns the unique ids, which are equal on every rank. Ranks that are spread over the run create them.
std::vector<ncclUniqueId> unique_ids(ProcessGroup& group) {
  const int count = (group.size() + kRanksPerId - 1) / kRanksPerId;
  std::vector<ncclUniqueId> ids(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    ncclUniqueId& id = ids[static_cast<size_t>(i)];
    const int maker = i * kRanksPerId;
    group.throw_on_all_ranks([&] {
      if (group.rank() == maker) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    });
    const std::string bytes = group.broadcast({reinterpret_cast<const char*>(&id), sizeof(id)}, maker);
    std::memcpy(&id, bytes.data(), sizeof(id));
  }
  return ids;
}

// Collectives of several communicators may be in progress at once on different streams. Every rank's host launches them
// in the same order. This setting makes NCCL also schedule their kernels in that order on each GPU, so that two GPUs
// never start with different collectives and wait for each other. NCCL reads the variable at its first use.
void keep_launch_order() { setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0); }

}  // namespace

Buffer allocate_nccl_memory(int64_t bytes) {
  const int64_t granularity = NCCL_WIN_REQUIRED_ALIGNMENT;
  bytes = (bytes + granularity - 1) / granularity * granularity;
  cuda::check_free_memory(bytes);
  void* data = nullptr;
  check(ncclMemAlloc(&data, static_cast<size_t>(bytes)), "ncclMemAlloc");
  Buffer buffer = Buffer::adopt(data, bytes, [](void* memory) { ncclMemFree(memory); });
  cuda::check(cudaMemset(data, 0, static_cast<size_t>(bytes)), "cudaMemset");
  // Waits for the memset on the host, because this program's streams do not wait for the default stream.
  cuda::check(cudaDeviceSynchronize(), "cudaMemset");
  return buffer;
}

std::unique_ptr<Communicator> make_nccl_communicator(ProcessGroup& group) {
  keep_launch_order();
  return std::make_unique<NcclCommunicator>(group, unique_ids(group));
}

std::string loaded_nccl_version() {
  int version = 0;
  check(ncclGetVersion(&version), "ncclGetVersion");
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace octavo
