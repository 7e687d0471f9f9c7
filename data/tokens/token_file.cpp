#include "data/tokens/token_file.h"

#include <bit>
#include <cstring>
#include <limits>
#include <ranges>
#include <utility>

#include "core/error.h"
#include "core/files/file_identity.h"
#include "core/files/input_file.h"

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

// Returns element `i` of an unaligned little-endian array.
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

void widen(TokenDtype dtype, const std::byte* tokens, std::span<int32_t> out) {
  switch (dtype) {
    case TokenDtype::kU8:
      return widen<uint8_t>(tokens, out);
    case TokenDtype::kU16:
      return widen<uint16_t>(tokens, out);
    case TokenDtype::kI32:
      return widen<int32_t>(tokens, out);
  }
}

struct TokenDtypeRow {
  TokenDtype dtype;
  int64_t bytes;
  std::string_view name;
  int64_t max_id;
};

constexpr std::array kTokenDtypes = {
    TokenDtypeRow{TokenDtype::kU8, 1, "uint8", std::numeric_limits<uint8_t>::max()},
    TokenDtypeRow{TokenDtype::kU16, 2, "uint16", std::numeric_limits<uint16_t>::max()},
    TokenDtypeRow{TokenDtype::kI32, 4, "int32", std::numeric_limits<int32_t>::max()},
};

const TokenDtypeRow& row_of(TokenDtype dtype) { return *std::ranges::find(kTokenDtypes, dtype, &TokenDtypeRow::dtype); }

}  // namespace

int64_t token_size_bytes(TokenDtype dtype) { return row_of(dtype).bytes; }
std::string_view token_dtype_name(TokenDtype dtype) { return row_of(dtype).name; }
int64_t max_token_id(TokenDtype dtype) { return row_of(dtype).max_id; }

std::string token_file_prefix(const std::string& path) {
  const bool has_suffix = path.ends_with(".bin") || path.ends_with(".idx");
  return has_suffix ? path.substr(0, path.size() - 4) : path;
}

int64_t find_outside_vocabulary(std::span<const int32_t> ids, int64_t vocab_size) {
  // Comparing as unsigned numbers also detects negative ids, and the loop has no branch, so it vectorizes.
  uint32_t largest = 0;
  for (const int32_t id : ids) largest = std::max(largest, static_cast<uint32_t>(id));
  if (ids.empty() || static_cast<int64_t>(largest) < vocab_size) return -1;
  const auto outside = [&](int32_t id) { return id < 0 || id >= vocab_size; };
  const auto first = std::ranges::find_if(ids, outside);
  return first == ids.end() ? -1 : first - ids.begin();
}

