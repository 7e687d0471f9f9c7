// Tests of files that change while they are mapped.
#include <unistd.h>

#include <csignal>
#include <thread>

#include "core/error.h"
#include "core/files/mapped_file.h"
#include "data/tokens/token_file.h"
#include "data/tokens/token_stream.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

int sum_bytes(const MappedFile& file) {
  int sum = 0;
  for (int64_t i = 0; i < file.size_bytes(); ++i) sum += static_cast<int>(file.data()[i]);
  return sum;
}

TEST(ChangedFilesDeathTest, AReadBeyondATruncatedFileEndsWithASentence) {
  const TempDir dir;
  const std::string path = dir / "with\nnewline";
  write_file(path, std::string(100'000, 'x'));
  const auto read_truncated = [&] {
    MappedFile first(path);
    const MappedFile moved = std::move(first);  // The mapping stays watched after it moves to another object.
    { const MappedFile gone(path); }
    if (::truncate(path.c_str(), 10) != 0) std::exit(3);
    // The thread reads the mapping, as a thread of the loader does.
    std::thread([&] { std::exit(sum_bytes(moved) == 0 ? 4 : 5); }).join();
  };
  EXPECT_EXIT(read_truncated(), testing::ExitedWithCode(1),
              "^octavo: .*with\\\\nnewline: was truncated while it was being read, or its disk fails\n$");
}

TEST(ChangedFilesDeathTest, OtherBusErrorsStayWhatTheyWere) {
  const TempDir dir;
  write_file(dir / "file", "x");
  const auto raise_bus_error = [&] {
    std::signal(SIGBUS, SIG_DFL);  // AddressSanitizer installs its own handler, which the test must not call.
    const MappedFile file(dir / "file");
    ::kill(::getpid(), SIGBUS);
    ::sleep(10);
  };
  EXPECT_EXIT(raise_bus_error(), testing::KilledBySignal(SIGBUS), "");
}

class RewrittenIndex : public testing::Test {
 protected:
  RewrittenIndex() { write_tokens(dir_ / "t", counting_documents({5, 3, 0, 4}), TokenDtype::kU16); }

  // Overwrites bytes of the index. The index has 4 lengths from byte 34, 4 offsets from byte 50 and 5 document entries
  // from byte 82.
  void rewrite(int64_t offset, const std::string& bytes) const { overwrite(dir_ / "t.idx", offset, bytes); }

  TempDir dir_;
};

TEST_F(RewrittenIndex, IsCheckedAgainWhenItIsUsed) {
  const TokenFile file(dir_ / "t");
  std::vector<int32_t> ids(3);
  const auto refused = [&] { return message_of<InputError>([&] { file.copy(1, 0, ids); }); };
  rewrite(34 + 4, std::string("\xff\xff\xff\xff"));
  expect_mentions(refused(), {"t.idx", "sequence 1", "length -1"});
  rewrite(34 + 4, std::string("\xff\xff\xff\x7f"));
  expect_mentions(refused(), {"t.bin", "24 bytes", "sequence 1", "2147483647 tokens"});
  rewrite(34 + 4, std::string("\3\0\0\0", 4));
  file.copy(1, 0, ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{5, 6, 7}));
  rewrite(50 + 8, std::string(8, '\xff'));
  expect_mentions(refused(), {"t.idx", "byte offset -1"});
  rewrite(50 + 8, std::string(7, '\xff') + '\x7f');
  expect_mentions(refused(), {"t.bin", "begins at byte 9223372036854775807"});
}

TEST_F(RewrittenIndex, SequencesOfADocumentStayInside) {
  rewrite(82, Bytes().add<int64_t>(0).add<int64_t>(2).add<int64_t>(2).add<int64_t>(3).add<int64_t>(4).str());
  const TokenFile file(dir_ / "t");
  EXPECT_EQ(file.document_length(0), 8);
  for (const int64_t entry : {int64_t{-1}, int64_t{5}, std::numeric_limits<int64_t>::max()}) {
    rewrite(82 + 8, Bytes().add(entry).str());
    expect_mentions(message_of<InputError>([&] { static_cast<void>(file.document_length(0)); }),
                    {"t.idx", "document 1"});
  }
}

TEST_F(RewrittenIndex, ARowOfItEndsWithASentence) {
  for (const char byte : {'\0', '\1', '\x7f', '\xff'}) {
    write_tokens(dir_ / "t", counting_documents({50, 30, 0, 40}), TokenDtype::kU16);
    const TokenStream stream({dir_ / "t"}, {});
    std::vector<int32_t> tokens(8);
    stream.read(0, tokens, {});
    rewrite(34, std::string(88, byte));
    const auto read_on = [&] {
      for (int64_t begin = 0; begin < stream.num_tokens(); ++begin) stream.read(begin, tokens, {});
    };
    EXPECT_THROW(read_on(), Error) << static_cast<int>(byte);
  }
}

TEST_F(RewrittenIndex, ADocumentBeginsInsideTheTokens) {
  const TokenStream stream({dir_ / "t"}, {.bos = 1, .eos = 2});
  const TokenFile file(dir_ / "t");
  std::vector<int32_t> tokens(20);
  for (const int64_t offset : {std::numeric_limits<int64_t>::min(), int64_t{-2}, std::numeric_limits<int64_t>::max()}) {
    rewrite(50 + 8, Bytes().add(offset).str());
    expect_mentions(message_of<InputError>([&] { static_cast<void>(file.document_begin(1)); }),
                    {"t.idx", "sequence 1"});
    expect_mentions(message_of<InputError>([&] { stream.read(0, tokens, {}); }), {"sequence 1"});
  }
}

}  // namespace
}  // namespace octavo
