// A program started without a launcher is a group of one, without MPI.
#include "parallel/communicator.h"
#include "parallel/ranks/process_group.h"
#include "tests/kernels/op_fixture.h"

namespace octavo {
namespace {

TEST(SingleProcess, CollectivesAreTheIdentity) {
  ProcessGroup group;
  EXPECT_EQ(group.rank(), 0);
  EXPECT_EQ(group.size(), 1);
  EXPECT_EQ(group.local_rank(), 0);
  EXPECT_EQ(group.local_size(), 1);
  EXPECT_TRUE(group.is_root());
  group.barrier();
  EXPECT_EQ(group.broadcast("text"), "text");
  EXPECT_EQ(group.all_gather("text"), std::vector<std::string>{"text"});
  EXPECT_EQ(group.gather("text"), std::vector<std::string>{"text"});
  EXPECT_EQ(group.all_reduce_max(-5), -5);
  EXPECT_EQ(group.all_reduce_sum(0.5), 0.5);
  EXPECT_EQ(group.all_reduce_or(5), 5U);

  Stream stream = Stream::cpu();
  const auto communicator = make_communicator(group, stream);
  EXPECT_EQ(communicator->size(), 1);
  Array values(DType::kFloat32, {3});
  values.fill(2.5);
  communicator->all_reduce_sum(values, stream);
  EXPECT_EQ(values.values(), Values(3, 2.5));
  Array copy(DType::kFloat32, {3});
  communicator->all_gather(copy, values, stream);
  EXPECT_EQ(copy.values(), values.values());
  Array sum(DType::kFloat32, {3});
  communicator->reduce_scatter_sum(sum, values, stream);
  EXPECT_EQ(sum.values(), values.values());
  communicator->all_gather(sum, sum, stream);
  EXPECT_EQ(sum.values(), values.values());
}

TEST(SingleProcess, AgreePassesErrorsOn) {
  ProcessGroup group;
  bool ran = false;
  group.agree([&] { ran = true; });
  EXPECT_TRUE(ran);
  expect_error<InputError>([&] { group.agree([] { throw InputError("a bad file"); }); }, "a bad file");
  expect_error<Error>([&] { group.agree_on_files("writing", [] { throw Error("a full disk"); }); }, "a full disk");
  EXPECT_TRUE(group.shares(Error("of a group of one")));
}

}  // namespace
}  // namespace octavo
