#include "data/sample_stream.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/error.h"
#include "data/loader.h"
#include "data/tokenizer_identity.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

class SampleStreamTest : public testing::Test {
 protected:
  SampleStreamTest() {
    config_.seq_len = 12;
    config_.eos_id = 77;
  }

  // Returns a dataset of documents of varied lengths whose tokens are all different, counting up from `first`.
  DatasetSource dataset(const std::string& name, int64_t documents, double weight, int32_t first = 100) {
    write_tokens(dir_ / name, counting_documents(varied_lengths(documents, 40), first));
    return {.paths = {dir_ / name}, .weight = weight};
  }
  void use_three() {
    config_.train = {dataset("a", 50, 0.5), dataset("b", 20, 0.2, 10'000), dataset("c", 31, 0.3, 20'000)};
  }
  SampleStream open() const { return {config_, config_.train, 0}; }

  std::vector<int32_t> read(const SampleStream& stream, const Sample& sample) const {
    std::vector<int32_t> tokens(static_cast<size_t>(config_.seq_len) + 1);
    stream.read(sample, tokens, {});
    return tokens;
  }

  TempDir dir_;
  DataConfig config_;
};

// The fields of PREFIX.json must agree with the config if they are present. Some programs that write token files omit
// fields.
TEST_F(SampleStreamTest, SidecarsMustAgree) {
  config_.train = {dataset("a", 50, 1), dataset("b", 20, 1)};
  config_.bos_id = 1;
  const std::string sidecar = dir_ / "b.json";
  const auto refusal = [&](std::string_view content, int64_t vocab_size = 30'000) {
    write_file(sidecar, content);
    try {
      const SampleStream stream(config_, config_.train, vocab_size);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  const std::string one = R"({"model": {"vocab": {"a": 0, "b": 1}}})",
                    two = R"({"model": {"vocab": {"a": 1, "b": 0}}})";
  write_file(dir_ / "own.json", one);
  write_file(dir_ / "copy.json", one + "\n");
  write_file(dir_ / "other.json", two);
  const std::string own = R"({"tokenizer": ")" + (dir_ / "own.json") + R"("})";
  for (const char* content : {"{}", "[]", "no JSON", R"({"tokenizer": null, "vocab_size": null})",
                              R"({"tokenizer": "byte", "vocab_size": 30000, "bos": 1, "eos": 77})",
                              R"({"tokenizer": 5, "vocab_size": "many", "bos": null, "eos": 7.5})"}) {
    EXPECT_EQ(refusal(content), "none") << content;
  }
  expect_mentions(refusal(R"({"vocab_size": 30001})"), {sidecar, "vocab_size 30001", "model.vocab_size is 30000"});
  EXPECT_NE(refusal(R"({"vocab_size": 18446744073709551615})"), "none");
  EXPECT_EQ(refusal(R"({"bos": 2, "eos": 78})"), "none");
  const auto [tokens, documents, index_bytes] = count_tokens(dir_ / "b");
  EXPECT_EQ(refusal(fmt::format(R"({{"tokens": {}, "documents": {}}})", tokens, documents.value())), "none");
  expect_mentions(
      refusal(fmt::format(R"({{"tokens": {}}})", tokens + 1)),
      {fmt::format("{} has tokens {}, but", sidecar, tokens + 1), fmt::format("b has {}, expected", tokens)});
  expect_mentions(refusal(R"({"documents": 9007199254740993})"), {"documents 9007199254740993"});
  expect_mentions(refusal(own), {sidecar + " has the tokenizer " + (dir_ / "own.json"), "data.tokenizer is byte"});
  // A vocabulary size of 0 disables the comparison.
  EXPECT_EQ(refusal(own, 0), "none");

  // Tokenizers with equal hashes are equal, wherever their files are. Without a hash and a file there is no comparison.
  config_.tokenizer = dir_ / "copy.json";
  EXPECT_EQ(refusal(own), "none");
  EXPECT_EQ(refusal(R"({"tokenizer": "elsewhere/tokenizer.json"})"), "none");
  expect_mentions(refusal(R"({"tokenizer": "byte"})"), {"has the tokenizer byte", "but data.tokenizer is"});
  config_.tokenizer = dir_ / "other.json";
  expect_mentions(refusal(own), {"own.json", "data.tokenizer is " + (dir_ / "other.json"), "expected the same"});
  const std::string moved = R"({"tokenizer": "moved.json", "tokenizer_hash": ")";
  expect_mentions(refusal(moved + tokenizer_hash(one, "one") + "\"}"), {"moved.json", "expected the same"});
  EXPECT_EQ(refusal(moved + tokenizer_hash(two, "two") + "\"}"), "none");
  // The hash that a run resolved takes precedence over the file.
  config_.tokenizer_hash = tokenizer_hash(one, "one");
  EXPECT_EQ(refusal(own), "none");
  config_.tokenizer_hash = tokenizer_hash(two, "two");
  config_.tokenizer = "byte";
  expect_mentions(refusal(own), {"own.json", "expected the same"});
  config_.tokenizer = kUnknownTokenizer;
  expect_mentions(refusal(own), {"own.json", "expected the same"});
  config_.tokenizer_hash = "";
  EXPECT_EQ(refusal(own), "none");
}

TEST_F(SampleStreamTest, NotesIdsThatOverrideASidecarAndTokensThatAreStored) {
  config_.bos_id = 1;
  config_.train = {dataset("a", 50, 1), dataset("b", 20, 1)};
  write_file(dir_ / "a.json", R"({"bos": 1, "eos": 9})");
  write_file(dir_ / "b.json", R"({"bos": null, "eos": 8})");
  write_tokens(dir_ / "c", {{5, 77}, {77}, {6, 7, 77}});
  config_.train.push_back({.paths = {dir_ / "c"}});
  const SampleStream stream(config_, config_.train, 30'000);
  EXPECT_EQ(stream.notes(), (std::vector<std::string>{"the documents of c have the eos 77 already, so none is inserted",
                                                      "data.eos_id 77 overrides eos 9 of " + (dir_ / "a.json")}));
  EXPECT_EQ(stream.num_tokens(2), 6 + 3) << "a bos for each document";
}

// Nothing divides the documents of an llm.c shard that lacks the token of its format.
TEST_F(SampleStreamTest, DocumentMasksNeedATokenThatDividesAShard) {
  std::vector<uint16_t> tokens(20, 1);
  for (size_t i = 0; i < tokens.size(); i += 5) tokens[i] = 7;
  write_file(dir_ / "s.bin", llm_c_header(20240520, 1, 20) + u16_bytes(tokens));
  config_.train = {{.paths = {dir_ / "s"}}};
  config_.document_mask = true;
  config_.eos_id.reset();
  const auto open = [&] { const SampleStream stream(config_, config_.train, 100); };
  expect_mentions(message_of<InputError>(open), {"s: has no token that divides its documents", "data.eos_id"});
  config_.eos_id = 9;
  EXPECT_THROW(open(), InputError);
  for (std::optional<int32_t> DataConfig::*token : {&DataConfig::bos_id, &DataConfig::eos_id}) {
    config_.bos_id.reset();
    config_.eos_id.reset();
    config_.*token = 7;
    EXPECT_NO_THROW(open());
  }
  config_.eos_id.reset();
  config_.document_mask = false;
  EXPECT_NO_THROW(open());
}

// Compares each sample with the window, the stream and the dataset that the definition gives.
TEST_F(SampleStreamTest, SamplesAreAsDefined) {
  use_three();
  for (const Shuffle shuffle : {Shuffle::kLcg, Shuffle::kNone}) {
    config_.shuffle = shuffle;
    SampleStream stream = open();
    std::vector<TokenStream> streams;
    std::vector<WindowOrder> orders;
    for (const DatasetSource& source : config_.train) {
      streams.emplace_back(source.paths, DocumentTokens{.eos = 77});
      orders.emplace_back(
          WindowOrderOptions{streams.back().num_tokens(), 12, shuffle, config_.seed, std::ssize(orders)});
    }
    Mixture mixture({5, 2, 3});
    std::vector<int64_t> reads(3);
    for (int64_t g = 0; g < 500; ++g) {
      const Sample sample = stream.next();
      const auto d = static_cast<size_t>(mixture.next());
      ASSERT_EQ(sample, (Sample{g, static_cast<int64_t>(d), orders[d].at(reads[d]++)}));
      std::vector<int32_t> expected(13);
      streams[d].read(sample.window.begin, expected, {});
      ASSERT_EQ(read(stream, sample), expected);
    }
  }
}

// All tokens of the dataset are different, so the counts show which tokens an epoch reads.
TEST_F(SampleStreamTest, AnEpochReadsEachTokenOnceExceptTheRemainder) {
  config_.eos_id = {};
  config_.train = {dataset("a", 200, 1)};
  SampleStream stream = open();
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<int> seen(static_cast<size_t>(stream.num_tokens(0)));
    for (int64_t i = 0; i < stream.num_windows(0); ++i) {
      for (const int32_t token : read(stream, stream.next())) ++seen[static_cast<size_t>(token - 100)];
    }
    EXPECT_LE(*std::max_element(seen.begin(), seen.end()), 1);
    EXPECT_LT(std::count(seen.begin(), seen.end(), 0), 13);
  }
}

TEST_F(SampleStreamTest, ASoughtOrRestoredStreamContinuesExactly) {
  use_three();
  SampleStream reference = open();
  std::vector<Sample> samples;
  samples.reserve(350);
  for (int g = 0; g < 350; ++g) samples.push_back(reference.next());
  SampleStream stream = open();
  for (const int64_t g : {299, 0, 150, 149, 7}) {
    stream.seek(g);
    EXPECT_EQ(stream.next_sample(), g);
    const nlohmann::json saved = nlohmann::json::parse(stream.state_json(stream.state()).dump());
    EXPECT_LT(saved.dump().size(), 2000u) << "the state is a few integers";
    SampleStream restored = open();
    restored.restore(saved);
    for (int64_t i = g; i < g + 50; ++i) ASSERT_EQ(restored.next(), samples[static_cast<size_t>(i)]);
    EXPECT_EQ(stream.next(), samples[static_cast<size_t>(g)]);
  }
  EXPECT_THROW(stream.seek(-1), InputError);
}

TEST_F(SampleStreamTest, StatesOfOtherStreamsAreRefused) {
  use_three();
  SampleStream stream = open();
  stream.seek(40);
  const nlohmann::json saved = stream.state_json(stream.state());
  struct Case {
    std::function<void(DataConfig&, nlohmann::json&)> change;
    std::vector<std::string> mentions;
  };
  std::vector<Case> cases = {
      {[](auto& config, auto&) { config.seed = 5; }, {"data.seed 1234", "5"}},
      {[](auto& config, auto&) { config.seq_len = 13; }, {"data.seq_len 12", "13"}},
      {[](auto& config, auto&) { config.eos_id = {}; }, {"data.eos_id 77", "null"}},
      {[](auto& config, auto&) { config.train.pop_back(); }, {"3 datasets", "2"}},
      {[](auto& config, auto&) { config.train[1].weight = 0.25; }, {"weight"}},
      {[](auto& config, auto&) { std::swap(config.train[0].paths, config.train[1].paths); }, {"/b", "tokens"}},
      {[](auto&, auto& state) { state["datasets"][2]["windows"] = 1; }, {"1 windows of dataset c", "40 samples"}},
      {[](auto&, auto& state) { state["next_sample"] = -3; }, {"next_sample", "-3"}},
  };
  for (const char* key : {"seed", "datasets", "next_sample"})
    cases.push_back({[key](auto&, auto& state) { state.erase(key); }, {"the loader state", key}});
  for (const Case& c : cases) {
    DataConfig config = config_;
    nlohmann::json state = saved;
    c.change(config, state);
    SampleStream other(config, config.train, 0);
    expect_mentions(message_of<InputError>([&] { other.restore(state); }), c.mentions);
  }
  // The seed may change if nothing is shuffled.
  config_.shuffle = Shuffle::kNone;
  const SampleStream in_order = open();
  config_.seed = 5;
  open().restore(in_order.state_json(in_order.state()));
}

TEST_F(SampleStreamTest, AnotherCorpusWithTheSameCountsIsRefused) {
  use_three();
  SampleStream stream = open();
  stream.seek(40);
  const nlohmann::json saved = stream.state_json(stream.state());
  config_.train[1] = dataset("else/b", 20, 0.2, 10'000);
  config_.train[1].name = "b";
  SampleStream moved = open();
  moved.restore(saved);
  EXPECT_EQ(moved.state_json(moved.state()).at("datasets")[1].at("fingerprint"),
            saved.at("datasets")[1].at("fingerprint"));
  dataset("else/b", 20, 0.2, 10'001);
  SampleStream other = open();
  const std::string fingerprint = other.state_json(other.state()).at("datasets")[1].at("fingerprint");
  EXPECT_NE(fingerprint, saved.at("datasets")[1].at("fingerprint").get<std::string>());
  expect_mentions(message_of<InputError>([&] { other.restore(saved); }),
                  {"else/b: dataset b", fingerprint, saved.at("datasets")[1].at("fingerprint").get<std::string>(),
                   "data.resume_from_sample to 40"});
  nlohmann::json garbled = saved;
  garbled["datasets"][1]["fingerprint"] = {1, 2};
  expect_mentions(message_of<InputError>([&] { other.restore(garbled); }), {fingerprint, "[1,2]"});
  garbled["datasets"][1].erase("fingerprint");
  expect_mentions(message_of<InputError>([&] { other.restore(garbled); }), {fingerprint, "null"});
}

// A change between the blocks that the fingerprint of a large corpus samples is found by the time of the file.
TEST_F(SampleStreamTest, FilesThatWereModifiedSinceAreNamed) {
  const auto modify = [&](const char* name, int seconds) {
    using Clock = std::filesystem::file_time_type::clock;
    std::filesystem::last_write_time(dir_ / name, Clock::now() + std::chrono::seconds(seconds));
  };
  config_.train = {dataset("small", 50, 1), {.paths = {}, .weight = 1}};
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    write_tokens(dir_ / name, {std::vector<int32_t>(kFingerprintBytes / 16)});
    config_.train[1].paths.push_back(dir_ / name);
  }
  config_.train[1].name = "large";
  const SampleStream stream = open();
  const nlohmann::json saved = stream.state_json(stream.state());
  EXPECT_FALSE(saved.at("datasets")[0].contains("modified_ns"));
  modify("small.bin", 50);
  modify("a.bin", -50);
  SampleStream same = open();
  EXPECT_TRUE(same.modified_since(saved).empty()) << "read completely, or older";
  modify("b.idx", 50);
  const auto one = open().modified_since(saved);
  ASSERT_EQ(one.size(), 1u);
  expect_mentions(one[0], {"dataset large", "1 of 5", dir_ / "b.bin;"});
  for (const char* name : {"a.bin", "c.bin", "d.bin"}) modify(name, 50);
  const SampleStream changed = open();
  ASSERT_EQ(changed.modified_since(saved).size(), 1u);
  expect_mentions(changed.modified_since(saved)[0], {"4 of 5", "c.bin, ..."});
  EXPECT_TRUE(changed.modified_since(changed.state_json(changed.state())).empty());
  // Other data, and states of earlier versions, have no times to compare with.
  nlohmann::json other = saved;
  other["datasets"][1]["fingerprint"] = "0";
  EXPECT_TRUE(changed.modified_since(other).empty());
  other["datasets"].erase(1);
  EXPECT_TRUE(changed.modified_since(other).empty());
  other = saved;
  other["datasets"][1].erase("modified_ns");
  EXPECT_TRUE(changed.modified_since(other).empty());
  other["datasets"][1]["modified_ns"] = "now";
  expect_mentions(message_of<InputError>([&] { open().restore(other); }), {"modified_ns"});
}

TEST_F(SampleStreamTest, ADatasetHasAtLeastOneWindow) {
  write_tokens(dir_ / "short", {std::vector<int32_t>(11)});  // 12 tokens with eos, and a window has 13.
  config_.train = {dataset("a", 50, 1), {.paths = {dir_ / "short"}, .weight = 1}};
  expect_mentions(message_of<InputError>([&] { const Loader loader(config_, {}); }),
                  {"short", "12 tokens", "data.seq_len + 1 = 13"});
  config_.train[1].weight = 0;
  const Loader ignores(config_, {});
  config_.train[1].weight = 1;
  config_.seq_len = 11;
  const Loader reads(config_, {});
}

// An epoch has all tokens, of which its windows may leave out some.
TEST_F(SampleStreamTest, EpochsCountTokens) {
  write_tokens(dir_ / "t", {std::vector<int32_t>(24)});  // 25 tokens with eos, of which a window of 13 leaves out 12.
  config_.train = {{.paths = {dir_ / "t"}, .weight = 1}};
  const SampleStream stream = open();
  EXPECT_EQ(stream.num_windows(0), 1);
  EXPECT_EQ(stream.epochs(0, 0), 0);
  EXPECT_EQ(stream.epochs(0, 1), 13.0 / 25);
  EXPECT_EQ(stream.epochs(0, 25), 13);
}

TEST_F(SampleStreamTest, TheSameFileTwiceIsShuffledDifferently) {
  config_.train = {dataset("a", 400, 1), dataset("a", 400, 1)};
  SampleStream stream = open();
  int equal = 0;
  for (int i = 0; i < 200; ++i) {
    const int64_t first = stream.next().window.index;
    equal += first == stream.next().window.index;
  }
  EXPECT_LT(equal, 8);
  EXPECT_EQ(stream.name(0), "a");
  EXPECT_EQ(stream.name(1), "a_2");
}

TEST_F(SampleStreamTest, ImpossibleOptionsAreRefused) {
  use_three();
  const auto expect_refused = [&](const std::vector<std::string>& mentions, const auto& change) {
    DataConfig config = config_;
    change(config);
    expect_mentions(message_of<InputError>([&] { SampleStream(config, config.train, 300); }), mentions);
  };
  expect_refused({"data.seq_len is 0"}, [](DataConfig& c) { c.seq_len = 0; });
  expect_refused({"no dataset"}, [](DataConfig& c) { c.train.clear(); });
  expect_refused({"weight -1"}, [](DataConfig& c) { c.train[1].weight = -1; });
  expect_refused({"weight nan"}, [](DataConfig& c) { c.train[1].weight = std::nan(""); });
  expect_refused({"sum to 0"}, [](DataConfig& c) {
    for (DatasetSource& source : c.train) source.weight = 0;
  });
  expect_refused({"data.eos_id is 300", "299"}, [](DataConfig& c) { c.eos_id = 300; });
  expect_refused({"data.bos_id is -1"}, [](DataConfig& c) { c.bos_id = -1; });
  expect_refused({"a.bin", "vocabulary of 300"}, [](DataConfig&) {});
}

}  // namespace
}  // namespace octavo
