// Helpers of the data tests: a temporary folder and small token files.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokens/byte_tokenizer.h"
#include "data/tokens/token_file.h"
#include "data/tokens/token_writer.h"
#include "tests/core/messages.h"

namespace octavo {

// A folder that is removed at the end of the test.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "octavo_data_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw Error("mkdtemp failed");
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string operator/(std::string_view name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// While the object lives, a write fails if it would make a file larger than `bytes`, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

inline void write_file(const std::string& path, std::string_view content) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  ASSERT_TRUE(file.good());
}

// Overwrites bytes in place, so that existing mappings of the file show the change.
inline void overwrite(const std::string& path, int64_t offset, std::string_view bytes) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(offset);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.good());
}

inline std::string read_whole_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Builds a string of little-endian values.
class Bytes {
 public:
  template <typename T>
  Bytes& add(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  Bytes& text(std::string_view text) {
    text_.append(text);
    return *this;
  }
  const std::string& str() const { return text_; }

 private:
  std::string text_;
};

// Returns the bytes of an index file, built without TokenFileWriter.
inline std::string index_bytes(uint8_t code, const std::vector<int32_t>& lengths, const std::vector<int64_t>& offsets,
                               const std::vector<int64_t>& document_index) {
  Bytes bytes;
  bytes.text(std::string_view("MMIDIDX\0\0", 9)).add<uint64_t>(1).add(code);
  bytes.add<uint64_t>(lengths.size()).add<uint64_t>(document_index.size());
  for (const int32_t length : lengths) bytes.add(length);
  for (const int64_t offset : offsets) bytes.add(offset);
  for (const int64_t entry : document_index) bytes.add(entry);
  return bytes.str();
}

inline std::string u16_bytes(const std::vector<uint16_t>& tokens) {
  Bytes bytes;
  for (const uint16_t token : tokens) bytes.add(token);
  return bytes.str();
}

// Returns the header of an llm.c shard.
inline std::string llm_c_header(int32_t magic, int32_t version, int32_t tokens) {
  Bytes bytes;
  bytes.add(magic).add(version).add(tokens);
  for (int i = 3; i < 256; ++i) bytes.add<int32_t>(0);
  return bytes.str();
}

// Returns the documents of a token file of the byte tokenizer.
inline std::vector<std::string> texts_of(const std::string& prefix) {
  const TokenFile file(prefix);
  std::vector<std::string> texts;
  for (int64_t d = 0; d < file.num_documents(); ++d) {
    std::vector<int32_t> ids(static_cast<size_t>(file.document_length(d)));
    file.copy(d, 0, ids);
    texts.push_back(ByteTokenizer::decode(ids));
  }
  return texts;
}

using TokenLists = std::vector<std::vector<int32_t>>;

inline void write_tokens(const std::string& prefix, const TokenLists& documents, TokenDtype dtype = TokenDtype::kI32) {
  std::filesystem::create_directories(std::filesystem::path(prefix).parent_path());
  TokenFileWriter writer(prefix, dtype);
  for (const auto& document : documents) writer.add_document(document);
  writer.finish();
}

// Returns documents of the given lengths whose tokens count up from `first`, so that every token is different.
inline TokenLists counting_documents(const std::vector<int64_t>& lengths, int32_t first = 0) {
  TokenLists documents;
  for (const int64_t length : lengths) {
    documents.emplace_back(static_cast<size_t>(length));
    std::iota(documents.back().begin(), documents.back().end(), first);
    first += static_cast<int32_t>(length);
  }
  return documents;
}

// Returns `count` pseudorandom lengths between 0 and `longest` that depend only on the seed.
inline std::vector<int64_t> varied_lengths(int64_t count, int64_t longest, uint32_t seed = 1) {
  std::vector<int64_t> lengths;
  uint32_t x = seed;
  for (int64_t i = 0; i < count; ++i) {
    x = x * 1664525u + 1013904223u;
    lengths.push_back(static_cast<int64_t>((x >> 8) % static_cast<uint32_t>(longest + 1)));
  }
  return lengths;
}

}  // namespace octavo
