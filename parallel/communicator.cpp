#include "parallel/communicator.h"

#include "build_config.h"
#include "kernels/core/error.h"
#include "parallel/communicator_backends.h"

namespace octavo {

namespace {

// A group of one: every collective is the identity.
class SingleCommunicator final : public Communicator {
 public:
  SingleCommunicator() : Communicator(0, 1) {}
  void all_reduce_sum(const Tensor&, Stream&) override {}
  void all_reduce_max(const Tensor&, Stream&) override {}
  void broadcast(const Tensor&, int, Stream&) override {}
};

}  // namespace

std::unique_ptr<Communicator> make_communicator(ProcessGroup& group, Stream& stream) {
  if (group.size() == 1) return std::make_unique<SingleCommunicator>();
  if constexpr (kHasCuda) {
    if (stream.is_cuda()) return make_nccl_communicator(group, stream);
  }
  static_cast<void>(stream);
  return make_mpi_communicator(group);
}

}  // namespace octavo
