#include "data/token_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "core/file_identity.h"
#include "core/input_file.h"

namespace octavo {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are read in place, so the host must be little-endian");

constexpr std::string_view kMegatronMagic("MMIDIDX\0\0", 9);
constexpr int64_t kMegatronHeaderBytes = 9 + 8 + 1 + 8 + 8;
constexpr int64_t kLlmCHeaderBytes = 256 * 4;
constexpr int32_t kLlmCGpt2Magic = 20240520, kLlmCGpt2Version = 1;
constexpr int32_t kLlmCLlama3Magic = 20240801, kLlmCLlama3Version = 7;
constexpr uint16_t kGpt2EndOfText = 50256;
constexpr uint32_t kLlama3BeginOfText = 128000;

// Element `i` of an unaligned little-endian array.
template <typename T>
T load(const std::byte* array, int64_t i) {
  T value;
  std::memcpy(&value, array + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void widen(const std::byte* tokens, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int32_t>(load<T>(tokens, static_cast<int64_t>(i)));
}

bool ends_with(const std::string& path, std::string_view suffix) { return std::string_view(path).ends_with(suffix); }

}  // namespace

int64_t token_size_bytes(TokenDtype dtype) {
  switch (dtype) {
    case TokenDtype::kU8:
      return 1;
    case TokenDtype::kU16:
      return 2;
    case TokenDtype::kI32:
      return 4;
  }
  throw Error("token_size_bytes: unknown dtype");
}

std::string_view token_dtype_name(TokenDtype dtype) {
  switch (dtype) {
    case TokenDtype::kU8:
      return "uint8";
    case TokenDtype::kU16:
      return "uint16";
    case TokenDtype::kI32:
      return "int32";
  }
  throw Error("token_dtype_name: unknown dtype");
}

int64_t max_token_id(TokenDtype dtype) {
  switch (dtype) {
    case TokenDtype::kU8:
      return std::numeric_limits<uint8_t>::max();
    case TokenDtype::kU16:
      return std::numeric_limits<uint16_t>::max();
    case TokenDtype::kI32:
      return std::numeric_limits<int32_t>::max();
  }
  throw Error("max_token_id: unknown dtype");
}

std::string token_file_prefix(const std::string& path) {
  const bool has_suffix = ends_with(path, ".bin") || ends_with(path, ".idx");
  return has_suffix ? path.substr(0, path.size() - 4) : path;
}

int64_t find_outside_vocabulary(std::span<const int32_t> ids, int64_t vocab_size) {
  // The largest id as unsigned also catches negative ones, and the loop has no branch, so it vectorizes.
  uint32_t largest = 0;
  for (const int32_t id : ids) largest = std::max(largest, static_cast<uint32_t>(id));
  if (ids.empty() || static_cast<int64_t>(largest) < vocab_size) return -1;
  const auto outside = [&](int32_t id) { return id < 0 || id >= vocab_size; };
  const auto first = std::find_if(ids.begin(), ids.end(), outside);
  return first == ids.end() ? -1 : first - ids.begin();
}

TokenFile::TokenFile(const std::string& path) {
  CHECK_INPUT(!path.empty(), "the path of a token file is empty");
  const std::string prefix = token_file_prefix(path);
  if (path_exists(prefix + ".idx") || !path_exists(prefix + ".bin")) {
    open_megatron(prefix);
  } else {
    open_llm_c(prefix + ".bin");
  }
}

void TokenFile::open_megatron(const std::string& prefix) {
  const std::string idx_path = prefix + ".idx";
  CHECK_INPUT(path_exists(idx_path), "{}: no such token file (a Megatron dataset is {}.bin and {}.idx)", idx_path,
              prefix, prefix);
  idx_ = MappedFile(idx_path);
  bin_ = MappedFile(prefix + ".bin");

  const int64_t size = idx_.size_bytes();
  CHECK_INPUT(size >= kMegatronHeaderBytes, "{}: is truncated: {} bytes, expected a header of {}", idx_path, size,
              kMegatronHeaderBytes);
  const std::byte* header = idx_.data();
  CHECK_INPUT(std::memcmp(header, kMegatronMagic.data(), kMegatronMagic.size()) == 0,
              "{}: is not a Megatron index: it does not begin with MMIDIDX", idx_path);
  const auto version = load<uint64_t>(header + 9, 0);
  CHECK_INPUT(version == 1, "{}: has version {}, expected 1", idx_path, version);
  const auto code = load<uint8_t>(header + 17, 0);
  CHECK_INPUT(code == 1 || code == 4 || code == 8, "{}: has dtype code {}, expected 1 (uint8), 4 (int32) or 8 (uint16)",
              idx_path, code);
  dtype_ = static_cast<TokenDtype>(code);

  const auto sequences = load<uint64_t>(header + 18, 0);
  const auto entries = load<uint64_t>(header + 26, 0);
  // Bounding the counts first keeps the sum below from overflowing on a garbled header.
  const auto bound = static_cast<uint64_t>(size);
  CHECK_INPUT(sequences <= bound && entries <= bound &&
                  static_cast<uint64_t>(kMegatronHeaderBytes) + 12 * sequences + 8 * entries == bound,
              "{}: is {} bytes, which does not fit its counts of {} sequences and {} document-index entries "
              "(34 + 12 a sequence + 8 an entry): truncated or foreign",
              idx_path, size, sequences, entries);
  CHECK_INPUT(entries >= 1, "{}: has no document index, expected at least one entry", idx_path);

  num_sequences_ = static_cast<int64_t>(sequences);
  num_documents_ = static_cast<int64_t>(entries) - 1;
  lengths_ = header + kMegatronHeaderBytes;
  offsets_ = lengths_ + 4 * num_sequences_;
  document_index_ = offsets_ + 8 * num_sequences_;
  check_sequences();
  check_document_index();
  one_sequence_each_ = num_documents_ == num_sequences_;
  for (int64_t d = 0; one_sequence_each_ && d < num_documents_; ++d) {
    one_sequence_each_ = load<int64_t>(document_index_, d) == d;
  }
}

void TokenFile::check_sequences() {
  const int64_t width = token_size_bytes(dtype_);
  int64_t end_of_last = 0;
  for (int64_t s = 0; s < num_sequences_; ++s) {
    const int64_t length = sequence_length(s);
    end_of_last = std::max(end_of_last, sequence_offset_bytes(s, length) + length * width);
    num_tokens_ += length;
  }
  CHECK_INPUT(end_of_last == bin_.size_bytes(), "{}: is {} bytes, but {} describes {}: the two do not belong together",
              bin_.path(), bin_.size_bytes(), idx_.path(), end_of_last);
}

void TokenFile::check_document_index() const {
  int64_t previous = 0;
  for (int64_t d = 0; d <= num_documents_; ++d) {
    const auto first = load<int64_t>(document_index_, d);
    CHECK_INPUT(d > 0 || first == 0, "{}: the document index begins with {}, expected 0", idx_.path(), first);
    CHECK_INPUT(first >= previous, "{}: the document index falls from {} to {} at entry {}, expected it to rise",
                idx_.path(), previous, first, d);
    previous = first;
  }
  CHECK_INPUT(previous == num_sequences_, "{}: the document index ends with {}, expected the {} sequences", idx_.path(),
              previous, num_sequences_);
}

void TokenFile::open_llm_c(const std::string& bin_path) {
  bin_ = MappedFile(bin_path);
  const int64_t size = bin_.size_bytes();
  const int32_t magic = size >= 4 ? load<int32_t>(bin_.data(), 0) : 0;
  CHECK_INPUT(
      magic == kLlmCGpt2Magic || magic == kLlmCLlama3Magic,
      "{}: has no .idx beside it as a Megatron token file would, and begins with {} where an llm.c shard has {} "
      "or {}",
      bin_path, magic, kLlmCGpt2Magic, kLlmCLlama3Magic);
  CHECK_INPUT(size >= kLlmCHeaderBytes, "{}: is truncated: {} bytes, expected a header of {}", bin_path, size,
              kLlmCHeaderBytes);
  const bool llama3 = magic == kLlmCLlama3Magic;
  const int32_t version = load<int32_t>(bin_.data(), 1);
  const int32_t expected = llama3 ? kLlmCLlama3Version : kLlmCGpt2Version;
  CHECK_INPUT(version == expected, "{}: has version {}, expected {} for magic {}", bin_path, version, expected, magic);

  dtype_ = llama3 ? TokenDtype::kI32 : TokenDtype::kU16;
  num_tokens_ = load<int32_t>(bin_.data(), 2);
  CHECK_INPUT(num_tokens_ >= 0 && size == kLlmCHeaderBytes + num_tokens_ * token_size_bytes(dtype_),
              "{}: is {} bytes, which does not fit its count of {} tokens of {} bytes after {} of header: truncated or "
              "foreign",
              bin_path, size, num_tokens_, token_size_bytes(dtype_), kLlmCHeaderBytes);
  if (llama3) {
    find_llm_c_documents<uint32_t>(kLlama3BeginOfText);
  } else {
    find_llm_c_documents<uint16_t>(kGpt2EndOfText);
  }
}

template <typename T>
void TokenFile::find_llm_c_documents(T leading_token) {
  if (num_tokens_ > 0) starts_.push_back(0);
  const std::byte* tokens = bin_.data() + kLlmCHeaderBytes;
  for (int64_t t = 1; t < num_tokens_; ++t) {
    if (load<T>(tokens, t) == leading_token) starts_.push_back(t);
  }
  num_documents_ = num_sequences_ = static_cast<int64_t>(starts_.size());
  starts_.push_back(num_tokens_);
}

int64_t TokenFile::first_sequence(int64_t document) const {
  if (one_sequence_each_) return document;
  const auto first = load<int64_t>(document_index_, document);
  CHECK_INPUT(first >= 0 && first <= num_sequences_,
              "{}: document {} begins with sequence {}, expected one of {}: the index has been changed", idx_.path(),
              document, first, num_sequences_);
  return first;
}

int64_t TokenFile::sequence_length(int64_t sequence) const {
  if (lengths_ != nullptr) {
    const auto length = load<int32_t>(lengths_, sequence);
    CHECK_INPUT(length >= 0, "{}: sequence {} has length {}, expected no negative value", idx_.path(), sequence,
                length);
    return length;
  }
  const auto s = static_cast<size_t>(sequence);
  return starts_[s + 1] - starts_[s];
}

int64_t TokenFile::sequence_offset_bytes(int64_t sequence, int64_t length) const {
  const int64_t width = token_size_bytes(dtype_);
  if (offsets_ == nullptr) return kLlmCHeaderBytes + starts_[static_cast<size_t>(sequence)] * width;
  const auto offset = load<int64_t>(offsets_, sequence);
  CHECK_INPUT(offset >= 0, "{}: sequence {} has byte offset {}, expected no negative value", idx_.path(), sequence,
              offset);
  const int64_t bin_bytes = bin_.size_bytes();
  CHECK_INPUT(offset <= bin_bytes && length * width <= bin_bytes - offset,
              "{}: is {} bytes, but sequence {} of {} lies at byte {} and is {} tokens of {} bytes long: truncated or "
              "foreign",
              bin_.path(), bin_bytes, sequence, idx_.path(), offset, length, width);
  return offset;
}

void TokenFile::check_lengths() const {
  int64_t tokens = 0;
  for (int64_t s = 0; s < num_sequences_; ++s) tokens += sequence_length(s);
  CHECK_INPUT(tokens == num_tokens_, "{}: describes {} tokens, but it was {} when it was opened: it has been changed",
              idx_.path(), tokens, num_tokens_);
}

int64_t TokenFile::document_length(int64_t document) const {
  if (one_sequence_each_) return sequence_length(document);
  const int64_t end = first_sequence(document + 1);
  int64_t length = 0;
  for (int64_t s = first_sequence(document); s < end; ++s) length += sequence_length(s);
  return length;
}

void TokenFile::copy(int64_t document, int64_t begin, std::span<int32_t> out) const {
  CHECK(document >= 0 && document < num_documents_ && begin >= 0, "{}: no token {} of document {} ({} documents)",
        path(), begin, document, num_documents_);
  const int64_t width = token_size_bytes(dtype_);
  const int64_t end = first_sequence(document + 1);
  for (int64_t s = first_sequence(document); s < end && !out.empty(); ++s) {
    const int64_t length = sequence_length(s);
    if (begin >= length) {
      begin -= length;
      continue;
    }
    const auto count = std::min(static_cast<size_t>(length - begin), out.size());
    const std::byte* tokens = bin_.data() + sequence_offset_bytes(s, length) + begin * width;
    switch (dtype_) {
      case TokenDtype::kU8:
        widen<uint8_t>(tokens, out.first(count));
        break;
      case TokenDtype::kU16:
        widen<uint16_t>(tokens, out.first(count));
        break;
      case TokenDtype::kI32:
        widen<int32_t>(tokens, out.first(count));
        break;
    }
    out = out.subspan(count);
    begin = 0;
  }
  CHECK(out.empty(), "{}: document {} of {} tokens was read {} tokens past its end", path(), document,
        document_length(document), out.size());
}

void TokenFile::check_vocabulary(int64_t vocab_size) const {
  // No id of an unsigned type can be outside a vocabulary that covers it.
  if (dtype_ != TokenDtype::kI32 && max_token_id(dtype_) < vocab_size) return;
  constexpr int64_t kSpreadDocuments = 4096, kSpreadTokens = 65536;
  const bool full = bin_.size_bytes() <= kFullScanBytes;
  const int64_t stride = full ? 1 : std::max<int64_t>(1, num_documents_ / kSpreadDocuments);
  std::array<int32_t, 4096> buffer;
  for (int64_t d = 0; d < num_documents_; d += stride) {
    const int64_t length = full ? document_length(d) : std::min(document_length(d), kSpreadTokens);
    for (int64_t begin = 0; begin < length; begin += static_cast<int64_t>(buffer.size())) {
      const auto count = std::min(static_cast<int64_t>(buffer.size()), length - begin);
      const auto ids = std::span(buffer).first(static_cast<size_t>(count));
      copy(d, begin, ids);
      const int64_t bad = find_outside_vocabulary(ids, vocab_size);
      CHECK_INPUT(bad < 0, "{}: token id {} at position {} of document {} is outside the vocabulary of {}", path(),
                  ids[static_cast<size_t>(bad)], begin + bad, d, vocab_size);
    }
  }
}

std::string token_file_identity(const std::string& path) {
  const std::string prefix = token_file_prefix(path);
  const std::string tokens = sampled_file_identity(prefix + ".bin");
  const bool has_index = ::access((prefix + ".idx").c_str(), F_OK) == 0;
  return has_index ? fmt::format("{}; {}", file_identity(prefix + ".idx"), tokens) : tokens;
}

}  // namespace octavo
