#include <mpi.h>

#include <algorithm>

#include "kernels/core/error.h"
#include "kernels/core/profiler.h"
#include "parallel/communicator_backends.h"

namespace octavo {

namespace {

constexpr int64_t kChunk = int64_t{1} << 28;  // MPI counts are ints

void check(int status, const char* what) { CHECK(status == MPI_SUCCESS, "MPI: {} failed with {}", what, status); }

class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(const ProcessGroup& group) : Communicator(group.rank(), group.size()) {}

  void all_reduce_sum(const Tensor& tensor, Stream& stream) override { all_reduce(tensor, MPI_SUM, stream); }
  void all_reduce_max(const Tensor& tensor, Stream& stream) override { all_reduce(tensor, MPI_MAX, stream); }

  void broadcast(const Tensor& tensor, int root, Stream& stream) override {
    const OpTimer timer(stream, "broadcast", 0, static_cast<double>(tensor.bytes()), OpBound::kCommunication);
    char* data = static_cast<char*>(tensor.raw());
    for (int64_t begin = 0; begin < tensor.bytes(); begin += kChunk) {
      const int count = static_cast<int>(std::min(kChunk, tensor.bytes() - begin));
      check(MPI_Bcast(data + begin, count, MPI_CHAR, root, MPI_COMM_WORLD), "MPI_Bcast");
    }
  }

 private:
  void all_reduce(const Tensor& tensor, MPI_Op op, Stream& stream) {
    const OpTimer timer(stream, "all_reduce", 0, static_cast<double>(tensor.bytes()), OpBound::kCommunication);
    float* data = tensor.data<float>();
    for (int64_t begin = 0; begin < tensor.numel(); begin += kChunk) {
      const int count = static_cast<int>(std::min(kChunk, tensor.numel() - begin));
      check(MPI_Allreduce(MPI_IN_PLACE, data + begin, count, MPI_FLOAT, op, MPI_COMM_WORLD), "MPI_Allreduce");
    }
  }
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(ProcessGroup& group) {
  return std::make_unique<MpiCommunicator>(group);
}

}  // namespace octavo