namespace {

// Throws an UnreadableFile if there is neither a Megatron dataset nor a shard.
bool is_megatron(const std::string& prefix) {
  CHECK_INPUT(!prefix.empty(), "the path of a token file is empty");
  if (path_exists(prefix + ".idx")) return true;
  CHECK_AS(UnreadableFile, path_exists(prefix + ".bin"),
           "{}.idx: no such token file (a Megatron dataset is {}.bin and {}.idx)", prefix, prefix, prefix);
  return false;
}

// Reads bytes of a file from `begin` on into `bytes`, as many as there are, and returns the size of the file.
int64_t read_bytes(const std::string& path, int64_t begin, std::span<std::byte> bytes) {
  const InputFile file(path);
  file.read_at(begin, bytes);
  return file.size_bytes();
}

struct MegatronHeader {
  TokenDtype dtype = TokenDtype::kU16;
  int64_t sequences = 0;
  int64_t entries = 0;  // Number of entries of the document index.
};

// Parses the header of a file of `size` bytes. Throws an InputError if it is invalid.
MegatronHeader parse_megatron_header(const std::byte* header, int64_t size, const std::string& path) {
  CHECK_INPUT(size >= kMegatronHeaderBytes, "{}: is truncated: {} bytes, expected a header of {}", path, size,
              kMegatronHeaderBytes);
  CHECK_INPUT(std::memcmp(header, kMegatronMagic.data(), kMegatronMagic.size()) == 0,
              "{}: is not a Megatron index: it does not begin with MMIDIDX", path);
  const auto version = load<uint64_t>(header + 9, 0);
  CHECK_INPUT(version == 1, "{}: has version {}, expected 1", path, version);
  const auto code = load<uint8_t>(header + 17, 0);
  CHECK_INPUT(code == 1 || code == 4 || code == 8, "{}: has dtype code {}, expected 1 (uint8), 4 (int32) or 8 (uint16)",
              path, code);
  const auto sequences = load<uint64_t>(header + 18, 0);
  const auto entries = load<uint64_t>(header + 26, 0);
  // Bounding the counts first keeps the sum below from overflowing with a damaged header.
  const auto bound = static_cast<uint64_t>(size);
  CHECK_INPUT(sequences <= bound && entries <= bound &&
                  static_cast<uint64_t>(kMegatronHeaderBytes) + 12 * sequences + 8 * entries == bound,
              "{}: is {} bytes, which does not fit its counts of {} sequences and {} document-index entries "
              "(34 + 12 per sequence + 8 per entry); it is truncated or of another format",
              path, size, sequences, entries);
  CHECK_INPUT(entries >= 1, "{}: has no document index, expected at least one entry", path);
  return {static_cast<TokenDtype>(code), static_cast<int64_t>(sequences), static_cast<int64_t>(entries)};
}

struct LlmCHeader {
  TokenDtype dtype = TokenDtype::kU16;
  int64_t tokens = 0;
};

LlmCHeader parse_llm_c_header(const std::byte* header, int64_t size, const std::string& path) {
  const int32_t magic = size >= 4 ? load<int32_t>(header, 0) : 0;
  CHECK_INPUT(magic == kLlmCGpt2Magic || magic == kLlmCLlama3Magic,
              "{}: has no .idx file as a Megatron dataset would, and begins with {} where an llm.c shard has {} "
              "or {}",
              path, magic, kLlmCGpt2Magic, kLlmCLlama3Magic);
  CHECK_INPUT(size >= kLlmCHeaderBytes, "{}: is truncated: {} bytes, expected a header of {}", path, size,
              kLlmCHeaderBytes);
  const bool llama3 = magic == kLlmCLlama3Magic;
  const int32_t version = load<int32_t>(header, 1);
  const int32_t expected = llama3 ? kLlmCLlama3Version : kLlmCGpt2Version;
  CHECK_INPUT(version == expected, "{}: has version {}, expected {} for magic {}", path, version, expected, magic);
  const LlmCHeader parsed{llama3 ? TokenDtype::kI32 : TokenDtype::kU16, load<int32_t>(header, 2)};
  CHECK_INPUT(
      parsed.tokens >= 0 && size == kLlmCHeaderBytes + parsed.tokens * token_size_bytes(parsed.dtype),
      "{}: is {} bytes, which does not fit its count of {} tokens of {} bytes after {} of header; it is truncated or "
      "of another format",
      path, size, parsed.tokens, token_size_bytes(parsed.dtype), kLlmCHeaderBytes);
  return parsed;
}

}  // namespace

TokenFileCounts count_tokens(const std::string& path) {
  const std::string prefix = token_file_prefix(path);
  std::array<std::byte, kLlmCHeaderBytes> header{};
  if (!is_megatron(prefix)) {
    const int64_t size = read_bytes(prefix + ".bin", 0, header);
    return {.tokens = parse_llm_c_header(header.data(), size, prefix + ".bin").tokens, .index_bytes = size};
  }
  const int64_t size = read_bytes(prefix + ".idx", 0, header);
  const MegatronHeader parsed = parse_megatron_header(header.data(), size, prefix + ".idx");
  const int64_t bin_bytes = read_bytes(prefix + ".bin", 0, {});
  return {.tokens = bin_bytes / token_size_bytes(parsed.dtype), .documents = parsed.entries - 1, .index_bytes = size};
}

