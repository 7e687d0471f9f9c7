// Tests of the control messages among several ranks.
#include "tests/kernels/op_fixture.h"
#include "tests/parallel/ranks_fixture.h"

namespace octavo::control_ranks {
namespace {

using ControlMessages = RanksTest;

TEST_F(ControlMessages, RanksAreNumbered) {
  EXPECT_GT(size_, 1);
  const std::vector<std::string> seen = group_.all_gather(std::to_string(rank_));
  EXPECT_EQ(seen.size(), static_cast<size_t>(size_));
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], std::to_string(i));
  EXPECT_EQ(group_.local_rank(), rank_) << "all ranks are on this machine";
  EXPECT_EQ(group_.local_size(), size_);
  EXPECT_EQ(group_.is_root(), rank_ == 0);
}

// Returns texts of different lengths. One is empty, and the others contain a zero byte.
std::string text_of(int rank) {
  if (rank == 1) return "";
  return std::string(static_cast<size_t>(1 + 1000 * rank), static_cast<char>('a' + rank)) + std::string("\0z", 2);
}

TEST_F(ControlMessages, Texts) {
  std::vector<std::string> expected;
  expected.reserve(static_cast<size_t>(size_));
  for (int r = 0; r < size_; ++r) expected.push_back(text_of(r));
  EXPECT_EQ(group_.all_gather(text_of(rank_)), expected);
  EXPECT_EQ(group_.gather(text_of(rank_)), rank_ == 0 ? expected : std::vector<std::string>());
  for (int root = 0; root < size_; ++root) EXPECT_EQ(group_.broadcast(text_of(rank_), root), text_of(root));
}

// A manifest of thousands of ranks is longer than one message. This text is as long.
TEST_F(ControlMessages, LongText) {
  std::string text;
  if (rank_ == size_ - 1) {
    text.assign((size_t{1} << 26) + 5, 'a');
    text[size_t{1} << 26] = 'b';
    text.back() = 'c';
  }
  const std::string sent = group_.broadcast(std::move(text), size_ - 1);
  ASSERT_EQ(sent.size(), (size_t{1} << 26) + 5);
  EXPECT_EQ(sent.substr((size_t{1} << 26) - 2), "aabaaac");
  EXPECT_EQ(sent.find_first_not_of('a'), size_t{1} << 26);
}

TEST_F(ControlMessages, TheFirstText) {
  EXPECT_EQ(group_.broadcast_first(""), "");
  for (int first = 0; first < size_; ++first) {
    EXPECT_EQ(group_.broadcast_first(rank_ < first ? "" : fmt::format("of rank {}", rank_)),
              fmt::format("of rank {}", first));
  }
}

// Traces of a step are this long. With two ranks, all texts together have more bytes than an MPI count can express.
// With more ranks, a text takes more than one message.
TEST_F(ControlMessages, LongTextsOfRanks) {
  const size_t bytes = size_ == 2 ? (size_t{1} << 30) + 5 : size_t{1} << 28;
  std::string text(rank_ == size_ - 1 ? bytes : static_cast<size_t>(rank_), 'a');
  if (rank_ == size_ - 1) text.replace(bytes - 2, 2, "bc");
  const std::vector<std::string> texts = group_.gather(text);
  if (rank_ != 0) return;
  ASSERT_EQ(texts.size(), static_cast<size_t>(size_));
  for (int r = 0; r + 1 < size_; ++r)
    EXPECT_EQ(texts[static_cast<size_t>(r)], std::string(static_cast<size_t>(r), 'a'));
  ASSERT_EQ(texts.back().size(), bytes);
  EXPECT_EQ(texts.back().find_first_not_of('a'), bytes - 2);
  EXPECT_EQ(texts.back().substr(bytes - 3), "abc");
}

TEST_F(ControlMessages, NumbersOfAll) {
  std::vector<uint64_t> expected;
  for (int r = 0; r < size_; ++r) expected.push_back(~uint64_t{0} - static_cast<uint64_t>(r));
  EXPECT_EQ(group_.all_gather(~uint64_t{0} - static_cast<uint64_t>(rank_)), expected);
}

TEST_F(ControlMessages, Numbers) {
  EXPECT_EQ(group_.all_reduce_max(-10 + rank_), -10 + size_ - 1);
  EXPECT_EQ(group_.all_reduce_max(rank_ == 0 ? int64_t{1} << 40 : 0), int64_t{1} << 40);
  EXPECT_EQ(group_.all_reduce_sum(0.5 + rank_), 0.5 * size_ + size_ * (size_ - 1) / 2.0);
  group_.barrier();
}

// If several ranks fail, all ranks throw the error of the lowest failing rank, with its type.
TEST_F(ControlMessages, Agree) {
  bool ran = false;
  group_.throw_on_all_ranks([&] { ran = true; });
  EXPECT_TRUE(ran);

  for (int failing = 0; failing < size_; ++failing) {
    const std::string message = "rank " + std::to_string(failing) + " found a truncated file";
    const auto fail = [&] {
      if (rank_ == failing) throw InputError(message);
    };
    expect_error<InputError>([&] { group_.throw_on_all_ranks(fail); }, message);
    expect_error<InputError>([&] { group_.throw_file_errors_on_all_ranks("reading", fail); }, message);
  }

  const int last = size_ - 1;
  const auto fail_differently = [&] {
    if (rank_ == last - 1) throw std::runtime_error("disk full");
    if (rank_ == last) throw InputError("bad file");
  };
  try {
    group_.throw_on_all_ranks(fail_differently);
    ADD_FAILURE() << "no error";
  } catch (const InputError&) {
    ADD_FAILURE() << "the error of the lowest rank is not an InputError";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "disk full");
    EXPECT_TRUE(group_.shares(error));
  }
}

// After a failure that all ranks have thrown, a later failure of a single rank must still be detected.
TEST_F(ControlMessages, SharesWhatAllRanksThrewAlone) {
  const auto shares = [&](const std::function<void()>& work) {
    try {
      work();
    } catch (const std::exception& error) {
      return group_.shares(error);
    }
    ADD_FAILURE() << "no error";
    return false;
  };
  const auto bad_file = [] { throw InputError("bad file"); };
  const auto full_disk = [] { throw Error("full disk"); };
  EXPECT_TRUE(shares([&] { group_.throw_on_all_ranks(bad_file); }));
  EXPECT_FALSE(shares(bad_file));
  EXPECT_TRUE(shares([&] { group_.throw_file_errors_on_all_ranks("writing", full_disk); }));
  EXPECT_FALSE(shares(full_disk));
}

}  // namespace
}  // namespace octavo::control_ranks
