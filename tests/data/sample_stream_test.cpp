#include "data/sample_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

struct Read {
  std::vector<int32_t> tokens, document_start;
  Sample info;
};

Read read_sample(SampleStream& stream) {
  Read read;
  read.tokens.resize(static_cast<size_t>(stream.seq_len() + 1));
  read.document_start.resize(static_cast<size_t>(stream.seq_len() + 1));
  stream.next(read.tokens, read.document_start, &read.info);
  return read;
}

template <typename... Prefixes>
SampleStream open_stream(StreamOptions options, const Prefixes&... prefixes) {
  std::vector<TokenFile> files;
  (files.emplace_back(prefixes), ...);
  return SampleStream(std::move(options), std::move(files));
}

// The first `count` tokens of lane `lane` of one dataset, spelled out from the definition.
struct Lane {
  std::vector<int32_t> tokens, start_of_document;
  std::vector<int64_t> epochs;
};

Lane expected_lane(const TokenLists& documents, const StreamOptions& options, int64_t lane, int64_t count) {
  const int64_t lanes = options.shuffle == Shuffle::kNone ? 1 : options.lanes;
  const auto n = static_cast<int64_t>(documents.size());
  Lane result;
  for (int64_t q = lane; static_cast<int64_t>(result.tokens.size()) < count; q += lanes) {
    const int64_t epoch = q / n;
    const auto i = static_cast<uint64_t>(q % n);
    const uint64_t d = options.shuffle == Shuffle::kNone
                           ? i
                           : Permutation(static_cast<uint64_t>(n), options.seed, 0, static_cast<uint64_t>(epoch))(i);
    std::vector<int32_t> tokens = documents[d];
    if (options.bos_id) tokens.insert(tokens.begin(), *options.bos_id);
    if (options.eos_id) tokens.push_back(*options.eos_id);
    const auto start = static_cast<int32_t>(result.tokens.size());
    for (const int32_t token : tokens) {
      result.tokens.push_back(token);
      result.start_of_document.push_back(start);
      result.epochs.push_back(epoch);
    }
  }
  return result;
}

struct StreamCase {
  std::string name;
  StreamOptions options;
  std::vector<int64_t> lengths;
};

class Definition : public testing::TestWithParam<StreamCase> {};

TEST_P(Definition, SamplesAreAsDefined) {
  const auto& [name, options, lengths] = GetParam();
  const TempDir dir;
  const TokenLists documents = counting_documents(lengths);
  write_tokens(dir / "t", documents);
  SampleStream stream = open_stream(options, dir / "t");
  const int64_t lanes = stream.num_lanes(), rounds = 8, length = options.seq_len + 1;
  std::vector<Lane> expected;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    expected.push_back(expected_lane(documents, options, lane, rounds * length));
  }
  for (int64_t g = 0; g < rounds * lanes; ++g) {
    const Read read = read_sample(stream);
    const Lane& lane = expected[static_cast<size_t>(g % lanes)];
    const auto begin = static_cast<size_t>(g / lanes * length);
    EXPECT_EQ(read.info.index, g);
    EXPECT_EQ(read.info.lane, g % lanes);
    EXPECT_EQ(read.info.epoch, lane.epochs[begin]);
    for (size_t t = 0; t < static_cast<size_t>(length); ++t) {
      ASSERT_EQ(read.tokens[t], lane.tokens[begin + t]) << "sample " << g << " token " << t;
      if (t + 1 == static_cast<size_t>(length)) break;
      const int64_t start = lane.start_of_document[begin + t] - static_cast<int64_t>(begin);
      ASSERT_EQ(read.document_start[t], std::max<int64_t>(0, start)) << "sample " << g << " token " << t;
    }
  }
}

std::vector<StreamCase> stream_cases() {
  const auto options = [](int64_t seq_len, Shuffle shuffle, int64_t lanes, std::optional<int32_t> bos = {},
                          std::optional<int32_t> eos = {}) {
    StreamOptions result{.seq_len = seq_len, .shuffle = shuffle, .lanes = lanes};
    result.bos_id = bos;
    result.eos_id = eos;
    return result;
  };
  return {
      {"file_order", options(7, Shuffle::kNone, 5), {3, 20, 0, 1, 9}},
      {"file_order_bos_eos", options(7, Shuffle::kNone, 1, 90001, 90002), {3, 20, 0, 1, 9}},
      {"lanes", options(16, Shuffle::kLcg, 4), varied_lengths(50, 30)},
      {"one_lane", options(10, Shuffle::kLcg, 1), varied_lengths(20, 12)},
      {"lanes_bos", options(16, Shuffle::kLcg, 4, 90001), varied_lengths(50, 30)},
      {"lanes_eos", options(16, Shuffle::kLcg, 4, {}, 90002), varied_lengths(50, 30)},
      {"lanes_bos_eos", options(5, Shuffle::kLcg, 6, 90001, 90002), varied_lengths(33, 8)},
      {"fewer_documents_than_lanes", options(9, Shuffle::kLcg, 16), {4, 0, 25}},
      {"one_document", options(6, Shuffle::kLcg, 3), {5}},
      {"one_token", options(1, Shuffle::kLcg, 2), {1}},
  };
}

