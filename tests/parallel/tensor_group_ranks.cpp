// Tests of TensorGroup: which tokens each rank has.
#include <algorithm>
#include <cmath>
#include <vector>

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

  // Returns the share of `rank`. Its bytes differ from those of other ranks.
  static Bytes share_bytes(int rank, DType dtype) {
    Bytes bytes(static_cast<size_t>(kShare * kWidth * dtype_bytes(dtype)));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(61 * rank + 7 * static_cast<int>(i) + 1);
    return bytes;
  }

  Bytes gathered(DType dtype) const {
    Bytes all;
    for (int r = 0; r < size_; ++r) {
      const Bytes share = share_bytes(r, dtype);
      all.insert(all.end(), share.begin(), share.end());
    }
    return all;
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

  // Returns the terms of this rank.
  Bytes terms(DType dtype) const {
    Bytes all(static_cast<size_t>(tokens() * kWidth * dtype_bytes(dtype)));
    for (int64_t i = 0; i < tokens() * kWidth; ++i) set(all, dtype, i, term(rank_, i / kWidth, i % kWidth));
    return all;
  }
  // Returns this rank's share of the sum.
  Bytes share_of_sum(DType dtype) const {
    Bytes share(static_cast<size_t>(kShare * kWidth * dtype_bytes(dtype)));
    for (int64_t i = 0; i < kShare * kWidth; ++i) {
      float sum = 0;
      for (int r = 0; r < size_; ++r) sum += term(r, rank_ * kShare + i / kWidth, i % kWidth);
      set(share, dtype, i, sum);
    }
    return share;
  }

  std::unique_ptr<Communicator> communicator_;
};

TEST_P(TensorGroupRanks, Gather) {
  TensorGroup group = make_group();
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kUInt8}) {
    DeviceArray all(stream_, dtype, tokens() * kWidth);
    DeviceArray share(stream_, dtype, kShare * kWidth);
    share.write(share_bytes(rank_, dtype));
    group.gather(matrix(all), matrix(share), "tokens");
    EXPECT_TRUE(all.read() == gathered(dtype)) << dtype_name(dtype);
    EXPECT_TRUE(share.read() == share_bytes(rank_, dtype));
  }
}

TEST_P(TensorGroupRanks, ReduceScatter) {
  TensorGroup group = make_group();
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    DeviceArray all(stream_, dtype, tokens() * kWidth);
    DeviceArray share(stream_, dtype, kShare * kWidth);
    all.write(terms(dtype));
    group.reduce_scatter(matrix(share), matrix(all), "sums");
    EXPECT_TRUE(share.read() == share_of_sum(dtype)) << dtype_name(dtype);
    EXPECT_TRUE(all.read() == terms(dtype));
  }
}

// Other work is queued between start_reduce_scatter() and wait().
TEST_P(TensorGroupRanks, ReduceScatterBesideOtherWork) {
  TensorGroup group = make_group();
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    DeviceArray made(stream_, dtype, tokens() * kWidth);
    DeviceArray all(stream_, dtype, tokens() * kWidth);
    DeviceArray share(stream_, dtype, kShare * kWidth);
    DeviceArray beside(stream_, dtype, tokens() * kWidth);
    DeviceArray found(stream_, dtype, kShare * kWidth);
    made.write(terms(dtype));
    stream_.copy(all.tensor(), made.tensor());
    group.start_reduce_scatter(matrix(share), matrix(all), "sums");
    stream_.copy(beside.tensor(), all.tensor());
    group.wait();
    stream_.copy(found.tensor(), share.tensor());
    EXPECT_TRUE(found.read() == share_of_sum(dtype)) << dtype_name(dtype);
    EXPECT_TRUE(beside.read() == terms(dtype));
  }
}

// Transfers use the same buffers one after the other, as in the layers of a model.
TEST_P(TensorGroupRanks, SharesTravelThereAndBack) {
  TensorGroup group = make_group();
  DeviceArray all(stream_, DType::kFloat32, tokens() * kWidth);
  DeviceArray share(stream_, DType::kFloat32, kShare * kWidth);
  all.write(terms(DType::kFloat32));
  group.reduce_scatter(matrix(share), matrix(all), "sums");
  for (int round = 0; round < 3; ++round) {
    group.gather(matrix(all), matrix(share), "tokens");
    if (rank_ > 0) stream_.zero(all.tensor());  // Only the terms of rank 0 stay in the sum.
    group.reduce_scatter(matrix(share), matrix(all), "sums");
  }
  EXPECT_TRUE(share.read() == share_of_sum(DType::kFloat32));
}

TEST_P(TensorGroupRanks, WholeTensors) {
  TensorGroup group = make_group();
  EXPECT_EQ(group.rank(), rank_);
  EXPECT_EQ(group.size(), size_);
  EXPECT_EQ(group.alone(), size_ == 1);
  DeviceArray mine(stream_, DType::kFloat32, kShare);
  DeviceArray sum(stream_, DType::kFloat32, kShare);
  DeviceArray all(stream_, DType::kFloat32, tokens());
  const auto values = [](const auto& value, int64_t count) {
    Bytes bytes(static_cast<size_t>(count) * sizeof(float));
    for (int64_t i = 0; i < count; ++i) set(bytes, DType::kFloat32, i, value(i));
    return bytes;
  };
  const auto of_rank = [&](int rank, int64_t i) { return std::abs(term(rank, i, 0)); };
  const Bytes own = values([&](int64_t i) { return of_rank(rank_, i); }, kShare);
  mine.write(own);
  sum.write(own);
  group.gather_whole(all.tensor(), mine.tensor(), "values");
  group.all_reduce_max(mine.tensor(), "values");
  group.all_reduce_sum(sum.tensor(), "values");
  const auto largest = [&](int64_t i) {
    float result = of_rank(0, i);
    for (int r = 1; r < size_; ++r) result = std::max(result, of_rank(r, i));
    return result;
  };
  const auto total = [&](int64_t i) {
    float result = 0;
    for (int r = 0; r < size_; ++r) result += of_rank(r, i);
    return result;
  };
  const auto whole = [&](int64_t i) { return of_rank(static_cast<int>(i / kShare), i % kShare); };
  EXPECT_TRUE(all.read() == values(whole, tokens()));
  EXPECT_TRUE(mine.read() == values(largest, kShare));
  EXPECT_TRUE(sum.read() == values(total, kShare));
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
