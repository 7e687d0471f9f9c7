#include "data/tokens/token_file.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

std::vector<int32_t> read_document(const TokenFile& file, int64_t document) {
  std::vector<int32_t> ids(static_cast<size_t>(file.document_length(document)));
  file.copy(document, 0, ids);
  return ids;
}

class EveryDtype : public testing::TestWithParam<TokenDtype> {};

TEST_P(EveryDtype, WrittenDocumentsAreReadBack) {
  const TempDir dir;
  const auto largest = static_cast<int32_t>(max_token_id(GetParam()));
  const TokenLists documents{{1, 2, 3}, {}, {largest, 0}, {7}, {}};
  write_tokens(dir / "tokens", documents, GetParam());
  for (const char* name : {"tokens", "tokens.bin", "tokens.idx"}) {
    const TokenFile file(dir / name);
    EXPECT_EQ(file.format(), "megatron");
    EXPECT_EQ(file.dtype(), GetParam());
    ASSERT_EQ(file.num_documents(), 5);
    EXPECT_EQ(file.num_tokens(), 6);
    for (int64_t d = 0; d < 5; ++d) EXPECT_EQ(read_document(file, d), documents[static_cast<size_t>(d)]);
  }
  EXPECT_EQ(std::filesystem::file_size(dir / "tokens.bin"), static_cast<size_t>(6 * token_size_bytes(GetParam())));
  EXPECT_FALSE(std::filesystem::exists(dir / "tokens.bin.tmp"));
}

INSTANTIATE_TEST_SUITE_P(TokenFile, EveryDtype, testing::Values(TokenDtype::kU8, TokenDtype::kU16, TokenDtype::kI32),
                         [](const auto& test) { return std::string(token_dtype_name(test.param)); });

TEST(TokenFile, ReadsAndWritesTheBytesOfTheFormat) {
  const TempDir dir;
  const std::string bin = u16_bytes({10, 11, 12, 13, 65535}), idx = index_bytes(8, {3, 2}, {0, 6}, {0, 1, 2});
  write_file(dir / "t.bin", bin);
  write_file(dir / "t.idx", idx);
  const TokenFile file(dir / "t");
  EXPECT_EQ(file.num_documents(), 2);
  EXPECT_EQ(read_document(file, 0), (std::vector<int32_t>{10, 11, 12}));
  EXPECT_EQ(read_document(file, 1), (std::vector<int32_t>{13, 65535}));
  write_tokens(dir / "w", {{10, 11, 12}, {13, 65535}}, TokenDtype::kU16);
  EXPECT_EQ(read_whole_file(dir / "w.bin"), bin);
  EXPECT_EQ(read_whole_file(dir / "w.idx"), idx);
}