INSTANTIATE_TEST_SUITE_P(SampleStream, Definition, testing::ValuesIn(stream_cases()),
                         [](const auto& test) { return test.param.name; });

// With tokens that are unique and documents that never straddle a sample's end, each token must come once an epoch.
void expect_each_document_once_an_epoch(int64_t num_documents, int64_t lanes, int64_t epochs) {
  const TempDir dir;
  const int64_t length = 4;
  write_tokens(dir / "t", counting_documents(std::vector<int64_t>(static_cast<size_t>(num_documents), length)));
  SampleStream stream = open_stream({.seq_len = length - 1, .lanes = lanes}, dir / "t");
  std::map<std::pair<int64_t, int32_t>, int> reads;  // (epoch, first token)
  // Lanes advance in step, so the samples 0..n epochs-1 are the positions 0..n epochs-1.
  for (int64_t g = 0; g < num_documents * epochs; ++g) {
    const Read read = read_sample(stream);
    ++reads[{read.info.epoch, read.tokens[0]}];
    EXPECT_EQ(read.info.epoch, g / num_documents);
  }
  EXPECT_EQ(static_cast<int64_t>(reads.size()), num_documents * epochs);
  for (const auto& [key, count] : reads) EXPECT_EQ(count, 1);
}

TEST(SampleStream, EveryDocumentOnceAnEpoch) {
  expect_each_document_once_an_epoch(100, 7, 5);
  expect_each_document_once_an_epoch(96, 8, 5);
}

TEST(SampleStream, EveryDocumentOnceAnEpochWithFewerDocumentsThanLanes) {
  expect_each_document_once_an_epoch(5, 16, 20);
  expect_each_document_once_an_epoch(4, 16, 20);
}

TEST(SampleStream, OrderChangesWithSeedAndEpoch) {
  const TempDir dir;
  write_tokens(dir / "t", counting_documents(std::vector<int64_t>(64, 4)));
  const auto first_tokens = [&](uint64_t seed, int64_t epoch) {
    SampleStream stream = open_stream({.seq_len = 3, .lanes = 4, .seed = seed}, dir / "t");
    stream.skip(64 * epoch);
    std::vector<int32_t> tokens;
    for (int i = 0; i < 64; ++i) tokens.push_back(read_sample(stream).tokens[0]);
    return tokens;
  };
  EXPECT_EQ(first_tokens(1, 0), first_tokens(1, 0));
  EXPECT_NE(first_tokens(1, 0), first_tokens(1, 1));
  EXPECT_NE(first_tokens(1, 0), first_tokens(2, 0));
}

// Streams over three datasets and over one, for what must hold of both.
class OneOrSeveral : public testing::TestWithParam<int> {
 protected:
  OneOrSeveral() {
    write_tokens(dir_ / "a", counting_documents(varied_lengths(40, 30, 1)));
    write_tokens(dir_ / "b", counting_documents(varied_lengths(25, 60, 2), 10000));
    write_tokens(dir_ / "c", counting_documents(varied_lengths(3, 10, 9), 20000));
  }
  SampleStream open(Shuffle shuffle = Shuffle::kLcg, int64_t lanes = 6) const {
    StreamOptions options{.seq_len = 20, .shuffle = shuffle, .lanes = lanes, .bos_id = 30000};
    if (GetParam() == 1) return open_stream(options, dir_ / "a");
    options.weights = {0.5, 0.3, 0.2};
    return open_stream(options, dir_ / "a", dir_ / "b", dir_ / "c");
  }
  TempDir dir_;
};

INSTANTIATE_TEST_SUITE_P(SampleStream, OneOrSeveral, testing::Values(1, 3));