std::vector<int32_t> read_stored_tokens(const std::string& path, int64_t begin, int64_t count) {
  const std::string prefix = token_file_prefix(path);
  const bool megatron = is_megatron(prefix);
  const std::string described = prefix + (megatron ? ".idx" : ".bin");
  std::array<std::byte, kLlmCHeaderBytes> header{};
  const int64_t size = read_bytes(described, 0, header);
  const TokenDtype dtype = megatron ? parse_megatron_header(header.data(), size, described).dtype
                                    : parse_llm_c_header(header.data(), size, described).dtype;
  const int64_t width = token_size_bytes(dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(count * width));
  read_bytes(prefix + ".bin", (megatron ? 0 : kLlmCHeaderBytes) + begin * width, bytes);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  widen(dtype, bytes.data(), tokens);
  return tokens;
}

TokenFile::TokenFile(const std::string& path, const DocumentTokens& tokens, bool checks_index) {
  const std::string prefix = token_file_prefix(path);
  if (is_megatron(prefix)) {
    open_megatron(prefix, checks_index);
  } else {
    open_llm_c(prefix + ".bin", tokens);
  }
}

void TokenFile::open_megatron(const std::string& prefix, bool checks_index) {
  idx_ = MappedFile(prefix + ".idx");
  bin_ = MappedFile(prefix + ".bin");
  const MegatronHeader header = parse_megatron_header(idx_.data(), idx_.size_bytes(), idx_.path());
  dtype_ = header.dtype;
  num_sequences_ = header.sequences;
  num_documents_ = header.entries - 1;
  lengths_ = idx_.data() + kMegatronHeaderBytes;
  offsets_ = lengths_ + 4 * num_sequences_;
  document_index_ = offsets_ + 8 * num_sequences_;
  if (!checks_index) return;
  check_sequences();
  check_document_index();
  find_document_begins();
}

void TokenFile::check_sequences() {
  const int64_t width = token_size_bytes(dtype_);
  int64_t end_of_last = 0;
  for (int64_t s = 0; s < num_sequences_; ++s) {
    const int64_t length = sequence_length(s);
    const int64_t offset = sequence_offset_bytes(s, length);
    in_order_ = in_order_ && offset == num_tokens_ * width;
    end_of_last = std::max(end_of_last, offset + length * width);
    num_tokens_ += length;
  }
  // Overlapping sequences are refused, because they could describe far more tokens than are stored.
  CHECK_INPUT(num_tokens_ <= bin_.size_bytes() / width,
              "{}: is {} bytes, but {} describes {} tokens of {} bytes: sequences overlap", bin_.path(),
              bin_.size_bytes(), idx_.path(), num_tokens_, width);
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
  CHECK_INPUT(previous == num_sequences_, "{}: the document index ends with {}, expected {}, the number of sequences",
              idx_.path(), previous, num_sequences_);
}

void TokenFile::find_document_begins() {
  if (in_order_) {
    for (int64_t d = 0; d < num_documents_; d += kStride) sparse_begins_.push_back(document_begin(d));
    return;
  }
  begins_.reserve(static_cast<size_t>(num_documents_) + 1);
  int64_t begin = 0;
  for (int64_t d = 0; d < num_documents_; ++d) {
    begins_.push_back(begin);
    begin += document_length(d);
  }
  begins_.push_back(begin);
}

void TokenFile::open_llm_c(const std::string& bin_path, const DocumentTokens& tokens) {
  bin_ = MappedFile(bin_path);
  const LlmCHeader header = parse_llm_c_header(bin_.data(), bin_.size_bytes(), bin_path);
  dtype_ = header.dtype;
  num_tokens_ = header.tokens;
  if (dtype_ == TokenDtype::kI32) {
    find_llm_c_documents<uint32_t>(tokens, kLlama3BeginOfText);
  } else {
    find_llm_c_documents<uint16_t>(tokens, kGpt2EndOfText);
  }
}

template <typename T>
void TokenFile::find_llm_c_documents(const DocumentTokens& tokens, T leading_token) {
  const std::byte* stored = bin_.data() + kLlmCHeaderBytes;
  const auto has = [&](const std::optional<int32_t>& id, int64_t position) {
    return id && load<T>(stored, position) == static_cast<T>(*id) && std::in_range<T>(*id);
  };
  const std::optional<int32_t> candidates[] = {tokens.bos, tokens.eos, static_cast<int32_t>(leading_token)};
  for (const std::optional<int32_t>& divider : candidates) {
    if (!divider) continue;
    begins_.assign(num_tokens_ > 0 ? 1 : 0, 0);
    const bool ends = divider == tokens.eos && divider != tokens.bos && num_tokens_ > 0 && !has(divider, 0) &&
                      divider != static_cast<int32_t>(leading_token);
    const int64_t offset = ends ? 1 : 0;  // Distance from the divider to the document's first token.
    for (int64_t t = 1 - offset; t + offset < num_tokens_; ++t) {
      if (has(divider, t)) begins_.push_back(t + offset);
    }
    if (begins_.size() > 1) break;
  }
  num_documents_ = num_sequences_ = static_cast<int64_t>(begins_.size());
  begins_.push_back(num_tokens_);
}