TEST(TokenFile, DocumentsOfSeveralScatteredSequences) {
  const TempDir dir;
  write_file(dir / "t.bin", u16_bytes({5, 6, 1, 2, 9, 3, 4}));
  // Document 0 has the sequences 1 2 | 3 4 | (empty) | 5 6, document 1 has no sequence, and document 2 has the sequence
  // 9.
  write_file(dir / "t.idx", index_bytes(8, {2, 2, 0, 2, 1}, {4, 10, 0, 0, 8}, {0, 4, 4, 5}));
  const TokenFile file(dir / "t");
  ASSERT_EQ(file.num_documents(), 3);
  EXPECT_EQ(file.num_sequences(), 5);
  EXPECT_EQ(file.num_tokens(), 7);
  EXPECT_EQ(read_document(file, 0), (std::vector<int32_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(file.document_length(1), 0);
  EXPECT_EQ(read_document(file, 2), (std::vector<int32_t>{9}));
  for (int64_t begin = 0; begin <= 6; ++begin) {
    for (int64_t end = begin; end <= 6; ++end) {
      std::vector<int32_t> range(static_cast<size_t>(end - begin)), expected(range.size());
      std::iota(expected.begin(), expected.end(), static_cast<int32_t>(begin + 1));
      file.copy(0, begin, range);
      EXPECT_EQ(range, expected);
    }
  }
  std::vector<int32_t> too_long(3);
  EXPECT_THROW(file.copy(0, 4, too_long), Error);
}

TEST(TokenFile, LlmCShardsOfGpt2) {
  const TempDir dir;
  write_file(dir / "s.bin", llm_c_header(20240520, 1, 7) + u16_bytes({50256, 1, 2, 50256, 50256, 3, 4}));
  const TokenFile file(dir / "s.bin");
  EXPECT_EQ(file.format(), "llm.c");
  ASSERT_EQ(file.num_documents(), 3);
  EXPECT_EQ(read_document(file, 0), (std::vector<int32_t>{50256, 1, 2}));
  EXPECT_EQ(read_document(file, 1), (std::vector<int32_t>{50256}));
  EXPECT_EQ(read_document(file, 2), (std::vector<int32_t>{50256, 3, 4}));
}

TEST(TokenFile, LlmCShardsOfLlama3) {
  const TempDir dir;
  Bytes tokens;
  for (const uint32_t id : {7u, 8u, 128000u, 9u, 127999u}) tokens.add(id);
  write_file(dir / "s.bin", llm_c_header(20240801, 7, 5) + tokens.str());
  const TokenFile file(dir / "s.bin");
  ASSERT_EQ(file.num_documents(), 2);
  EXPECT_EQ(read_document(file, 0), (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(read_document(file, 1), (std::vector<int32_t>{128000, 9, 127999}));
}

TEST(TokenFile, LlmCShardsAreDividedAtTheGivenTokens) {
  const TempDir dir;
  struct Case {
    std::vector<uint16_t> tokens;
    DocumentTokens given;
    std::vector<int64_t> lengths;
  };
  const Case cases[] = {
      {{7, 1, 2, 7, 3, 7}, {.bos = 7}, {3, 2, 1}},
      {{7, 1, 2, 7, 3, 7}, {.eos = 7}, {3, 2, 1}},  // The shard begins with eos, so eos leads the documents.
      {{1, 2, 7, 3, 7, 4}, {.eos = 7}, {3, 2, 1}},
      {{1, 2, 7, 3, 7}, {.eos = 7}, {3, 2}},
      {{7, 1, 9, 7, 2, 9}, {.bos = 7, .eos = 9}, {3, 3}},
      {{1, 9, 2, 9}, {.bos = 7, .eos = 9}, {2, 2}},
      {{50256, 1, 50256, 2, 3}, {.eos = 7}, {2, 3}},  // A token that the shard lacks divides nothing.
      {{50256, 1, 50256, 2, 3}, {.eos = 50256}, {2, 3}},
      {{1, 50256, 2, 3}, {.eos = 50256}, {1, 3}},
      {{1, 2, 3}, {.bos = 7, .eos = 65536 + 2}, {3}},
      {{1, 2, 3}, {}, {3}},
  };
  for (const Case& c : cases) {
    write_file(dir / "s.bin", llm_c_header(20240520, 1, static_cast<int32_t>(c.tokens.size())) + u16_bytes(c.tokens));
    const TokenFile file(dir / "s.bin", c.given);
    std::vector<int64_t> lengths;
    for (int64_t d = 0; d < file.num_documents(); ++d) lengths.push_back(file.document_length(d));
    EXPECT_EQ(lengths, c.lengths) << (&c - cases);
  }
}

struct BrokenFile {
  std::string name, bin, idx;
  std::vector<std::string> mentions;
};

class Broken : public testing::TestWithParam<BrokenFile> {};

TEST_P(Broken, IsRefusedByName) {
  const TempDir dir;
  if (GetParam().bin != "absent") write_file(dir / "t.bin", GetParam().bin);
  if (GetParam().idx != "absent") write_file(dir / "t.idx", GetParam().idx);
  expect_mentions(message_of<InputError>([&] { TokenFile file(dir / "t"); }), GetParam().mentions);
}

std::vector<BrokenFile> broken_files() {
  const std::string bin = u16_bytes({1, 2, 3, 4});
  const std::string good = index_bytes(8, {3, 1}, {0, 6}, {0, 1, 2});
  std::string version = good, dtype = good, counts = good;
  version[9] = 2;
  dtype[17] = 6;
  counts[18 + 7] = 0x7f;  // The number of sequences becomes impossibly large.
  return {
      {"missing", "absent", "absent", {"t.idx", "no such token file"}},
      {"missing_bin", "absent", good, {"t.bin", "cannot be opened"}},
      {"missing_idx", bin, "absent", {"t.bin", "no .idx", "20240520"}},
      {"empty_idx", bin, "", {"t.idx", "truncated", "0 bytes"}},
      {"empty_bin", "", good, {"t.bin", "0 bytes"}},
      {"foreign_idx", bin, std::string(100, 'x'), {"t.idx", "MMIDIDX"}},
      {"version", bin, version, {"t.idx", "version 2", "expected 1"}},
      {"dtype", bin, dtype, {"t.idx", "dtype code 6"}},
      {"absurd_count", bin, counts, {"t.idx", "counts"}},
      {"truncated_idx", bin, good.substr(0, good.size() - 1), {"t.idx", "counts"}},
      {"truncated_bin", bin.substr(0, 7), good, {"t.bin", "7 bytes", "sequence 1"}},
      {"longer_bin", bin + "xx", good, {"t.bin", "do not belong together"}},
      {"negative_length", bin, index_bytes(8, {-3, 1}, {0, 6}, {0, 1, 2}), {"t.idx", "length -3"}},
      {"negative_offset", bin, index_bytes(8, {3, 1}, {-2, 6}, {0, 1, 2}), {"t.idx", "offset -2"}},
      {"offset_beyond", bin, index_bytes(8, {3, 1}, {0, int64_t{1} << 62}, {0, 1, 2}), {"t.bin", "sequence 1"}},
      {"overlap", bin, index_bytes(8, {3, 2}, {0, 4}, {0, 1, 2}), {"t.bin", "8 bytes", "5 tokens", "overlap"}},
      {"index_start", bin, index_bytes(8, {3, 1}, {0, 6}, {1, 2}), {"t.idx", "begins with 1"}},
      {"index_end", bin, index_bytes(8, {3, 1}, {0, 6}, {0, 1}), {"t.idx", "ends with 1"}},
      {"index_falls", bin, index_bytes(8, {3, 1}, {0, 6}, {0, 2, 1, 2}), {"t.idx", "falls from 2 to 1"}},
      {"no_index", bin, index_bytes(8, {3, 1}, {0, 6}, {}), {"t.idx", "no document index"}},
      {"llm_c_version", llm_c_header(20240520, 2, 0), "absent", {"t.bin", "version 2"}},
      {"llm_c_truncated", llm_c_header(20240520, 1, 3) + u16_bytes({1, 2}), "absent", {"t.bin", "3 tokens"}},
      {"llm_c_header", llm_c_header(20240520, 1, 3).substr(0, 500), "absent", {"t.bin", "truncated"}},
      {"llm_c_negative", llm_c_header(20240520, 1, -1), "absent", {"t.bin", "-1 tokens"}},
  };
}

INSTANTIATE_TEST_SUITE_P(TokenFile, Broken, testing::ValuesIn(broken_files()),
                         [](const auto& test) { return test.param.name; });

TEST(TokenFile, VocabularyIsChecked) {
  const TempDir dir;
  write_tokens(dir / "t", {{1, 2}, {3, 4, 300, 5, 999}}, TokenDtype::kU16);
  const TokenFile file(dir / "t");
  EXPECT_NO_THROW(file.check_vocabulary(1000));
  EXPECT_NO_THROW(file.check_vocabulary(70000));
  expect_mentions(message_of<InputError>([&] { file.check_vocabulary(300); }),
                  {"t.bin", "token id 300", "position 2", "document 1", "vocabulary of 300"});
  write_file(dir / "negative.bin", Bytes().add<int32_t>(5).add<int32_t>(-1).str());
  write_file(dir / "negative.idx", index_bytes(4, {2}, {0}, {0, 1}));
  expect_mentions(message_of<InputError>([&] { TokenFile(dir / "negative").check_vocabulary(int64_t{1} << 31); }),
                  {"token id -1", "position 1", "document 0"});
}

TEST(TokenFileWriter, LeavesNothingBehindWhenInterrupted) {
  const TempDir dir;
  write_tokens(dir / "t", {{1, 2, 3}});
  {
    TokenFileWriter writer(dir / "t", TokenDtype::kU16);
    writer.add_document(std::vector<int32_t>{9});
  }
  EXPECT_EQ(TokenFile(dir / "t").num_tokens(), 3);
  EXPECT_FALSE(std::filesystem::exists(dir / "t.bin.tmp"));
}

TEST(TokenFileWriter, RefusesIdsThatDoNotFitAndFoldersThatDoNotExist) {
  const TempDir dir;
  TokenFileWriter writer(dir / "t", TokenDtype::kU8);
  expect_mentions(message_of<InputError>([&] {
                    writer.add_document(std::vector<int32_t>{1, 256});
                  }),
                  {"t.bin", "256", "uint8"});
  EXPECT_THROW(writer.add_document(std::vector<int32_t>{-1}), InputError);
  expect_mentions(message_of<InputError>([&] { TokenFileWriter(dir / "no/t", TokenDtype::kU8); }), {"no/t.bin"});
}

TEST(TokenFileWriter, FullDiskIsAnErrorThatNamesTheFile) {
  const TempDir dir;
  const FileSizeLimit limit(4096);
  TokenFileWriter writer(dir / "t", TokenDtype::kI32);
  const auto write = [&] {
    writer.add_document(std::vector<int32_t>(100000, 1));
    writer.finish();
  };
  expect_mentions(message_of<Error>(write), {"t.bin", "File too large"});
  EXPECT_FALSE(std::filesystem::exists(dir / "t.bin"));
}

}  // namespace
}  // namespace octavo
