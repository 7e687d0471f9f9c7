#include "data/loader.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "data/validation_set.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

class LoaderTest : public testing::Test {
 protected:
  LoaderTest() {
    write_tokens(dir_ / "a", counting_documents(varied_lengths(60, 40, 1)));
    write_tokens(dir_ / "b", counting_documents(varied_lengths(30, 90, 2), 5000));
    config_.train = {{dir_ / "a", 0.7}, {dir_ / "b", 0.3}};
    config_.validation = {{dir_ / "a", 1.0}};
    config_.seq_len = 16;
    config_.lanes = 10;
    config_.eos_id = 9000;
  }
  TempDir dir_;
  DataConfig config_;
};

// The rows of all ranks put together, one after the other.
Batch joined_batch(std::vector<std::unique_ptr<Loader>>& ranks) {
  Batch joined;
  for (auto& loader : ranks) {
    const Batch& part = loader->next();
    joined.step = part.step;
    joined.state_after = part.state_after;
    joined.inputs.insert(joined.inputs.end(), part.inputs.begin(), part.inputs.end());
    joined.targets.insert(joined.targets.end(), part.targets.begin(), part.targets.end());
    joined.document_start.insert(joined.document_start.end(), part.document_start.begin(), part.document_start.end());
  }
  return joined;
}

TEST_F(LoaderTest, BatchesAreTheSamplesOfTheStream) {
  SampleStream stream(config_, config_.train, 0);
  Loader loader(config_, {.global_batch_size = 3});
  std::vector<int32_t> tokens(17), start(17);
  for (int64_t step = 0; step < 20; ++step) {
    const Batch& batch = loader.next();
    EXPECT_EQ(batch.step, step);
    EXPECT_GE(loader.data_ms(), 0);
    for (size_t row = 0; row < 3; ++row) {
      stream.next(tokens, start, nullptr);
      for (size_t t = 0; t < 16; ++t) {
        ASSERT_EQ(batch.inputs[row * 16 + t], tokens[t]);
        ASSERT_EQ(batch.targets[row * 16 + t], tokens[t + 1]);
        ASSERT_EQ(batch.document_start[row * 16 + t], start[t]);
      }
    }
    EXPECT_EQ(batch.state_after, stream.state());
  }
}

// Behind the last token of a document, which is eos here: also where that is the last of a sample.
TEST_F(LoaderTest, DocumentMaskTakesNoTargetFromTheNextDocument) {
  Loader all(config_, {.global_batch_size = 3});
  Loader masked(config_, {.global_batch_size = 3, .document_mask = true});
  ValidationSet validation(config_, {.global_batch_size = 3, .micro_batch_size = 3, .document_mask = true});
  int64_t at_ends = 0;
  for (int64_t step = 0; step < 20; ++step) {
    const Batch& expected = all.next();
    const Batch& batch = masked.next();
    const Batch& validated = *validation.next();
    EXPECT_EQ(batch.inputs, expected.inputs);
    for (size_t t = 0; t < batch.inputs.size(); ++t) {
      const bool is_last = batch.inputs[t] == 9000;
      ASSERT_EQ(batch.targets[t], is_last ? -1 : expected.targets[t]);
      ASSERT_EQ(validated.targets[t] == -1, validated.inputs[t] == 9000);
      if (is_last && t % 16 == 15) ++at_ends;
    }
  }
  EXPECT_GT(at_ends, 0);
}

TEST_F(LoaderTest, AnyNumberOfRanksReadsTheSameBatches) {
  for (const int64_t num_ranks : {1, 2, 3, 4, 12}) {
    Loader single(config_, {.global_batch_size = 12});
    std::vector<std::unique_ptr<Loader>> ranks;
    for (int64_t r = 0; r < num_ranks; ++r) {
      ranks.push_back(
          std::make_unique<Loader>(config_, LoaderOptions{.global_batch_size = 12, .rank = r, .num_ranks = num_ranks}));
      EXPECT_EQ(ranks.back()->local_batch_size(), 12 / num_ranks);
    }
    for (int step = 0; step < 10; ++step) {
      const Batch joined = joined_batch(ranks);
      const Batch& expected = single.next();
      ASSERT_EQ(joined.inputs, expected.inputs);
      ASSERT_EQ(joined.targets, expected.targets);
      ASSERT_EQ(joined.document_start, expected.document_start);
      ASSERT_EQ(joined.state_after, expected.state_after);
    }
  }
}

TEST_F(LoaderTest, StateIsThatOfTheConsumedStep) {
  for (const int64_t consumed : {0, 1, 7}) {
    Loader whole(config_, {.global_batch_size = 4, .prefetch_depth = 5});
    for (int64_t step = 0; step < consumed; ++step) whole.next();
    // Let the thread run ahead: the state must not.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const auto state = nlohmann::json::parse(whole.state_json().dump());
    EXPECT_EQ(state.at("next_sample"), consumed * 4);
    // Go on with other ranks: rank 1 of 2.
    Loader resumed(config_, {.global_batch_size = 4, .rank = 1, .num_ranks = 2}, &state);
    for (int step = 0; step < 5; ++step) {
      const Batch& expected = whole.next();
      const std::vector<int32_t> second_half(expected.inputs.begin() + 32, expected.inputs.end());
      ASSERT_EQ(resumed.next().inputs, second_half);
      ASSERT_EQ(resumed.state_json(), whole.state_json());
    }
  }
}