int64_t TokenFile::first_sequence(int64_t document) const {
  if (document_index_ == nullptr) return document;
  const auto first = load<int64_t>(document_index_, document);
  CHECK_INPUT(first >= 0 && first <= num_sequences_,
              "{}: document {} begins with sequence {} of {}: the index has been changed", idx_.path(), document, first,
              num_sequences_);
  return first;
}

int64_t TokenFile::sequence_length(int64_t sequence) const {
  if (lengths_ != nullptr) {
    const auto length = load<int32_t>(lengths_, sequence);
    CHECK_INPUT(length >= 0, "{}: sequence {} has length {}, expected at least 0", idx_.path(), sequence, length);
    return length;
  }
  const auto s = static_cast<size_t>(sequence);
  return begins_[s + 1] - begins_[s];
}

int64_t TokenFile::sequence_offset_bytes(int64_t sequence, int64_t length) const {
  const int64_t width = token_size_bytes(dtype_);
  if (offsets_ == nullptr) return kLlmCHeaderBytes + begins_[static_cast<size_t>(sequence)] * width;
  const auto offset = load<int64_t>(offsets_, sequence);
  CHECK_INPUT(offset >= 0, "{}: sequence {} has byte offset {}, expected at least 0", idx_.path(), sequence, offset);
  const int64_t bin_bytes = bin_.size_bytes();
  CHECK_INPUT(
      offset <= bin_bytes && length * width <= bin_bytes - offset,
      "{}: is {} bytes, but sequence {} of {} begins at byte {} and is {} tokens of {} bytes long; it is truncated or "
      "of another format",
      bin_.path(), bin_bytes, sequence, idx_.path(), offset, length, width);
  return offset;
}

int64_t TokenFile::document_length(int64_t document) const {
  const int64_t end = first_sequence(document + 1);
  int64_t length = 0;
  for (int64_t s = first_sequence(document); s < end; ++s) length += sequence_length(s);
  return length;
}

int64_t TokenFile::document_begin(int64_t document) const {
  if (!begins_.empty()) return begins_[static_cast<size_t>(document)];
  const int64_t sequence = document < num_documents_ ? first_sequence(document) : num_sequences_;
  if (sequence == num_sequences_) return num_tokens_;
  // The length 0 is enough here, because only the beginning of the sequence matters.
  return sequence_offset_bytes(sequence, 0) / token_size_bytes(dtype_);
}

int64_t TokenFile::find_document(int64_t position, int64_t extra) const {
  // Returns the number of documents among `count` that begin at `position` or before. `begin_of` must rise.
  const auto count_up_to = [&](int64_t count, const auto& begin_of) {
    const auto numbers = std::views::iota(int64_t{0}, count);
    const auto end = std::ranges::partition_point(numbers, [&](int64_t i) { return begin_of(i) <= position; });
    return static_cast<int64_t>(end - numbers.begin());
  };
  const auto row_begin = [&](int64_t d) { return document_begin(d) + d * extra; };
  int64_t first = 0, count = num_documents_;
  if (!sparse_begins_.empty()) {
    const auto blocks = static_cast<int64_t>(sparse_begins_.size());
    const int64_t block =
        count_up_to(blocks, [&](int64_t b) { return sparse_begins_[static_cast<size_t>(b)] + b * kStride * extra; });
    first = std::max<int64_t>(0, block - 1) * kStride;
    count = std::min(kStride, num_documents_ - first);
  }
  return std::max<int64_t>(0, first + count_up_to(count, [&](int64_t i) { return row_begin(first + i); }) - 1);
}

