#include "data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "core/error.h"
#include "data/validation_set.h"
#include "tests/data/test_files.h"
#include "tests/no_threads.h"

namespace octavo {
namespace {

class LoaderTest : public testing::Test {
 protected:
  LoaderTest() {
    write_tokens(dir_ / "a", counting_documents(varied_lengths(60, 40, 1)));
    write_tokens(dir_ / "b", counting_documents(varied_lengths(30, 90, 2), 5000));
    config_.train = {{.paths = {dir_ / "a"}, .weight = 0.7}, {.paths = {dir_ / "b"}, .weight = 0.3}};
    config_.seq_len = 16;
    config_.eos_id = 9000;
  }
  // Returns the loaders of all ranks.
  std::vector<std::unique_ptr<Loader>> open_ranks(int64_t num_ranks, LoaderOptions options,
                                                  const nlohmann::json* state = nullptr) const {
    std::vector<std::unique_ptr<Loader>> ranks;
    options.num_ranks = num_ranks;
    for (options.rank = 0; options.rank < num_ranks; ++options.rank)
      ranks.push_back(std::make_unique<Loader>(config_, options, state));
    return ranks;
  }

  TempDir dir_;
  DataConfig config_;
};

// Returns one batch that has the samples of all ranks in rank order.
Batch joined_batch(std::vector<std::unique_ptr<Loader>>& ranks) {
  Batch joined;
  for (auto& loader : ranks) {
    const Batch& part = loader->next();
    joined.step = part.step;
    joined.state_after = part.state_after;
    joined.inputs.insert(joined.inputs.end(), part.inputs.begin(), part.inputs.end());
    joined.targets.insert(joined.targets.end(), part.targets.begin(), part.targets.end());
    joined.document_start.insert(joined.document_start.end(), part.document_start.begin(), part.document_start.end());
    joined.dataset.insert(joined.dataset.end(), part.dataset.begin(), part.dataset.end());
    EXPECT_EQ(part.dataset_samples,
              (loader == ranks.front() ? joined.dataset_samples = part.dataset_samples : joined.dataset_samples));
  }
  return joined;
}

// Rank r of N has chunks r and 2 N - 1 - r of every sample. The document starts are positions in the whole sample.
TEST_F(LoaderTest, RanksThatShareSamplesHaveTheirChunks) {
  DataConfig config = config_;
  config.document_mask = true;
  config.seq_len = 24;
  config.validation = config.train;
  for (const int64_t ranks : {2, 3, 4}) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const ContextRank context{.rank = rank, .size = ranks};
      Loader whole(config, {.global_batch_size = 4, .rank = 1, .num_ranks = 2});
      Loader shared(config, {.global_batch_size = 4, .rank = 1, .num_ranks = 2, .context = context});
      ValidationSet all(config, {.global_batch_size = 4, .micro_batch_size = 2});
      ValidationSet part(config, {.global_batch_size = 4, .micro_batch_size = 2, .context = context});
      const auto expect_share = [&](const Batch& batch, const Batch& of) {
        const int64_t length = config.seq_len / (2 * ranks);
        ASSERT_EQ(std::ssize(batch.inputs), 2 * 2 * length);
        for (int64_t t = 0; t < std::ssize(batch.inputs); ++t) {
          const int64_t token = t % (2 * length);
          const int64_t piece = token < length ? rank : 2 * ranks - 1 - rank;
          const auto from = static_cast<size_t>(t / (2 * length) * config.seq_len + piece * length + token % length);
          ASSERT_EQ(batch.inputs[static_cast<size_t>(t)], of.inputs[from]);
          ASSERT_EQ(batch.targets[static_cast<size_t>(t)], of.targets[from]);
          ASSERT_EQ(batch.document_start[static_cast<size_t>(t)], of.document_start[from]);
        }
      };
      for (int step = 0; step < 5; ++step) {
        expect_share(shared.next(), whole.next());
        EXPECT_EQ(shared.state_json(), whole.state_json());
        expect_share(*part.next(0), *all.next(0));
      }
    }
  }
}

