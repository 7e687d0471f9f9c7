#include "data/tokens/token_stream.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <thread>

#include "core/error.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

// Returns the tokens of the whole stream, computed from the definition.
std::vector<int32_t> spelled_out(const std::vector<TokenLists>& files, const DocumentTokens& tokens) {
  std::vector<int32_t> stream;
  for (const TokenLists& documents : files) {
    for (const auto& document : documents) {
      if (tokens.bos) stream.push_back(*tokens.bos);
      stream.insert(stream.end(), document.begin(), document.end());
      if (tokens.eos) stream.push_back(*tokens.eos);
    }
  }
  return stream;
}

// Returns, for each token of [begin, begin + count) of the circular stream, the position of the first token of its
// document.
std::vector<int32_t> document_starts(const std::vector<TokenLists>& files, int64_t extra, int64_t begin,
                                     int64_t count) {
  std::vector<bool> begins;
  for (const TokenLists& documents : files) {
    for (const auto& document : documents) {
      const size_t length = document.size() + static_cast<size_t>(extra);
      for (size_t i = 0; i < length; ++i) begins.push_back(i == 0);
    }
  }
  std::vector<int32_t> starts;
  int32_t start = 0;
  for (int64_t t = 0; t < count; ++t) {
    if (begins[static_cast<size_t>(begin + t) % begins.size()]) start = static_cast<int32_t>(t);
    starts.push_back(start);
  }
  return starts;
}

class TokenStreamTest : public testing::Test {
 protected:
  std::vector<std::string> write(const std::vector<TokenLists>& files) {
    std::vector<std::string> paths;
    for (const TokenLists& documents : files) {
      paths.push_back(dir_ / ("f" + std::to_string(paths.size())));
      write_tokens(paths.back(), documents);
    }
    return paths;
  }

  TempDir dir_;
};

