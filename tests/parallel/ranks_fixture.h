// Fixture of the tests on several ranks. mpirun starts them (see tests/CMakeLists.txt). Every rank runs every test and
// checks its own results, and mpirun fails if any rank fails. A test uses EXPECT before a collective, because a
// rank that returned from the test early would leave the other ranks waiting.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/arena.h"
#include "parallel/communicator.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

// Process group of this process. main() creates it, because MPI can be initialized only once.
extern ProcessGroup* ranks;

class RanksTest : public ::testing::Test {
 protected:
  ProcessGroup& group_ = *ranks;
  const int rank_ = ranks->rank();
  const int size_ = ranks->size();
};

// Runs each test with tensors on the CPU, over MPI, and with tensors on GPUs, over NCCL, if every rank has a GPU or
// NCCL_HOSTID lets them share one.
class DeviceRanksTest : public RanksTest, public ::testing::WithParamInterface<Device> {
 protected:
  bool is_cuda() const { return GetParam() == Device::kCuda; }

  void SetUp() override {
    if (!is_cuda()) return;
    const int gpus = cuda_device_count();
    const bool has_gpu = gpus >= group_.local_size() || (gpus > 0 && std::getenv("NCCL_HOSTID") != nullptr);
    if (group_.all_reduce_max(has_gpu ? 0 : 1) != 0) GTEST_SKIP() << "needs a GPU per rank";
    stream_ = Stream::cuda(group_.local_rank() % gpus);
  }

  Stream stream_ = Stream::cpu();
};

#define INSTANTIATE_ON_DEVICES(Suite)                                                         \
  INSTANTIATE_TEST_SUITE_P(Devices, Suite, ::testing::Values(Device::kCpu, Device::kCuda),    \
                           [](const ::testing::TestParamInfo<Device>& one) {                  \
                             return std::string(one.param == Device::kCuda ? "Cuda" : "Cpu"); \
                           })

using Bytes = std::vector<char>;

// A tensor on the stream's device, with functions that copy bytes from and to the host.
class DeviceArray {
 public:
  DeviceArray(Stream& stream, DType dtype, int64_t elements)
      : stream_(stream),
        buffer_(Buffer::device(stream.device(), elements * dtype_bytes(dtype))),
        tensor_(buffer_.data(), dtype, {elements}) {}

  const Tensor& tensor() const { return tensor_; }
  // Returns elements [begin, end) of the tensor.
  Tensor part(int64_t begin, int64_t end) const { return tensor_.rows(begin, end); }

  void write(const Bytes& bytes, int64_t offset = 0) {
    stream_.copy(static_cast<char*>(tensor_.raw()) + offset, bytes.data(), static_cast<int64_t>(bytes.size()));
    stream_.synchronize();
  }
  Bytes read() const {
    Bytes bytes(static_cast<size_t>(tensor_.bytes()));
    stream_.copy(bytes.data(), tensor_.raw(), tensor_.bytes());
    stream_.synchronize();
    return bytes;
  }

 private:
  Stream& stream_;
  Buffer buffer_;
  Tensor tensor_;
};

}  // namespace octavo