TEST_F(LoaderTest, BuffersAreReused) {
  Loader loader(config_, {.global_batch_size = 2, .prefetch_depth = 2});
  std::vector<const int32_t*> addresses;
  for (int step = 0; step < 50; ++step) {
    const int32_t* address = loader.next().inputs.data();
    if (std::find(addresses.begin(), addresses.end(), address) == addresses.end()) addresses.push_back(address);
  }
  EXPECT_LE(addresses.size(), 3u);
}

TEST_F(LoaderTest, BadTokenSurfacesAtItsStep) {
  write_tokens(dir_ / "bad", {{1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 300, 4}});
  StreamOptions options{.seq_len = 3, .shuffle = Shuffle::kNone, .vocab_size = 256};
  std::vector<TokenFile> files;
  files.emplace_back(dir_ / "bad");
  Loader loader(SampleStream(options, std::move(files)), {.global_batch_size = 1, .vocab_size = 256});
  loader.next();
  loader.next();
  for (int again = 0; again < 2; ++again) {
    expect_mentions(message_of<Error>([&] { loader.next(); }), {"bad.bin", "token id 300", "position 2", "document 1"});
  }
  EXPECT_EQ(loader.state_json().at("next_sample"), 2);
}

TEST_F(LoaderTest, WrongFileIsFoundBeforeTheFirstStep) {
  expect_mentions(message_of<InputError>([&] { Loader loader(config_, {.vocab_size = 100}); }), {"a.bin", "id 100"});
  expect_mentions(message_of<InputError>([&] { Loader loader(config_, {.global_batch_size = 4, .num_ranks = 3}); }),
                  {"training.global_batch_size is 4", "3 data-parallel ranks"});
  config_.train = {};
  expect_mentions(message_of<InputError>([&] { Loader loader(config_, {}); }), {"data.train"});
}

TEST_F(LoaderTest, StopsPromptly) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) {
    // Far more than could be read in the time allowed below.
    Loader loader(config_, {.global_batch_size = 100000});
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(taken.count(), 10);
}

// All rows of all ranks with a target, in the order of the samples, over one validation.
std::vector<std::vector<int32_t>> validation_rows(const DataConfig& config, int64_t num_ranks, int64_t micro_batch_size,
                                                  int64_t batches, int64_t* num_samples) {
  std::vector<std::unique_ptr<ValidationSet>> ranks;
  for (int64_t r = 0; r < num_ranks; ++r) {
    ranks.push_back(std::make_unique<ValidationSet>(config, ValidationOptions{.batches = batches,
                                                                              .global_batch_size = 4,
                                                                              .micro_batch_size = micro_batch_size,
                                                                              .rank = r,
                                                                              .num_ranks = num_ranks}));
  }
  *num_samples = ranks[0]->num_samples();
  std::vector<std::vector<int32_t>> rows;
  int64_t micro_batches = 0;
  for (bool more = true; more;) {
    for (auto& rank : ranks) {
      const Batch* batch = rank->next();
      if (batch == nullptr) {
        more = false;
        continue;
      }
      EXPECT_TRUE(more) << "ranks end at different micro-batches";
      ++micro_batches;
      for (int64_t row = 0; row < micro_batch_size; ++row) {
        const auto begin = batch->targets.begin() + row * config.seq_len;
        const std::vector<int32_t> targets(begin, begin + config.seq_len);
        const bool padding = std::all_of(targets.begin(), targets.end(), [](int32_t id) { return id == -1; });
        if (!padding) rows.push_back(targets);
      }
    }
  }
  EXPECT_EQ(micro_batches, num_ranks * ranks[0]->num_micro_batches());
  return rows;
}

TEST_F(LoaderTest, ValidationIsTheSameForAnyNumberOfRanks) {
  DataConfig in_order = config_;
  in_order.shuffle = Shuffle::kNone;
  for (const int64_t batches : {1, 2, 1000}) {
    SampleStream stream(in_order, config_.validation, 0);
    const int64_t expected_samples = std::min(batches * 4, stream.num_tokens() / 17);
    std::vector<std::vector<int32_t>> expected;
    std::vector<int32_t> tokens(17);
    for (int64_t g = 0; g < expected_samples; ++g) {
      stream.next(tokens, {}, nullptr);
      expected.emplace_back(tokens.begin() + 1, tokens.end());
    }
    for (const int64_t num_ranks : {1, 2, 3, 5}) {
      for (const int64_t micro_batch_size : {1, 2, 3}) {
        int64_t num_samples = 0;
        EXPECT_EQ(validation_rows(config_, num_ranks, micro_batch_size, batches, &num_samples), expected);
        EXPECT_EQ(num_samples, expected_samples);
      }
    }
  }
}

TEST_F(LoaderTest, ValidationBeginsAnew) {
  ValidationSet set(config_, {.batches = 2, .global_batch_size = 4, .micro_batch_size = 3});
  std::vector<int32_t> first;
  for (int round = 0; round < 3; ++round) {
    std::vector<int32_t> inputs;
    while (const Batch* batch = set.next()) inputs.insert(inputs.end(), batch->inputs.begin(), batch->inputs.end());
    EXPECT_EQ(inputs.size(), 9u * 16u);
    if (round == 0) first = inputs;
    EXPECT_EQ(inputs, first);
  }
}

TEST_F(LoaderTest, ValidationFilesThatAreTooShortAreRefused) {
  write_tokens(dir_ / "short", {{1, 2, 3}});
  config_.validation = {{dir_ / "short", 1.0}};
  expect_mentions(message_of<InputError>([&] { ValidationSet set(config_, {}); }), {"short.bin", "4 tokens", "17"});
  config_.validation = {};
  expect_mentions(message_of<InputError>([&] { ValidationSet set(config_, {}); }), {"data.validation"});
}

}  // namespace
}  // namespace octavo
