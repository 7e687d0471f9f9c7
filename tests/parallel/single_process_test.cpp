// Tests that a program that was started without a launcher forms a group of one rank, without MPI.
#include "parallel/mesh.h"
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
  group.throw_on_all_ranks([&] { ran = true; });
  EXPECT_TRUE(ran);
  expect_error<InputError>([&] { group.throw_on_all_ranks([] { throw InputError("a bad file"); }); }, "a bad file");
  expect_error<Error>([&] { group.throw_file_errors_on_all_ranks("writing", [] { throw Error("a full disk"); }); },
                      "a full disk");
  EXPECT_TRUE(group.shares(Error("of a group of one")));
}

TEST(PlannedMesh, HasTheGroupsOfARankThatDoesNotExist) {
  ProcessGroup group;
  Stream stream = Stream::cpu();
  const Mesh mesh({.replicate = 2, .shard = 3, .tensor = 4, .context = 5}, 1, stream, group.watchdog(), 87);
  EXPECT_EQ(mesh.rank(Axis::kReplicate), 1);  // Rank 87 is ((1 * 3 + 1) * 5 + 1) * 4 + 3.
  EXPECT_EQ(mesh.data_rank(), 4);
  EXPECT_EQ(mesh.context_rank(), (ContextRank{.rank = 1, .size = 5}));
  const auto place = [](const Communicator& ranks) { return std::pair(ranks.rank(), ranks.size()); };
  EXPECT_EQ(place(mesh.replicate()), std::pair(1, 2));
  EXPECT_EQ(place(mesh.shard()), std::pair(6, 15));
  EXPECT_EQ(place(mesh.context()), std::pair(1, 5));
  EXPECT_EQ(place(mesh.tensor()), std::pair(3, 4));
  EXPECT_EQ(place(mesh.tokens()), std::pair(21, 30));
  EXPECT_EQ(place(mesh.micro_batch()), std::pair(7, 20));
  EXPECT_EQ(place(mesh.world()), std::pair(87, 120));
  float value = 1;
  EXPECT_THROW(mesh.shard().all_reduce_sum(Tensor(&value, DType::kFloat32, {1}), stream), Error);
}

}  // namespace
}  // namespace octavo
