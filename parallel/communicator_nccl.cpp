#include <nccl.h>

#include <cstring>
#include <utility>

#include "kernels/core/error.h"
#include "kernels/core/profiler.h"
#include "parallel/communicator_backends.h"

namespace octavo {

namespace {

void check(ncclResult_t status, const char* what) {
  CHECK(status == ncclSuccess, "NCCL: {} failed: {}", what, ncclGetErrorString(status));
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(ProcessGroup& group, const ncclUniqueId& id) : Communicator(group.rank(), group.size()) {
    check(ncclCommInitRank(&handle_, group.size(), id, group.rank()), "ncclCommInitRank");
  }
  ~NcclCommunicator() override { ncclCommDestroy(handle_); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  void all_reduce_sum(const Tensor& tensor, Stream& stream) override { all_reduce(tensor, ncclSum, stream); }
  void all_reduce_max(const Tensor& tensor, Stream& stream) override { all_reduce(tensor, ncclMax, stream); }

  void broadcast(const Tensor& tensor, int root, Stream& stream) override {
    const OpTimer timer(stream, "broadcast", 0, static_cast<double>(tensor.bytes()), OpBound::kCommunication);
    check(ncclBroadcast(tensor.raw(), tensor.raw(), static_cast<size_t>(tensor.bytes()), ncclUint8, root, handle_,
                        static_cast<cudaStream_t>(stream.native())),
          "ncclBroadcast");
  }

 private:
  void all_reduce(const Tensor& tensor, ncclRedOp_t op, Stream& stream) {
    const OpTimer timer(stream, "all_reduce", 0, static_cast<double>(tensor.bytes()), OpBound::kCommunication);
    float* data = tensor.data<float>();
    check(ncclAllReduce(data, data, static_cast<size_t>(tensor.numel()), ncclFloat32, op, handle_,
                        static_cast<cudaStream_t>(stream.native())),
          "ncclAllReduce");
  }

  ncclComm_t handle_ = nullptr;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(ProcessGroup& group, Stream&) {
  ncclUniqueId id;
  if (group.is_root()) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  const std::string bytes = group.broadcast(std::string(reinterpret_cast<const char*>(&id), sizeof(id)));
  std::memcpy(&id, bytes.data(), sizeof(id));
  return std::make_unique<NcclCommunicator>(group, id);
}

}  // namespace octavo
