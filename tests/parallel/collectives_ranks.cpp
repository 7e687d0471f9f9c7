// The collectives among several ranks: started by mpirun (see tests/CMakeLists.txt), every rank runs every test and
// checks its own results; mpirun fails when any rank does. Tests use EXPECT only: a rank that left a test early would
// leave the others alone in a collective.
#include "parallel/communicator.h"
#include "parallel/process_group.h"
#include "tests/kernels/op_fixture.h"

namespace octavo {
namespace {

// The group of this process; MPI can be initialised once, so main() makes it.
ProcessGroup* ranks = nullptr;

class Collectives : public ::testing::Test {
 protected:
  ProcessGroup& group_ = *ranks;
  const int rank_ = ranks->rank();
  const int size_ = ranks->size();
  Stream stream_ = Stream::cpu();
};

TEST_F(Collectives, RanksAreNumbered) {
  EXPECT_GT(size_, 1);
  const std::vector<std::string> seen = group_.all_gather(std::to_string(rank_));
  EXPECT_EQ(seen.size(), static_cast<size_t>(size_));
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], std::to_string(i));
  EXPECT_EQ(group_.local_rank(), rank_) << "all ranks are on this machine";
  EXPECT_EQ(group_.local_size(), size_);
  EXPECT_EQ(group_.is_root(), rank_ == 0);
}

// Integers, whose sum is exact: element i of rank r is i * (r + 1).
TEST_F(Collectives, AllReduceSum) {
  const auto communicator = make_communicator(group_, stream_);
  EXPECT_EQ(communicator->rank(), rank_);
  EXPECT_EQ(communicator->size(), size_);
  for (const int64_t n : {1, 7, 10007}) {
    Array values(DType::kFloat32, {n});
    for (int64_t i = 0; i < n; ++i) values.set(i, static_cast<double>(i * (rank_ + 1)));
    communicator->all_reduce_sum(values, stream_);
    const double factor = size_ * (size_ + 1) / 2.0;
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(values.at(i), static_cast<double>(i) * factor) << i;
  }
}

// Sums that round must round alike, or the ranks' models drift apart.
TEST_F(Collectives, AllReduceSumHasTheSameBitsOnEveryRank) {
  const auto communicator = make_communicator(group_, stream_);
  std::mt19937 generator(static_cast<unsigned>(rank_));
  std::normal_distribution<double> normal;
  for (const int64_t n : {5, 100003}) {
    Array values(DType::kFloat32, {n});
    for (int64_t i = 0; i < n; ++i) values.set(i, normal(generator));
    communicator->all_reduce_sum(values, stream_);
    const std::string bits(values.bits().begin(), values.bits().end());
    for (const std::string& other : group_.all_gather(bits)) EXPECT_TRUE(other == bits);
  }
}

TEST_F(Collectives, BroadcastOfTensors) {
  const auto communicator = make_communicator(group_, stream_);
  for (int root = 0; root < size_; ++root) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt32}) {
      Array values(dtype, {3, 5});
      for (int64_t i = 0; i < values.size(); ++i) values.set(i, static_cast<double>(100 * rank_ + i));
      communicator->broadcast(values, root, stream_);
      for (int64_t i = 0; i < values.size(); ++i) {
        Array expected(dtype, {1});
        expected.set(0, static_cast<double>(100 * root + i));
        EXPECT_EQ(values.at(i), expected.at(0)) << "from " << root;
      }
    }
  }
}

// Texts of different lengths, one of them empty, one with a zero byte.
std::string text_of(int rank) {
  if (rank == 1) return "";
  return std::string(static_cast<size_t>(1 + 1000 * rank), static_cast<char>('a' + rank)) + std::string("\0z", 2);
}

TEST_F(Collectives, Texts) {
  std::vector<std::string> expected;
  for (int r = 0; r < size_; ++r) expected.push_back(text_of(r));
  EXPECT_EQ(group_.all_gather(text_of(rank_)), expected);
  EXPECT_EQ(group_.gather(text_of(rank_)), rank_ == 0 ? expected : std::vector<std::string>());
  for (int root = 0; root < size_; ++root) EXPECT_EQ(group_.broadcast(text_of(rank_), root), text_of(root));
}

TEST_F(Collectives, Numbers) {
  EXPECT_EQ(group_.all_reduce_max(-10 + rank_), -10 + size_ - 1);
  EXPECT_EQ(group_.all_reduce_max(rank_ == 0 ? int64_t{1} << 40 : 0), int64_t{1} << 40);
  EXPECT_EQ(group_.all_reduce_sum(0.5 + rank_), 0.5 * size_ + size_ * (size_ - 1) / 2.0);
  group_.barrier();
}

// Whatever fails, all ranks throw the same: the lowest failing rank's error, with its kind.
TEST_F(Collectives, Agree) {
  bool ran = false;
  group_.agree([&] { ran = true; });
  EXPECT_TRUE(ran);
  EXPECT_FALSE(group_.agreed_failure());

  for (int failing = 0; failing < size_; ++failing) {
    const std::string message = "rank " + std::to_string(failing) + " found a truncated file";
    const auto fail = [&] {
      if (rank_ == failing) throw InputError(message);
    };
    expect_error<InputError>([&] { group_.agree(fail); }, message);
    EXPECT_TRUE(group_.agreed_failure());
  }

  const int last = size_ - 1;
  const auto fail_differently = [&] {
    if (rank_ == last - 1) throw std::runtime_error("disk full");
    if (rank_ == last) throw InputError("bad file");
  };
  try {
    group_.agree(fail_differently);
    ADD_FAILURE() << "no error";
  } catch (const InputError&) {
    ADD_FAILURE() << "the lower rank's error was no InputError";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "disk full");
  }
}

}  // namespace
}  // namespace octavo

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  octavo::ProcessGroup group;
  octavo::ranks = &group;
  return RUN_ALL_TESTS();
}
