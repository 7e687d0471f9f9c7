#include "data/validation_set.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "core/error.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

using Rows = std::vector<std::vector<int32_t>>;

class ValidationSetTest : public testing::Test {
 protected:
  ValidationSetTest() {
    write_tokens(dir_ / "a", counting_documents(varied_lengths(60, 40, 1)));
    write_tokens(dir_ / "b", counting_documents(varied_lengths(30, 90, 2), 5000));
    config_.validation = {{.paths = {dir_ / "a"}}, {.paths = {dir_ / "b"}, .name = "code", .weight = 3}};
    config_.seq_len = 16;
    config_.eos_id = 9000;
  }

  // Returns the targets of all samples of a dataset, collected from all ranks in the order of the samples.
  Rows validate(size_t dataset, int64_t num_ranks, int64_t micro_batch_size, int64_t batches) const {
    std::vector<std::unique_ptr<ValidationSet>> ranks;
    for (int64_t r = 0; r < num_ranks; ++r) {
      ranks.push_back(std::make_unique<ValidationSet>(config_, ValidationOptions{.batches = batches,
                                                                                 .global_batch_size = 4,
                                                                                 .micro_batch_size = micro_batch_size,
                                                                                 .rank = r,
                                                                                 .num_ranks = num_ranks}));
    }
    Rows rows;
    for (bool more = true; more;) {
      for (auto& rank : ranks) {
        const Batch* batch = rank->next(dataset);
        if (batch == nullptr) {
          more = false;
          continue;
        }
        EXPECT_TRUE(more) << "ranks end at different micro-batches";
        for (int64_t row = 0; row < micro_batch_size; ++row) {
          const auto begin = batch->targets.begin() + row * config_.seq_len;
          const std::vector<int32_t> targets(begin, begin + config_.seq_len);
          if (targets != std::vector<int32_t>(targets.size(), -1)) rows.push_back(targets);
        }
      }
    }
    EXPECT_EQ(std::ssize(rows), ranks[0]->datasets()[dataset].num_samples);
    return rows;
  }

  TempDir dir_;
  DataConfig config_;
};

TEST_F(ValidationSetTest, IsTheSameForAnyNumberOfRanksSeedAndOrder) {
  for (const size_t dataset : {0u, 1u}) {
    for (const int64_t batches : {1, 2, 1000}) {
      const Rows expected = validate(dataset, 1, 1, batches);
      config_.seed += 1;
      config_.shuffle = config_.shuffle == Shuffle::kLcg ? Shuffle::kNone : Shuffle::kLcg;
      for (const int64_t num_ranks : {1, 2, 3, 5}) {
        for (const int64_t micro_batch_size : {1, 2, 3}) {
          EXPECT_EQ(validate(dataset, num_ranks, micro_batch_size, batches), expected);
        }
      }
    }
  }
}

// The tokens of the file count up, so the first target of a window tells its position.
TEST_F(ValidationSetTest, WindowsAreSpreadOverTheFileWithoutOneTwice) {
  write_tokens(dir_ / "long", counting_documents({17 * 1000}));
  config_.validation = {{.paths = {dir_ / "long"}}};
  config_.eos_id = {};
  const Rows some = validate(0, 1, 1, 25);
  std::set<int32_t> windows;
  std::vector<int> quarters(4);
  for (const auto& targets : some) {
    windows.insert(targets.front() / 17);
    ++quarters[static_cast<size_t>(targets.front() / 17 / 250)];
  }
  EXPECT_EQ(windows.size(), 100u);
  for (const int count : quarters) EXPECT_NEAR(count, 25, 15);
  EXPECT_EQ(validate(0, 1, 1, 1000).size(), 1000u);
}

TEST_F(ValidationSetTest, EachDatasetHasItsNameAndWeight) {
  config_.validation.push_back({.paths = {dir_ / "a"}, .weight = 0});
  const ValidationSet set(config_, {.batches = 2, .global_batch_size = 4});
  ASSERT_EQ(set.datasets().size(), 2u) << "a dataset with weight 0 is omitted";
  EXPECT_EQ(set.datasets()[0].name, "a");
  EXPECT_EQ(set.datasets()[1].name, "code");
  EXPECT_EQ(set.datasets()[1].weight, 3);
  EXPECT_EQ(set.datasets()[1].num_samples, 8);
}

TEST_F(ValidationSetTest, StartsAgain) {
  ValidationSet set(config_, {.batches = 2, .global_batch_size = 4, .micro_batch_size = 3});
  std::vector<int32_t> first;
  for (int round = 0; round < 3; ++round) {
    std::vector<int32_t> inputs;
    while (const Batch* batch = set.next(0)) inputs.insert(inputs.end(), batch->inputs.begin(), batch->inputs.end());
    EXPECT_EQ(inputs.size(), 9u * 16u);
    if (round == 0) first = inputs;
    EXPECT_EQ(inputs, first);
  }
}

TEST_F(ValidationSetTest, FilesThatAreTooShortAreRefused) {
  write_tokens(dir_ / "short", {{1, 2, 3}});
  config_.validation = {{.paths = {dir_ / "short"}}};
  expect_mentions(message_of<InputError>([&] { ValidationSet set(config_, {}); }), {"short", "4 tokens", "17"});
  config_.validation = {};
  expect_mentions(message_of<InputError>([&] { ValidationSet set(config_, {}); }), {"data.validation"});
}

}  // namespace
}  // namespace octavo