TEST_P(OneOrSeveral, SkippingIsReading) {
  for (const Shuffle shuffle : {Shuffle::kLcg, Shuffle::kNone}) {
    for (const int64_t lanes : {1, 6}) {
      SampleStream reader = open(shuffle, lanes);
      int64_t position = 0;
      for (const int64_t target : {0, 1, 5, 6, 7, 40, 41, 300, 1000}) {
        for (; position < target; ++position) read_sample(reader);
        SampleStream skipper = open(shuffle, lanes);
        skipper.skip(target);
        EXPECT_EQ(skipper.state(), reader.state()) << target;
        skipper = open(shuffle, lanes);
        for (int64_t left = target; left > 0; left -= std::min<int64_t>(left, 13)) {
          skipper.skip(std::min<int64_t>(left, 13));
        }
        EXPECT_EQ(skipper.state(), reader.state()) << target;
      }
    }
  }
}

// The samples end with the last token of an epoch, before a document without tokens.
TEST(SampleStream, SkippingWholeEpochsEndsWhereReadingEnds) {
  const TempDir dir;
  write_tokens(dir / "t", counting_documents({3, 5, 0}));
  SampleStream reader = open_stream({.seq_len = 7, .shuffle = Shuffle::kNone}, dir / "t");
  SampleStream skipper = open_stream({.seq_len = 7, .shuffle = Shuffle::kNone}, dir / "t");
  for (int g = 0; g < 5; ++g) read_sample(reader);
  skipper.skip(5);
  EXPECT_EQ(skipper.state(), reader.state());
}

TEST_P(OneOrSeveral, RestoredStreamGoesOnAsIfNothingHadHappened) {
  SampleStream whole = open();
  std::vector<std::vector<int32_t>> expected;
  for (int g = 0; g < 200; ++g) expected.push_back(read_sample(whole).tokens);
  for (const int64_t cut : {0, 1, 17, 100, 199}) {
    SampleStream before = open();
    before.skip(cut);
    const std::string text = before.state_json().dump();
    SampleStream after = open();
    after.restore(nlohmann::json::parse(text));
    EXPECT_EQ(after.state(), before.state());
    for (int64_t g = cut; g < 200; ++g) ASSERT_EQ(read_sample(after).tokens, expected[static_cast<size_t>(g)]) << g;
  }
}

TEST_P(OneOrSeveral, FarSamplesAreReachedQuickly) {
  SampleStream shuffled = open();
  const auto begin = std::chrono::steady_clock::now();
  shuffled.skip(1'000'000);
  SampleStream in_order = open_stream({.seq_len = 20, .shuffle = Shuffle::kNone}, dir_ / "a");
  in_order.skip(int64_t{1} << 50);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(taken.count(), 10);  // a fraction of a second, but sanitizers and busy machines take their time
  EXPECT_EQ(read_sample(in_order).info.index, int64_t{1} << 50);
}

TEST_P(OneOrSeveral, StatesOfOtherStreamsAreRefused) {
  SampleStream stream = open();
  const nlohmann::json good = stream.state_json();
  const auto refuse = [&](auto change, const std::vector<std::string>& mentions) {
    nlohmann::json bad = good;
    change(bad);
    expect_mentions(message_of<InputError>([&] { stream.restore(bad); }), mentions);
  };
  refuse([](auto& json) { json["lanes"] = 7; }, {"data.lanes 7", "has 6"});
  refuse([](auto& json) { json["seed"] = 7; }, {"data.seed 7"});
  refuse([](auto& json) { json["shuffle"] = "none"; }, {"data.shuffle"});
  refuse([](auto& json) { json["bos_id"] = nullptr; }, {"data.bos_id null"});
  refuse([](auto& json) { json["datasets"].push_back(json["datasets"][0]); }, {"datasets, but the config has"});
  refuse([](auto& json) { json["datasets"][0]["documents"] = 41; }, {"a.bin", "40 documents", "41"});
  refuse([](auto& json) { json["position"].push_back(0); }, {"'position'"});
  refuse([](auto& json) { json["position"][0] = 1; }, {"position 1"});
  refuse([](auto& json) { json["offset"][0] = 1000000; }, {"token 1000000 of document"});
  refuse([](auto& json) { json["next_sample"] = -1; }, {"next_sample is -1"});
  refuse([](auto& json) { json["next_sample"] = "x"; }, {"next_sample is \"x\""});
  refuse([](auto& json) { json.erase("consumed"); }, {"malformed", "consumed"});
  refuse([](auto& json) { json = nlohmann::json::array(); }, {"malformed"});
  EXPECT_EQ(stream.state_json(), good);
}

