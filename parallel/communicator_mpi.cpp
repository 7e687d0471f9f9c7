#include <algorithm>
#include <exception>
#include <vector>

#include "core/error.h"
#include "parallel/communicator_backends.h"
#include "parallel/ranks/handles_mpi.h"

namespace octavo {

namespace {

using mpi::check;

// Maximum number of bytes per rank and call, because MPI counts are ints.
constexpr int64_t kChunkBytes = int64_t{1} << 24;
// Size of the buffer in which the slices of all ranks are collected before they are summed. Longer sums are split.
constexpr int64_t kScratchBytes = int64_t{1} << 22;

int as_int(int64_t value) { return static_cast<int>(value); }

// Sets out[i] = the sum of terms[r * count + i] over the n ranks r, in rank order.
template <typename T>
void sum_in_rank_order(T* out, const T* terms, int64_t count, int n) {
#pragma omp parallel for
  for (int64_t i = 0; i < count; ++i) {
    float sum = static_cast<float>(terms[i]);
    for (int r = 1; r < n; ++r) sum += static_cast<float>(terms[r * count + i]);
    out[i] = static_cast<T>(sum);
  }
}

class MpiCommunicator final : public Communicator {
 public:
  // Creates the communicator of `ranks`, which are some of the ranks of `parent`. A collective of all ranks of
  // `parent`.
  MpiCommunicator(Watchdog& watchdog, const RankGroup& ranks, MPI_Comm parent)
      : Communicator(watchdog, ranks.name, ranks.rank, ranks.size),
        comm_(split_watched(watchdog, ranks, parent)),
        scratch_(static_cast<size_t>(kScratchBytes)) {}
  // Waits for the transfer, except during stack unwinding, because other ranks may then never take part in it.
  ~MpiCommunicator() override {
    if (std::uncaught_exceptions() == 0)
      MPI_Waitall(as_int(std::ssize(transfer_)), transfer_.data(), MPI_STATUSES_IGNORE);
  }

 private:
  static mpi::Comm split_watched(Watchdog& watchdog, const RankGroup& ranks, MPI_Comm parent) {
    const Watchdog::Scope scope(watchdog, {"MPI_Comm_split", "", ranks.name.c_str()});
    return mpi::Comm::split(parent, ranks.color, ranks.rank);
  }

  std::unique_ptr<Communicator> do_split(const RankGroup& ranks) override {
    return std::make_unique<MpiCommunicator>(watchdog(), ranks, comm_.get());
  }

  void do_all_gather(const Tensor& out, const Tensor& shard, Stream&) override {
    char* whole = static_cast<char*>(out.raw());
    char* mine = static_cast<char*>(shard.raw());
    const int64_t bytes = shard.bytes();
    const bool in_place = mine == whole + rank() * bytes;
    for (int64_t begin = 0; begin < bytes; begin += kChunkBytes) {
      const int count = as_int(std::min(kChunkBytes, bytes - begin));
      const mpi::StridedBytes slices(count, static_cast<MPI_Aint>(bytes));
      check(MPI_Allgather(in_place ? MPI_IN_PLACE : mine + begin, count, MPI_BYTE, whole + begin, 1, slices.get(),
                          comm_.get()),
            "MPI_Allgather");
    }
  }

  void do_reduce_scatter_sum(const Tensor& out, const Tensor& in, Stream&) override {
    if (in.dtype() == DType::kFloat32) return reduce_scatter_sum_of(out.data<float>(), in.data<float>(), out.numel());
    reduce_scatter_sum_of(out.data<BFloat16>(), in.data<BFloat16>(), out.numel());
  }

  void do_all_to_all(const Tensor& out, const Tensor& in, int64_t begin, Stream&) override {
    const int64_t element = dtype_bytes(in.dtype());
    const int64_t bytes = out.bytes() / size();
    const int64_t slice = in.bytes() / size();
    const char* from = static_cast<const char*>(in.raw()) + begin * element;
    char* to = static_cast<char*>(out.raw());
    for (int64_t done = 0; done < bytes; done += kChunkBytes) {
      const int count = as_int(std::min(kChunkBytes, bytes - done));
      const mpi::StridedBytes sent(count, static_cast<MPI_Aint>(slice));
      const mpi::StridedBytes received(count, static_cast<MPI_Aint>(bytes));
      check(MPI_Alltoall(from + done, 1, sent.get(), to + done, 1, received.get(), comm_.get()), "MPI_Alltoall");
    }
  }

  void do_exchange(const Tensor& out, const Tensor& in, int peer, Stream&) override {
    const char* sent = static_cast<const char*>(in.raw());
    char* received = static_cast<char*>(out.raw());
    for (int64_t begin = 0; begin < in.bytes(); begin += kChunkBytes) {
      const int count = as_int(std::min(kChunkBytes, in.bytes() - begin));
      check(MPI_Sendrecv(sent + begin, count, MPI_BYTE, peer, 0, received + begin, count, MPI_BYTE, peer, 0,
                         comm_.get(), MPI_STATUS_IGNORE),
            "MPI_Sendrecv");
    }
  }

  void do_send(const Tensor& tensor, int to, Stream&) override {
    for_each_chunk(tensor, [&](char* data, int count, MPI_Request* request) {
      check(MPI_Isend(data, count, MPI_BYTE, to, 0, comm_.get(), request), "MPI_Isend");
    });
  }

  void do_receive(const Tensor& tensor, int from, Stream&) override {
    for_each_chunk(tensor, [&](char* data, int count, MPI_Request* request) {
      check(MPI_Irecv(data, count, MPI_BYTE, from, 0, comm_.get(), request), "MPI_Irecv");
    });
  }