TEST_F(TokenStreamTest, IsTheDocumentsOfItsFilesAsARing) {
  const std::vector<TokenLists> corpora[] = {
      {counting_documents({1})},
      {counting_documents({0, 0, 3, 0})},
      {counting_documents({5, 1, 0, 7}), counting_documents({0}, 100), counting_documents({2, 9}, 200)},
      {counting_documents(varied_lengths(300, 20)), counting_documents(varied_lengths(41, 90, 3), 50'000)}};
  const DocumentTokens kinds[] = {{}, {.bos = 7'000'000}, {.eos = 8'000'000}, {7'000'000, 8'000'000}};
  for (const auto& files : corpora) {
    const std::vector<std::string> paths = write(files);
    for (const DocumentTokens& inserted : kinds) {
      const TokenStream stream(paths, inserted);
      const std::vector<int32_t> expected = spelled_out(files, inserted);
      const auto size = static_cast<int64_t>(expected.size());
      ASSERT_EQ(stream.num_tokens(), size);
      const int64_t extra = int64_t{inserted.bos.has_value()} + int64_t{inserted.eos.has_value()};
      for (int64_t begin = 0; begin < size; begin += std::max<int64_t>(1, size / 97)) {
        for (const int64_t count : {int64_t{1}, int64_t{2}, int64_t{17}, size + 3}) {
          std::vector<int32_t> tokens(static_cast<size_t>(count));
          std::vector<int32_t> starts(static_cast<size_t>(count));
          stream.read(begin, tokens, starts);
          for (int64_t t = 0; t < count; ++t) {
            ASSERT_EQ(tokens[static_cast<size_t>(t)], expected[static_cast<size_t>((begin + t) % size)])
                << "token " << t << " from " << begin;
          }
          ASSERT_EQ(starts, document_starts(files, extra, begin, count));
        }
      }
    }
  }
}

// The dataset has many more documents than the search table has entries.
TEST_F(TokenStreamTest, FindsDocumentsAmongMany) {
  const TokenLists documents = counting_documents(varied_lengths(20'000, 3));
  const TokenStream stream(write({documents}), {.eos = 0});
  const std::vector<int32_t> expected = spelled_out({documents}, {.eos = 0});
  for (size_t begin = 0; begin < expected.size(); begin += 137) {
    int32_t token = -1;
    stream.read(static_cast<int64_t>(begin), {&token, 1}, {});
    ASSERT_EQ(token, expected[begin]);
  }
}

// The documents that are looked at reach from the first to the last, however many there are.
TEST_F(TokenStreamTest, FilesWithEosInSomeDocumentsAreToldApart) {
  for (const int64_t documents : {17, 31, 32, 33, 500}) {
    TokenLists lists(static_cast<size_t>(documents), std::vector<int32_t>{'a', '$'});
    EXPECT_EQ(TokenStream(write({lists}), {.eos = '$'}).files_with_eos(), 1) << documents;
    lists.back().pop_back();
    EXPECT_EQ(TokenStream(write({lists}), {.eos = '$'}).files_with_eos(), 0) << documents;
  }
}

// Files whose documents contain bos or eos already, as Megatron's --append-eod writes them, get no second one.
TEST_F(TokenStreamTest, InsertsNoTokenThatTheDocumentsHave) {
  struct Case {
    std::vector<TokenLists> files;
    std::string expected;
    int64_t with_bos, with_eos;
  };
  const Case cases[] = {
      {{{{'a', '$'}, {'b', '$'}, {}}}, "^a$^b$^", 0, 1},
      {{{{'a', '$'}, {'b'}}}, "^a$$^b$", 0, 0},
      {{{{'^', 'a'}, {'^'}}}, "^a$^$", 1, 0},
      {{{{'^', 'a', '$'}}}, "^a$", 1, 1},
      {{{{'$', 'a'}, {'$', 'b'}}}, "^$a^$b", 0, 1},  // eos leads the documents.
      {{{{'a', '$'}}, {{'b'}}, {{}, {}}}, "^a$^b$^$^$", 0, 1},
  };
  for (const Case& c : cases) {
    const std::vector<std::string> paths = write(c.files);
    const TokenStream stream(paths, {.bos = '^', .eos = '$'});
    int64_t with_bos = 0, with_eos = 0;
    for (const std::string& path : paths) {  // Files that are not opened completely.
      const StoredTokens stored = find_stored_tokens(path, nullptr, {.bos = '^', .eos = '$'});
      with_bos += stored.bos ? 1 : 0;
      with_eos += stored.eos ? 1 : 0;
    }
    EXPECT_EQ(std::pair(with_bos, with_eos), std::pair(c.with_bos, c.with_eos)) << c.expected;
    EXPECT_EQ(stream.files_with_bos(), c.with_bos) << c.expected;
    EXPECT_EQ(stream.files_with_eos(), c.with_eos) << c.expected;
    ASSERT_EQ(stream.num_tokens(), std::ssize(c.expected));
    std::vector<int32_t> tokens(c.expected.size());
    for (int64_t begin = 0; begin < stream.num_tokens(); ++begin) {
      stream.read(begin, tokens, {});
      const auto split = static_cast<size_t>(begin);
      EXPECT_EQ(std::string(tokens.begin(), tokens.end()), c.expected.substr(split) + c.expected.substr(0, split));
    }
  }
}

// Other programs may write the sequences of PREFIX.bin in any order.
TEST_F(TokenStreamTest, ReadsFilesWhoseSequencesLieInAnotherOrder) {
  write_file(dir_ / "other.idx", index_bytes(1, {2, 3, 1}, {4, 0, 3}, {0, 2, 3}));
  write_file(dir_ / "other.bin", "abcdef");
  const TokenStream stream({dir_ / "other"}, {.eos = '.'});
  std::vector<int32_t> tokens(static_cast<size_t>(stream.num_tokens()));
  stream.read(0, tokens, {});
  EXPECT_EQ(std::string(tokens.begin(), tokens.end()), "efabc.d.");
  stream.read(3, tokens, {});
  EXPECT_EQ(std::string(tokens.begin(), tokens.end()), "bc.d.efa");
}

TEST_F(TokenStreamTest, AFolderIsAllItsFiles) {
  write_file(dir_ / "c/b/notes.txt", "no tokens");
  write_tokens(dir_ / "c/b/2", {{3}});
  write_tokens(dir_ / "c/a", {{1, 2}});
  const std::vector<std::string> found = find_token_files(dir_ / "c");
  EXPECT_EQ(found, (std::vector<std::string>{dir_ / "c/a", dir_ / "c/b/2"}));
  EXPECT_EQ(find_token_files(dir_ / "c/a"), std::vector<std::string>{dir_ / "c/a"});
  write_tokens(dir_ / "elsewhere/x", {{3}});
  write_file(dir_ / "c/.git/objects/pack-1.idx", "of git");
  namespace fs = std::filesystem;
  fs::create_directory(dir_ / "snapshot");
  fs::create_symlink("../elsewhere", dir_ / "c/link");
  fs::create_symlink("..", dir_ / "c/b/cycle");
  for (const char* end : {".bin", ".idx"}) {
    fs::create_symlink(std::string("a") + end, dir_ / (std::string("c/again") + end));
    fs::create_symlink(dir_ / (std::string("elsewhere/x") + end), dir_ / (std::string("snapshot/s") + end));
  }
  EXPECT_EQ(find_token_files(dir_ / "c"), (std::vector<std::string>{dir_ / "c/a", dir_ / "c/b/2", dir_ / "c/link/x"}));
  EXPECT_EQ(find_token_files(dir_ / "snapshot"), std::vector<std::string>{dir_ / "snapshot/s"});
  for (const char* name : {"not_mounted", "t.bin"}) {
    fs::create_symlink("/no/such/folder", dir_ / (std::string("snapshot/") + name));
    expect_mentions(message_of<InputError>([&] { find_token_files(dir_ / "snapshot"); }), {name, "is a broken link"});
    fs::remove(dir_ / (std::string("snapshot/") + name));
  }
  std::filesystem::create_directory(dir_ / "empty");
  expect_mentions(message_of<InputError>([&] { find_token_files(dir_ / "empty"); }), {"empty", "without a token file"});
}

TEST_F(TokenStreamTest, IsReadByManyThreads) {
  const TokenLists documents = counting_documents(varied_lengths(500, 50));
  const TokenStream stream(write({documents, documents}), {});
  const std::vector<int32_t> expected = spelled_out({documents, documents}, {});
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (size_t first = 0; first < 4; ++first) {
    threads.emplace_back([&, first] {
      for (size_t begin = first; begin < expected.size(); begin += 61) {
        int32_t token = -1;
        stream.read(static_cast<int64_t>(begin), {&token, 1}, {});
        wrong += token == expected[begin] ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(TokenStreamTest, FilesWithoutATokenAreRefused) {
  const std::vector<std::string> paths = write({counting_documents({0, 0})});
  expect_mentions(message_of<InputError>([&] { TokenStream(paths, {}); }), {"f0", "empty dataset", "2 documents"});
  EXPECT_THROW(TokenStream(paths, {.eos = 1}), InputError);
  expect_mentions(message_of<InputError>([&] { TokenStream({dir_ / "nowhere"}, {}); }), {"nowhere.idx", "no such"});
}

TEST_F(TokenStreamTest, TokensOutsideTheVocabularyAreFoundOnOpening) {
  const std::vector<std::string> paths = write({{{1, 2, 3}}, {{4}, {5, 300}}});
  expect_mentions(message_of<InputError>([&] { TokenStream(paths, {}, 256); }),
                  {"f1.bin", "token id 300", "position 1", "document 1"});
}

}  // namespace
}  // namespace octavo