void TokenFile::copy(int64_t document, int64_t begin, std::span<int32_t> out) const {
  CHECK(document >= 0 && document < num_documents_ && begin >= 0,
        "{}: token {} of document {} does not exist ({} documents)", path(), begin, document, num_documents_);
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
    widen(dtype_, tokens, out.first(count));
    out = out.subspan(count);
    begin = 0;
  }
  CHECK(out.empty(), "{}: document {} of {} tokens was read {} tokens past its end", path(), document,
        document_length(document), out.size());
}

void TokenFile::check_vocabulary(int64_t vocab_size) const {
  // If the largest id of an unsigned dtype is in the vocabulary, no id can be outside it.
  if (dtype_ != TokenDtype::kI32 && max_token_id(dtype_) < vocab_size) return;
  constexpr int64_t kSpreadDocuments = 4096, kSpreadTokens = 65536;
  const bool full = bin_.size_bytes() <= kFullScanBytes;
  const int64_t stride = full ? 1 : std::max<int64_t>(1, num_documents_ / kSpreadDocuments);
  for (int64_t d = 0; d < num_documents_; d += stride) {
    const int64_t length = full ? document_length(d) : std::min(document_length(d), kSpreadTokens);
    for_each_piece(d, length, [&](std::span<const int32_t> ids, int64_t begin) {
      const int64_t bad = find_outside_vocabulary(ids, vocab_size);
      CHECK_INPUT(bad < 0, "{}: token id {} at position {} of document {} is outside the vocabulary of {}", path(),
                  ids[static_cast<size_t>(bad)], begin + bad, d, vocab_size);
    });
  }
}

namespace {

// First and last tokens of documents.
struct DocumentEdges {
  std::vector<int32_t> first, last;
};

constexpr int64_t kSampledDocuments = 16;

// Returns the numbers of up to kSampledDocuments documents that are spread over [begin, end), from the first to the
// last.
std::vector<int64_t> spread_documents(int64_t begin, int64_t end) {
  const int64_t count = std::min(end - begin, kSampledDocuments);
  std::vector<int64_t> documents;
  for (int64_t i = 0; i < count; ++i)
    documents.push_back(count == 1 ? begin : begin + spread_block_begin(end - begin, 1, count, i));
  return documents;
}

// Returns the edges of a sample of documents, without those whose entries in the index are invalid.
DocumentEdges edges_of(const TokenFile& file) {
  DocumentEdges edges;
  const auto read = [&](int64_t document, bool is_last, std::vector<int32_t>& out) {
    try {
      const int64_t length = file.document_length(document);
      if (length == 0) return;
      int32_t id = 0;
      file.copy(document, is_last ? length - 1 : 0, {&id, 1});
      out.push_back(id);
    } catch (const InputError&) {
      return;
    }
  };
  const int64_t documents = file.num_documents();
  const int64_t cut = file.format() == "llm.c" ? std::min<int64_t>(1, documents) : 0;  // Documents that may be cut.
  for (const int64_t d : spread_documents(cut, documents)) read(d, false, edges.first);
  for (const int64_t d : spread_documents(0, documents - cut)) read(d, true, edges.last);
  return edges;
}

bool all_are(const std::vector<int32_t>& ids, const std::optional<int32_t>& id) {
  return id && !ids.empty() && std::ranges::all_of(ids, [&](int32_t one) { return one == *id; });
}

}  // namespace

StoredTokens find_stored_tokens(const std::string& path, const TokenFile* file, const DocumentTokens& tokens) {
  // Opening a file completely would read all of its index.
  const DocumentEdges edges = file != nullptr ? edges_of(*file) : edges_of(TokenFile(path, {}, /*checks_index=*/false));
  return {.bos = all_are(edges.first, tokens.bos),
          .eos = all_are(edges.last, tokens.eos) || all_are(edges.first, tokens.eos)};
}

std::string token_file_identity(const std::string& path) {
  const std::string prefix = token_file_prefix(path);
  const std::string tokens = sampled_file_identity(prefix + ".bin");
  return path_exists(prefix + ".idx") ? fmt::format("{}; {}", file_identity(prefix + ".idx"), tokens) : tokens;
}

}  // namespace octavo
