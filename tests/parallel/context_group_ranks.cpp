// Tests of ranks that share sequences: gathered rows are in the order of the sequences, and each sum returns to the
// rank that has the token.
#include "parallel/context_group.h"
#include "tests/parallel/ranks_fixture.h"

namespace octavo::context_group_ranks {
namespace {

class ContextGroupRanks : public DeviceRanksTest {
 protected:
  std::vector<float> read(const Tensor& tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.numel()));
    stream_.copy(values.data(), tensor.raw(), tensor.bytes());
    stream_.synchronize();
    return values;
  }
  void write(const Tensor& tensor, const std::vector<float>& values) {
    stream_.copy(tensor.raw(), values.data(), tensor.bytes());
    stream_.synchronize();
  }
};

TEST_P(ContextGroupRanks, WholeSequencesThereAndBack) {
  const std::unique_ptr<Communicator> communicator = make_communicator(group_, stream_);
  ContextGroup group({.ranks = communicator.get(), .micro_batch = communicator.get()}, stream_);
  const ContextRank context = group.context_rank();
  ASSERT_EQ(context, (ContextRank{.rank = rank_, .size = size_}));
  constexpr int64_t kBatch = 3;
  constexpr int64_t kLength = 5;  // Tokens per chunk of a sequence.
  constexpr int64_t kRow = 11;    // Columns per row. Columns 4 to 9 are sent.
  constexpr int64_t kBegin = 4;
  constexpr int64_t kWidth = 6;
  const int64_t whole_tokens = 2 * size_ * kLength;
  const int64_t share = context.share(whole_tokens);
  Arena arena(stream_.device(), int64_t{1} << 20);
  const Tensor rows = arena.allocate("rows", DType::kFloat32, {kBatch * share, kRow});
  const Tensor whole = arena.allocate("whole", DType::kFloat32, {kBatch * whole_tokens, kWidth});
  const ContextScratch scratch(context, kBatch * share, kWidth, DType::kFloat32, arena);
  // Returns a number that encodes sequence, position and column.
  const auto number = [](int64_t sequence, int64_t position, int64_t column) {
    return static_cast<float>((sequence * 1000 + position) * 100 + column);
  };

  std::vector<float> mine;
  for (int64_t t = 0; t < kBatch * share; ++t) {
    for (int64_t column = 0; column < kRow; ++column) {
      mine.push_back(number(t / share, context.position(t % share, whole_tokens), column - kBegin));
    }
  }
  write(rows, mine);
  group.start_gather(whole, {rows, kBegin}, kBatch, scratch, "numbers");
  group.wait();
  std::vector<float> expected;
  for (int64_t sequence = 0; sequence < kBatch; ++sequence) {
    for (int64_t position = 0; position < whole_tokens; ++position) {
      for (int64_t column = 0; column < kWidth; ++column) expected.push_back(number(sequence, position, column));
    }
  }
  EXPECT_EQ(read(whole), expected);

  // Rank r contributes r + 1 times the numbers.
  const float ranks = static_cast<float>(size_ * (size_ + 1) / 2);
  for (float& value : expected) value *= static_cast<float>(rank_ + 1);
  write(whole, expected);
  group.start_reduce_scatter({rows, kBegin}, whole, kBatch, scratch, "numbers");
  group.wait();
  for (size_t i = 0; i < mine.size(); ++i) {
    const auto column = static_cast<int64_t>(i) % kRow;
    if (column >= kBegin && column < kBegin + kWidth) mine[i] *= ranks;
  }
  EXPECT_EQ(read(rows), mine) << "the other columns are unchanged";
}

// In each element rank 0 has 1 and the other ranks have 2^-8, half a unit in the last place of 1. Added one by one in
// bfloat16, every 2^-8 would be lost.
TEST_P(ContextGroupRanks, SumsAreRoundedOnce) {
  const std::unique_ptr<Communicator> communicator = make_communicator(group_, stream_);
  ContextGroup group({.ranks = communicator.get(), .micro_batch = communicator.get()}, stream_);
  constexpr int64_t kWidth = 8;
  const int64_t whole_tokens = 2 * size_ * 3;
  const int64_t share = group.context_rank().share(whole_tokens);
  Arena arena(stream_.device(), int64_t{1} << 20);
  const Tensor rows = arena.allocate("rows", DType::kBFloat16, {share, kWidth});
  const Tensor whole = arena.allocate("whole", DType::kBFloat16, {whole_tokens, kWidth});
  const ContextScratch scratch(group.context_rank(), share, kWidth, DType::kBFloat16, arena);
  const std::vector<BFloat16> mine(static_cast<size_t>(whole.numel()), BFloat16(rank_ == 0 ? 1.0f : 0x1p-8f));
  stream_.copy(whole.raw(), mine.data(), whole.bytes());
  group.start_reduce_scatter({rows, 0}, whole, 1, scratch, "numbers");
  group.wait();
  std::vector<BFloat16> sums(static_cast<size_t>(rows.numel()));
  stream_.copy(sums.data(), rows.raw(), rows.bytes());
  stream_.synchronize();
  const BFloat16 expected(1.0f + 0x1p-8f * static_cast<float>(size_ - 1));
  for (const BFloat16 sum : sums) EXPECT_EQ(static_cast<float>(sum), static_cast<float>(expected));
}

INSTANTIATE_ON_DEVICES(ContextGroupRanks);

}  // namespace
}  // namespace octavo::context_group_ranks