TEST(SampleStream, MixesByWeightInTokens) {
  const TempDir dir;
  // Very different lengths: the weights are of tokens, not of documents.
  write_tokens(dir / "a", TokenLists(50, std::vector<int32_t>(200, 0)));
  write_tokens(dir / "b", TokenLists(500, std::vector<int32_t>(7, 1)));
  write_tokens(dir / "c", TokenLists(20, std::vector<int32_t>(30, 2)));
  write_tokens(dir / "d", TokenLists(20, std::vector<int32_t>(30, 3)));
  SampleStream stream =
      open_stream({.seq_len = 99, .lanes = 4, .weights = {6, 3, 1, 0}}, dir / "a", dir / "b", dir / "c", dir / "d");
  std::vector<double> counts(4);
  const int samples = 4000;
  for (int g = 0; g < samples; ++g) {
    for (const int32_t token : read_sample(stream).tokens) ++counts[static_cast<size_t>(token)];
  }
  // A lane is never off by more than about a document.
  const double total = 100.0 * samples;
  EXPECT_NEAR(counts[0] / total, 0.6, 4 * 250 / total);
  EXPECT_NEAR(counts[1] / total, 0.3, 4 * 250 / total);
  EXPECT_NEAR(counts[2] / total, 0.1, 4 * 250 / total);
  EXPECT_EQ(counts[3], 0);
}

TEST(SampleStream, TiesGoToTheFirstDataset) {
  const TempDir dir;
  write_tokens(dir / "a", TokenLists(4, std::vector<int32_t>(5, 0)));
  write_tokens(dir / "b", TokenLists(4, std::vector<int32_t>(5, 1)));
  SampleStream stream = open_stream({.seq_len = 19, .shuffle = Shuffle::kNone}, dir / "a", dir / "b");
  const std::vector<int32_t> tokens = read_sample(stream).tokens;
  for (size_t t = 0; t < tokens.size(); ++t) EXPECT_EQ(tokens[t], static_cast<int32_t>(t / 5 % 2)) << t;
}

TEST(SampleStream, SameFileTwiceIsShuffledDifferently) {
  const TempDir dir;
  write_tokens(dir / "a", counting_documents(std::vector<int64_t>(64, 4)));
  SampleStream stream = open_stream({.seq_len = 3, .lanes = 1}, dir / "a", dir / "a");
  std::vector<int32_t> first, second;
  for (int g = 0; g < 128; ++g) {
    const Read read = read_sample(stream);
    (read.info.dataset == 0 ? first : second).push_back(read.tokens[0]);
  }
  EXPECT_EQ(first.size(), second.size());
  EXPECT_NE(first, second);
}

TEST(SampleStream, ImpossibleOptionsAreRefused) {
  const TempDir dir;
  write_tokens(dir / "a", {{1, 2, 3}});
  write_tokens(dir / "empty", {{}, {}});
  const auto refuse = [&](const StreamOptions& options, const char* name, const std::vector<std::string>& mentions) {
    expect_mentions(message_of<InputError>([&] { open_stream(options, dir / name); }), mentions);
  };
  refuse({.seq_len = 0}, "a", {"data.seq_len", "0"});
  refuse({.lanes = 0}, "a", {"data.lanes", "0"});
  refuse({.weights = {-1}}, "a", {"a.bin", "weight -1"});
  refuse({.weights = {0}}, "a", {"weights", "sum to 0"});
  refuse({.bos_id = 272, .vocab_size = 272}, "a", {"data.bos_id", "272", "271"});
  refuse({.eos_id = -1}, "a", {"data.eos_id", "-1"});
  refuse({}, "empty", {"empty.bin", "empty dataset"});
  refuse({.bos_id = 1}, "empty", {"empty.bin", "empty dataset"});
}

TEST(SampleStream, EmittedTokensAreCheckedAgainstTheVocabulary) {
  const TempDir dir;
  write_tokens(dir / "a", {{1, 2, 3}, {4, 5, 600}});
  SampleStream stream =
      open_stream({.seq_len = 3, .shuffle = Shuffle::kNone, .bos_id = 7, .vocab_size = 300}, dir / "a");
  EXPECT_EQ(read_sample(stream).tokens, (std::vector<int32_t>{7, 1, 2, 3}));
  expect_mentions(message_of<Error>([&] { read_sample(stream); }),
                  {"a.bin", "token id 600", "position 2", "document 1", "vocabulary of 300"});
}

}  // namespace
}  // namespace octavo