  // Starts the transfers of a tensor, one for each chunk.
  template <typename Start>
  void for_each_chunk(const Tensor& tensor, const Start& start) {
    CHECK(!has_transfer(), "the transfer before is not finished ({} axis)", name());
    for (int64_t begin = 0; begin < tensor.bytes(); begin += kChunkBytes) {
      start(static_cast<char*>(tensor.raw()) + begin, as_int(std::min(kChunkBytes, tensor.bytes() - begin)),
            &transfer_.emplace_back(MPI_REQUEST_NULL));
    }
  }

  bool has_transfer() const override { return !transfer_.empty(); }
  void do_finish_transfer() override {
    check(MPI_Waitall(as_int(std::ssize(transfer_)), transfer_.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
    transfer_.clear();
  }

  void do_all_reduce_sum(const Tensor& tensor, Stream&) override {
    if (tensor.dtype() == DType::kFloat32) return all_reduce_sum_of(tensor.data<float>(), tensor.numel());
    all_reduce_sum_of(tensor.data<BFloat16>(), tensor.numel());
  }

  void do_all_reduce_max(const Tensor& tensor, Stream&) override {
    constexpr int64_t kChunk = kChunkBytes / static_cast<int64_t>(sizeof(float));
    float* data = tensor.data<float>();
    for (int64_t begin = 0; begin < tensor.numel(); begin += kChunk) {
      const int count = as_int(std::min(kChunk, tensor.numel() - begin));
      check(MPI_Allreduce(MPI_IN_PLACE, data + begin, count, MPI_UINT32_T, MPI_MAX, comm_.get()), "MPI_Allreduce");
    }
  }

  // Returns how many elements per rank fit into the scratch, which holds those of all ranks.
  template <typename T>
  int64_t elements_per_rank() const {
    return std::max<int64_t>(1, kScratchBytes / static_cast<int64_t>(sizeof(T)) / size());
  }

  template <typename T>
  T* scratch(int64_t elements) {
    scratch_.resize(std::max(scratch_.size(), static_cast<size_t>(elements) * sizeof(T)));
    return reinterpret_cast<T*>(scratch_.data());
  }

  // Each rank collects the terms of all ranks for its slice of `k` elements and adds them.
  template <typename T>
  void reduce_scatter_sum_of(T* out, const T* in, int64_t k) {
    const int64_t step = elements_per_rank<T>();
    T* terms = scratch<T>(step * size());
    for (int64_t begin = 0; begin < k; begin += step) {
      const int64_t count = std::min(step, k - begin);
      const int bytes = as_int(count * static_cast<int64_t>(sizeof(T)));
      const mpi::StridedBytes slices(bytes, static_cast<MPI_Aint>(k * static_cast<int64_t>(sizeof(T))));
      check(MPI_Alltoall(in + begin, 1, slices.get(), terms, bytes, MPI_BYTE, comm_.get()), "MPI_Alltoall");
      sum_in_rank_order(out + begin, terms, count, size());
    }
  }

  // Processes the tensor in chunks. Each rank sums its part of a chunk, and then all ranks gather the parts.
  template <typename T>
  void all_reduce_sum_of(T* data, int64_t numel) {
    const int64_t step = elements_per_rank<T>() * size();
    T* terms = scratch<T>(step);
    for (int64_t begin = 0; begin < numel; begin += step) {
      const Parts parts(std::min(step, numel - begin), static_cast<int>(sizeof(T)), rank(), size());
      T* chunk = data + begin;
      check(MPI_Alltoallv(chunk, parts.bytes.data(), parts.offsets.data(), MPI_BYTE, terms, parts.my_bytes.data(),
                          parts.my_offsets.data(), MPI_BYTE, comm_.get()),
            "MPI_Alltoallv");
      sum_in_rank_order(chunk + parts.my_begin, terms, parts.my_count, size());
      check(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_BYTE, chunk, parts.bytes.data(), parts.offsets.data(), MPI_BYTE,
                           comm_.get()),
            "MPI_Allgatherv");
    }
  }

  // Division of `count` elements among the ranks, as equal as possible, in the form of MPI's arguments: bytes and
  // offsets of every rank's part, and of this rank's part repeated for every rank.
  struct Parts {
    Parts(int64_t count, int element_bytes, int rank, int size) {
      for (int r = 0; r < size; ++r) {
        const int64_t first = count * r / size;
        const int64_t elements = count * (r + 1) / size - first;
        offsets.push_back(as_int(first) * element_bytes);
        bytes.push_back(as_int(elements) * element_bytes);
        if (r == rank) my_begin = first;
        if (r == rank) my_count = elements;
      }
      my_bytes.assign(bytes.size(), as_int(my_count) * element_bytes);
      for (int r = 0; r < size; ++r) my_offsets.push_back(r * as_int(my_count) * element_bytes);
    }

    int64_t my_begin = 0;
    int64_t my_count = 0;
    std::vector<int> bytes, offsets, my_bytes, my_offsets;
  };

  mpi::Comm comm_;
  std::vector<char> scratch_;
  std::vector<MPI_Request> transfer_;  // Requests of the send() or receive() in progress.
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(ProcessGroup& group) {
  const RankGroup all{.name = kWorld, .rank = group.rank(), .size = group.size()};
  return std::make_unique<MpiCommunicator>(group.watchdog(), all, MPI_COMM_WORLD);
}

}  // namespace octavo
