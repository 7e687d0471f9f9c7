// Tests of TensorGroup: which tokens each rank has.
#include <optional>

#include "parallel/tensor_group.h"
#include "tests/kernels/op_fixture.h"
#include "tests/parallel/ranks_fixture.h"

namespace octavo::tensor_group_ranks {
namespace {

constexpr int64_t kShare = 96;  // Tokens per rank.
constexpr int64_t kWidth = 5;

class TensorGroupRanks : public DeviceRanksTest {
 protected:
  void SetUp() override {
    DeviceRanksTest::SetUp();
    if (!IsSkipped()) communicator_ = make_communicator(group_, stream_);
  }

  int64_t tokens() const { return kShare * size_; }
  TensorGroup make_group() { return TensorGroup(communicator_.get(), tokens(), stream_); }

  static Tensor matrix(const DeviceArray& array) {
    return array.tensor().view({array.tensor().numel() / kWidth, kWidth});
  }

  // Returns a small integer, so that sums are exact in bfloat16 and in every order.
  static float term(int rank, int64_t token, int64_t column) {
    return static_cast<float>((rank + 2) * (token * kWidth + column) % 23 - 11);
  }
  static void set(Bytes& bytes, DType dtype, int64_t i, float value) {
    const Tensor tensor(bytes.data(), dtype, {static_cast<int64_t>(bytes.size()) / dtype_bytes(dtype)});
    if (dtype == DType::kFloat32) tensor.data<float>()[i] = value;
    if (dtype == DType::kBFloat16) tensor.data<BFloat16>()[i] = BFloat16(value);
  }

  // Returns the rows [begin, end) of the terms of one rank, or of the sum over all ranks if no rank is given.
  Bytes rows(DType dtype, int64_t begin, int64_t end, std::optional<int> rank = {}) const {
    Bytes bytes(static_cast<size_t>((end - begin) * kWidth * dtype_bytes(dtype)));
    for (int64_t i = 0; i < (end - begin) * kWidth; ++i) {
      float sum = 0;
      for (int r = 0; r < size_; ++r) sum += rank.value_or(r) == r ? term(r, begin + i / kWidth, i % kWidth) : 0;
      set(bytes, dtype, i, sum);
    }
    return bytes;
  }

  std::unique_ptr<Communicator> communicator_;
};

// Other work is queued between start_reduce_scatter() and wait(). The shares are then gathered into the same buffer, as
// in the layers of a model.
TEST_P(TensorGroupRanks, SumsTravelThereAndBack) {
  TensorGroup group = make_group();
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    SCOPED_TRACE(dtype_name(dtype));
    DeviceArray made(stream_, dtype, tokens() * kWidth);
    DeviceArray all(stream_, dtype, tokens() * kWidth);
    DeviceArray share(stream_, dtype, kShare * kWidth);
    DeviceArray beside(stream_, dtype, tokens() * kWidth);
    DeviceArray found(stream_, dtype, kShare * kWidth);
    made.write(rows(dtype, 0, tokens(), rank_));
    stream_.copy(all.tensor(), made.tensor());
    group.start_reduce_scatter(matrix(share), matrix(all), "sums");
    stream_.copy(beside.tensor(), all.tensor());
    group.wait();
    stream_.copy(found.tensor(), share.tensor());
    group.gather(matrix(all), matrix(share), "tokens");
    EXPECT_TRUE(found.read() == rows(dtype, rank_ * kShare, (rank_ + 1) * kShare));
    EXPECT_TRUE(beside.read() == made.read());
    EXPECT_TRUE(all.read() == rows(dtype, 0, tokens()));
    if (rank_ > 0) stream_.zero(all.tensor());  // Only the terms of rank 0 stay in the sum.
    group.reduce_scatter(matrix(share), matrix(all), "sums");
    EXPECT_TRUE(share.read() == found.read());
  }
}

// If the shapes or dtypes do not fit, every rank refuses the collective before it sends anything.
TEST_P(TensorGroupRanks, WhatDoesNotFit) {
  expect_error<Error>([&] { TensorGroup(communicator_.get(), tokens() + 1, stream_); },
                      std::to_string(tokens() + 1) + " tokens are not divisible among " + std::to_string(size_));
  TensorGroup group = make_group();
  DeviceArray all(stream_, DType::kFloat32, tokens() * kWidth);
  DeviceArray share(stream_, DType::kFloat32, kShare * kWidth);
  DeviceArray other(stream_, DType::kBFloat16, kShare * kWidth);
  const std::string message = "expected " + std::to_string(tokens()) + " tokens";
  expect_error<Error>([&] { group.gather(matrix(all), matrix(all), "tokens"); }, message);
  expect_error<Error>([&] { group.gather(matrix(all), matrix(other), "tokens"); }, message);
  expect_error<Error>([&] { group.reduce_scatter(matrix(share), matrix(share), "sums"); }, message);
}

INSTANTIATE_ON_DEVICES(TensorGroupRanks);

}  // namespace
}  // namespace octavo::tensor_group_ranks