// The last token of a document (here eos) has no target, even if it is also the last token of a sample.
TEST_F(LoaderTest, DocumentMaskTakesNoTargetFromTheNextDocument) {
  DataConfig config = config_;
  config.document_mask = true;
  config.validation = config.train;
  Loader all(config_, {.global_batch_size = 3});
  Loader masked(config, {.global_batch_size = 3});
  ValidationSet validation(config, {.global_batch_size = 3, .micro_batch_size = 3});
  int64_t at_ends = 0;
  for (int64_t step = 0; step < 20; ++step) {
    const Batch& expected = all.next();
    const Batch& batch = masked.next();
    const Batch& validated = *validation.next(0);
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
  for (const int64_t num_ranks : {1, 2, 3, 5, 8}) {
    Loader single(config_, {.global_batch_size = 120});
    std::vector<std::unique_ptr<Loader>> ranks = open_ranks(num_ranks, {.global_batch_size = 120});
    for (int step = 0; step < 10; ++step) {
      const Batch joined = joined_batch(ranks);
      const Batch& expected = single.next();
      ASSERT_EQ(joined.inputs, expected.inputs);
      ASSERT_EQ(joined.targets, expected.targets);
      ASSERT_EQ(joined.document_start, expected.document_start);
      ASSERT_EQ(joined.state_after, expected.state_after);
      ASSERT_EQ(joined.dataset, expected.dataset);
      for (size_t d = 0; d < 2; ++d) {
        EXPECT_EQ(expected.dataset_samples[d], std::count(joined.dataset.begin(), joined.dataset.end(), d));
      }
    }
  }
}

TEST(BatchScheduleTest, PhasesComeOneAfterTheOther) {
  const BatchSchedule schedule(64, {{.batch_size = 8, .steps = 3}, {.batch_size = 32, .steps = 1}});
  int64_t samples = 0;
  for (int64_t step = 1; step <= 7; ++step) {
    const int64_t expected = step <= 3 ? 8 : step == 4 ? 32 : 64;
    EXPECT_EQ(schedule.batch_size(step), expected) << step;
    EXPECT_EQ(schedule.samples(step - 1), samples);
    samples += expected;
  }
  EXPECT_EQ(BatchSchedule(5).samples(3), 15);
}

// A loader, here with a batch size warmup, returns the samples of the stream in order, and so does a loader that
// resumes after any step.
TEST_F(LoaderTest, BatchesAreTheSamplesOfTheStream) {
  LoaderOptions options{.global_batch_size = 12,
                        .batch_size_warmup = {{.batch_size = 4, .steps = 2}, {.batch_size = 8, .steps = 3}}};
  SampleStream stream(config_, config_.train, 0);
  Loader whole(config_, options);
  std::vector<int32_t> tokens(17), start(17);
  for (int64_t step = 0; step < 8; ++step) {
    const auto state = nlohmann::json::parse(whole.state_json().dump());
    options.steps_done = step;
    std::vector<std::unique_ptr<Loader>> ranks = open_ranks(4, options, &state);
    const Batch joined = joined_batch(ranks);
    const Batch& batch = whole.next();
    EXPECT_EQ(batch.step, step);
    EXPECT_GE(whole.data_ms(), 0);
    const size_t rows = step < 2 ? 4 : step < 5 ? 8 : 12;
    ASSERT_EQ(batch.inputs.size(), rows * 16);
    for (size_t row = 0; row < rows; ++row) {
      const Sample sample = stream.next();
      EXPECT_EQ(batch.dataset[row], sample.dataset);
      stream.read(sample, tokens, start);
      for (size_t t = 0; t < 16; ++t) {
        ASSERT_EQ(batch.inputs[row * 16 + t], tokens[t]);
        ASSERT_EQ(batch.targets[row * 16 + t], tokens[t + 1]);
        ASSERT_EQ(batch.document_start[row * 16 + t], start[t]);
      }
    }
    EXPECT_EQ(batch.state_after, stream.state());
    EXPECT_EQ(joined.inputs, batch.inputs);
    EXPECT_EQ(joined.state_after, batch.state_after);
  }
}

// A stage with other weights and another order of the datasets first reads the windows that the previous stage did not
// read.
TEST_F(LoaderTest, AStageContinuesItsDatasets) {
  Loader first(config_, {.global_batch_size = 10});
  std::map<int64_t, std::set<int64_t>> windows;  // The first tokens of the windows that were read, by dataset.
  SampleStream before(config_, config_.train, 0);
  for (int64_t g = 0; g < 20; ++g) {
    const Sample sample = before.next();
    EXPECT_TRUE(windows[sample.dataset].insert(sample.window.begin).second);
  }
  first.next(), first.next();
  const auto state = nlohmann::json::parse(first.state_json().dump());
  DataConfig second = config_;
  second.train = {{.paths = {dir_ / "b"}, .weight = 0.5}, {.paths = {dir_ / "a"}, .weight = 0.5}};
  second.origin = {.sample = 20, .datasets = {{.id = 1, .windows = 6}, {.id = 0, .windows = 14}}};
  SampleStream stream(second, second.train, 0);
  EXPECT_EQ(stream.next_sample(), 20);
  for (int64_t g = 20; g < 40; ++g) {
    const Sample sample = stream.next();
    EXPECT_EQ(sample.index, g);
    EXPECT_TRUE(windows[1 - sample.dataset].insert(sample.window.begin).second) << g;
  }
  EXPECT_EQ(stream.state().windows, (std::vector<int64_t>{16, 24}));
  EXPECT_EQ(stream.expected_windows(0, 40), 16);
  EXPECT_THROW(stream.seek(19), InputError);

  Loader entering(second, {.global_batch_size = 10, .enters_stage = true}, &state);
  EXPECT_EQ(entering.state().next_sample, 20);
  const std::vector<int32_t> batch = entering.next().inputs;
  const auto inside = nlohmann::json::parse(entering.state_json().dump());
  const std::vector<int32_t> next = entering.next().inputs;
  EXPECT_EQ(Loader(second, {.global_batch_size = 10}, &inside).next().inputs, next);
  EXPECT_THROW(Loader(second, {.global_batch_size = 10}, &state), OtherData);
  EXPECT_EQ(Loader(second, {.global_batch_size = 10}).next().inputs, batch);
}

TEST_F(LoaderTest, StateIsThatOfTheConsumedStep) {
  for (const int64_t consumed : {0, 1, 7}) {
    Loader whole(config_, {.global_batch_size = 4});
    for (int64_t step = 0; step < consumed; ++step) whole.next();
    // The thread reads ahead in this time, but the state must not advance.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const auto state = nlohmann::json::parse(whole.state_json().dump());
    EXPECT_EQ(state.at("next_sample"), consumed * 4);
    // The resumed loader is rank 1 of 2 ranks.
    Loader resumed(config_, {.global_batch_size = 4, .rank = 1, .num_ranks = 2}, &state);
    for (int step = 0; step < 5; ++step) {
      const Batch& expected = whole.next();
      const std::vector<int32_t> second_half(expected.inputs.begin() + 32, expected.inputs.end());
      ASSERT_EQ(resumed.next().inputs, second_half);
      ASSERT_EQ(resumed.state_json(), whole.state_json());
    }
  }
}

TEST_F(LoaderTest, RewindsToAnEarlierStep) {
  config_.skip = {{6, 9}};
  Loader loader(config_, {.global_batch_size = 2, .batch_size_warmup = {{.batch_size = 1, .steps = 3}}});
  std::vector<nlohmann::json> states = {loader.state_json()};
  std::vector<std::vector<int32_t>> inputs;
  const auto take_step = [&] {
    inputs.push_back(loader.next().inputs);
    states.push_back(loader.state_json());
  };
  for (int step = 0; step < 8; ++step) take_step();
  const auto expected_inputs = inputs;
  const auto expected_states = states;
  for (const size_t to : {5, 2, 0}) {
    loader.rewind(expected_states[to], static_cast<int64_t>(to));
    EXPECT_EQ(loader.state_json(), expected_states[to]);
    inputs.resize(to);
    states.resize(to + 1);
    for (size_t step = to; step < 8; ++step) take_step();
    EXPECT_EQ(inputs, expected_inputs) << to;
    EXPECT_EQ(states, expected_states) << to;
  }
}

TEST_F(LoaderTest, BuffersAreReused) {
  Loader loader(config_, {.global_batch_size = 2});
  std::vector<const int32_t*> addresses;
  for (int step = 0; step < 50; ++step) {
    const int32_t* address = loader.next().inputs.data();
    if (std::find(addresses.begin(), addresses.end(), address) == addresses.end()) addresses.push_back(address);
  }
  EXPECT_LE(addresses.size(), 3u);
}

// The token file is damaged after the loader has checked it. At most three batches are read before the first next().
TEST_F(LoaderTest, BadTokenSurfacesAtItsStep) {
  write_tokens(dir_ / "bad", {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {1, 2, 3, 4}});
  config_ = {.train = {{.paths = {dir_ / "bad"}}}, .seq_len = 3, .shuffle = Shuffle::kNone, .reader_threads = 3};
  Loader loader(config_, {.global_batch_size = 1, .vocab_size = 256});
  overwrite(dir_ / "bad.bin", 14 * sizeof(int32_t), Bytes().add<int32_t>(300).str());
  for (int step = 0; step < 3; ++step) loader.next();
  for (int again = 0; again < 2; ++again) {
    expect_mentions(message_of<Error>([&] { loader.next(); }), {"bad.bin", "token id 300", "position 2", "document 1"});
  }
  EXPECT_EQ(loader.state_json().at("next_sample"), 3);
}

// The threads read ahead, but the error is reported only after the steps before it, and the state stays that of the
// last good step.
TEST_F(LoaderTest, AFailureSurfacesAtItsStep) {
  write_tokens(dir_ / "t", counting_documents({8, 4, 8}));
  config_ = {.train = {{.paths = {dir_ / "t"}}}, .seq_len = 3, .shuffle = Shuffle::kNone, .reader_threads = 4};
  Loader loader(config_, {.global_batch_size = 1});
  loader.next();
  overwrite(dir_ / "t.idx", 34 + 8, Bytes().add<int32_t>(-1).str());
  const auto read_on = [&] {
    for (int i = 0; i < 10; ++i) loader.next();
  };
  expect_mentions(message_of<InputError>(read_on), {"t.idx", "length -1"});
  const nlohmann::json state = loader.state_json();
  EXPECT_LE(state.at("next_sample"), 4);
  expect_mentions(message_of<InputError>(read_on), {"t.idx", "length -1"});
  EXPECT_EQ(loader.state_json(), state);
}

// A batch that cannot be assembled ends the run with an error and does not crash the process.
TEST_F(LoaderTest, AStepThatCannotBeDividedIsAnErrorOfThatStep) {
  Loader loader(config_, {.global_batch_size = 4, .batch_size_warmup = {{4, 2}, {3, 1}}, .num_ranks = 2});
  loader.next();
  loader.next();
  const nlohmann::json state = loader.state_json();
  for (int again = 0; again < 2; ++again) {
    expect_mentions(message_of<Error>([&] { loader.next(); }), {"step 3 takes 3 samples"});
  }
  EXPECT_EQ(loader.state_json(), state);
}

TEST_F(LoaderTest, WithoutThreadsTheErrorIsOneSentence) {
  config_.reader_threads = 3;
  const NoThreads none;
  expect_mentions(message_of<Error>([&] { Loader(config_, {.global_batch_size = 1}); }),
                  {"no thread can be started for reading data"});
}

// Samples of skipped ranges are in no batch, and the other samples keep their numbers.
TEST_F(LoaderTest, SamplesOfSkippedRangesAreInNoBatch) {
  SampleStream stream(config_, config_.train, 0);
  std::vector<std::vector<int32_t>> samples;
  for (int g = 0; g < 60; ++g) {
    std::vector<int32_t> tokens(17);
    stream.read(stream.next(), tokens, {});
    samples.emplace_back(tokens.begin(), tokens.end() - 1);
  }
  config_.skip = {{30, 33}, {0, 2}, {10, 12}, {11, 20}, {33, 34}};
  std::vector<size_t> kept;
  for (size_t g = 0; g < 60; ++g) {
    if (g >= 2 && (g < 10 || g >= 20) && (g < 30 || g >= 34)) kept.push_back(g);
  }
  for (const int64_t num_ranks : {1, 2}) {
    std::vector<std::unique_ptr<Loader>> ranks = open_ranks(num_ranks, {.global_batch_size = 4});
    for (size_t step = 0; step < kept.size() / 4; ++step) {
      const Batch joined = joined_batch(ranks);
      for (size_t row = 0; row < 4; ++row) {
        const auto begin = joined.inputs.begin() + static_cast<std::ptrdiff_t>(row) * 16;
        ASSERT_EQ(std::vector<int32_t>(begin, begin + 16), samples[kept[step * 4 + row]]);
      }
    }
    const nlohmann::json state = ranks[0]->state_json();
    EXPECT_EQ(state.at("skipped").dump(), "[[0,2],[10,20],[30,34]]");
    // A resumed run remembers the skipped ranges even if its config no longer lists them.
    DataConfig without = config_;
    without.skip = {};
    EXPECT_EQ(Loader(without, {.global_batch_size = 4}, &state).state_json(), state);
  }
}

TEST_F(LoaderTest, ResumesFromTheGivenSampleOnce) {
  config_.resume_from_sample = 100;
  Loader first(config_, {.global_batch_size = 4});
  first.next();
  EXPECT_EQ(first.state_json().at("next_sample"), 104);
  const nlohmann::json state = first.state_json();
  EXPECT_EQ(Loader(config_, {.global_batch_size = 4}, &state).state().next_sample, 104);
  config_.resume_from_sample = 7;
  EXPECT_EQ(Loader(config_, {.global_batch_size = 4}, &state).state().next_sample, 7);
  config_.resume_from_sample = {};
  EXPECT_EQ(Loader(config_, {.global_batch_size = 4}, &state).state().next_sample, 104);
}

TEST_F(LoaderTest, AStageBeginsAtItsFirstSampleAfterOneThatRepeatedSamples) {
  config_.resume_from_sample = 5;
  Loader first(config_, {.global_batch_size = 10});
  first.next();
  const auto state = nlohmann::json::parse(first.state_json().dump());
  EXPECT_EQ(state.at("next_sample"), 15);
  config_.origin.sample = 20;
  Loader second(config_, {.global_batch_size = 10, .enters_stage = true}, &state);
  EXPECT_EQ(second.state().next_sample, 20);
  second.next();
  const nlohmann::json inside = second.state_json();
  EXPECT_EQ(Loader(config_, {.global_batch_size = 10}, &inside).state().next_sample, 30);
  // A loader cannot resume from a sample of an earlier stage.
  config_.resume_from_sample = 19;
  expect_mentions(message_of<InputError>([&] { Loader(config_, {.global_batch_size = 10}, &inside); }),
                  {"data.resume_from_sample is 19", "begins at sample 20"});
}

TEST_F(LoaderTest, WrongFileIsFoundBeforeTheFirstStep) {
  config_.eos_id = {};
  expect_mentions(message_of<InputError>([&] { Loader loader(config_, {.vocab_size = 100}); }), {"a.bin", "id 100"});
  expect_mentions(message_of<InputError>([&] { Loader loader(config_, {.global_batch_size = 4, .num_ranks = 3}); }),
                  {"training.global_batch_size is 4", "3 data-parallel ranks"});
  config_.train = {};
  expect_mentions(message_of<InputError>([&] { Loader loader(config_, {}); }), {"data.train"});
}

TEST_F(LoaderTest, TellsOfALongWait) {
  const auto first_wait = [&](std::chrono::milliseconds patience) {
    std::vector<DataWait> waits;
    Loader loader(config_, {.global_batch_size = 100'000,
                            .steps_done = 4,
                            .on_wait = [&](const DataWait& wait) { waits.push_back(wait); },
                            .patience = patience});
    loader.next();
    EXPECT_LE(waits.size(), 1u) << "at most once per minute";
    return waits.empty() ? DataWait() : waits[0];
  };
  EXPECT_EQ(first_wait(std::chrono::hours(1)).step, 0);
  DataWait wait;
  for (int i = 0; i < 20 && wait.file.empty(); ++i) wait = first_wait(std::chrono::milliseconds(0));
  EXPECT_EQ(wait.step, 5);
  EXPECT_TRUE(wait.file == config_.train[0].paths[0] || wait.file == config_.train[1].paths[0]) << wait.file;
}

// The loaders end long before a batch of this size is read.
TEST_F(LoaderTest, EndsWhileItsThreadsRead) {
  for (int i = 0; i < 20; ++i) Loader loader(config_, {.global_batch_size = 100'000});
}

}  // namespace
}  // namespace octavo
