#include "data/tokens/token_stream.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/files/file_tree.h"
#include "core/files/input_file.h"

namespace octavo {

struct TokenStream::File {
  std::string path;
  int64_t begin = 0;                // Position of the file's first token in the stream.
  int64_t tokens = 0;               // Number of tokens, bos and eos included.
  int64_t stored = 0;               // Number of tokens without bos and eos.
  std::optional<int32_t> bos, eos;  // Tokens to insert around each document.
  int64_t extra_tokens() const { return int64_t{bos.has_value()} + int64_t{eos.has_value()}; }
  mutable std::once_flag opened;
  mutable std::unique_ptr<TokenFile> file;
};

namespace {

// Throws an InputError if a folder has entries that were left out and may stand for token files.
void check_complete(const std::string& folder, const FileTree& tree) {
  CHECK_INPUT(tree.unreadable.empty(), "{}, so the token files in {} are unknown", tree.unreadable.front(), folder);
  for (const auto& [kind, paths] : tree.left_out) {
    for (const std::string& path : paths) {
      CHECK_INPUT(kind != FileTree::kBrokenLink && token_file_prefix(path) == path,
                  "{}: is a {}, expected token files and folders in {}", path, kind, folder);
    }
  }
}

}  // namespace

std::vector<std::string> find_token_files(const std::string& path, std::vector<std::string>* repeated) {
  if (path.empty() || !is_directory_at(path) || path_exists(token_file_prefix(path) + ".idx")) return {path};
  const FileTree tree = list_tree(path);
  check_complete(path, tree);
  std::vector<std::string> found;
  std::set<FilePlace> places;  // Places of the files with tokens. A file with several names is taken once.
  for (const FileInTree& file : tree.files) {
    const std::string prefix = token_file_prefix(file.path);
    const bool is_shard = file.path.ends_with(".bin") && !path_exists(prefix + ".idx");
    if (!file.path.ends_with(".idx") && !is_shard) continue;
    const auto tokens = is_shard ? file.place : place_of(prefix + ".bin");
    const bool is_new = !tokens || places.insert(*tokens).second;
    if (is_new || repeated != nullptr) (is_new ? found : *repeated).push_back(prefix);
  }
  CHECK_INPUT(!found.empty(), "{}: is a folder without a token file, expected PREFIX.bin and PREFIX.idx in it", path);
  std::ranges::sort(found);
  return found;
}

TokenStream::TokenStream(const std::vector<std::string>& paths, const DocumentTokens& inserted, int64_t vocab_size)
    : inserted_(inserted), vocab_size_(vocab_size) {
  const bool inserts = inserted.bos || inserted.eos;
  int64_t index_bytes = 0;
  int64_t stored = 0, documents = 0;
  int64_t shards = 0, undivided = 0;  // Opened files of llm.c, and those of them without a divider.
  for (const std::string& path : paths) {
    auto file = std::make_unique<File>();
    file->path = path;
    file->begin = num_tokens_;
    TokenFileCounts counts = count_tokens(path);
    index_bytes += counts.index_bytes;
    if (index_bytes <= kOpenedIndexBytes || (inserts && !counts.documents)) {
      file->file = std::make_unique<TokenFile>(path, inserted);
      const bool is_shard = file->file->format() == "llm.c";
      shards += is_shard ? 1 : 0;
      undivided += is_shard && file->file->num_documents() <= 1 ? 1 : 0;
      if (vocab_size > 0) file->file->check_vocabulary(vocab_size);
      counts = {.tokens = file->file->num_tokens(), .documents = file->file->num_documents()};
    }
    const StoredTokens has = inserts ? find_stored_tokens(path, file->file.get(), inserted) : StoredTokens{};
    files_with_bos_ += has.bos ? 1 : 0;
    files_with_eos_ += has.eos ? 1 : 0;
    if (!has.bos) file->bos = inserted.bos;
    if (!has.eos) file->eos = inserted.eos;
    file->stored = counts.tokens;
    file->tokens = counts.tokens + counts.documents.value_or(0) * file->extra_tokens();
    stored += file->stored;
    num_tokens_ += file->tokens;
    documents += counts.documents.value_or(0);
    files_.push_back(std::move(file));
  }
  is_undivided_ = shards > 0 && undivided == shards;
  CHECK_INPUT(stored > 0, "{}: empty dataset: {} documents without a token", paths.empty() ? "data" : paths.front(),
              documents);
}

TokenStream::TokenStream(TokenStream&&) noexcept = default;
TokenStream& TokenStream::operator=(TokenStream&&) noexcept = default;
TokenStream::~TokenStream() = default;

const std::string& TokenStream::path(int64_t file) const { return files_[static_cast<size_t>(file)]->path; }

const TokenFile& TokenStream::open(const File& file) const {
  std::call_once(file.opened, [&] {
    if (file.file) return;
    auto opened = std::make_unique<TokenFile>(file.path, inserted_);
    CHECK_INPUT(opened->num_tokens() == file.stored,
                "{}: its index describes {} tokens, but {} are stored; expected no gaps in a dataset of many files",
                opened->path(), opened->num_tokens(), file.stored);
    file.file = std::move(opened);
  });
  return *file.file;
}

const TokenStream::File& TokenStream::file_at(int64_t position) const {
  return **std::prev(std::ranges::upper_bound(files_, position, {}, [](const auto& file) { return file->begin; }));
}

const std::string& TokenStream::path_at(int64_t position) const { return file_at(position).path; }

void TokenStream::read(int64_t begin, std::span<int32_t> tokens, std::span<int32_t> document_start) const {
  CHECK(begin >= 0 && begin < num_tokens_, "token {} is outside the stream of {} tokens", begin, num_tokens_);
  CHECK(document_start.size() <= tokens.size(), "document_start has {} entries, expected at most {}",
        document_start.size(), tokens.size());
  Target target{tokens, document_start};
  while (target.done < tokens.size()) {
    const File& file = file_at(begin);
    read_file(file, begin - file.begin, target);
    begin = (file.begin + file.tokens) % num_tokens_;
  }
}

// Reads from `position` in one file to its end, or until the target is full.
void TokenStream::read_file(const File& source, int64_t position, Target& target) const {
  const TokenFile& file = open(source);
  const int64_t extra_tokens = source.extra_tokens();
  int64_t document = file.find_document(position, extra_tokens);
  while (position < source.tokens && target.done < target.tokens.size()) {
    const int64_t begin = file.document_begin(document) + document * extra_tokens;
    const int64_t length = file.document_length(document) + extra_tokens;
    const int64_t offset = position - begin;
    CHECK_INPUT(
        begin >= 0 && offset >= 0 && offset <= length,
        "{}: document {} begins at token {} and has {} tokens, which contradicts the other documents: its index "
        "has been changed",
        file.path(), document, begin, length);
    const auto count = std::min(static_cast<size_t>(length - offset), target.tokens.size() - target.done);
    const std::span<int32_t> out = target.tokens.subspan(target.done, count);
    if (!out.empty()) read_document(source, {document, length - extra_tokens}, offset, out);
    if (target.done < target.document_start.size()) {
      const size_t end = std::min(target.done + count, target.document_start.size());
      // Only the first document of a read can have begun before the read; its start is 0.
      std::fill(target.document_start.begin() + static_cast<std::ptrdiff_t>(target.done),
                target.document_start.begin() + static_cast<std::ptrdiff_t>(end), static_cast<int32_t>(target.done));
    }
    target.done += count;
    position += static_cast<int64_t>(count);
    ++document;
    CHECK_INPUT(document < file.num_documents() || position >= source.tokens || target.done == target.tokens.size(),
                "{}: its documents end at token {} of {}: its index has been changed", file.path(), position,
                source.tokens);
  }
}

// Reads the tokens [offset, offset + out.size()) of a document with its bos and eos.
void TokenStream::read_document(const File& source, const StoredDocument& document, int64_t offset,
                                std::span<int32_t> out) const {
  if (source.bos) {
    if (offset == 0) {
      out.front() = *source.bos;
      out = out.subspan(1);
    } else {
      --offset;
    }
  }
  const int64_t left = std::max<int64_t>(0, document.length - offset);
  const auto ids = out.first(std::min(out.size(), static_cast<size_t>(left)));
  if (!ids.empty()) {
    const TokenFile& file = open(source);
    file.copy(document.index, offset, ids);
    if (vocab_size_ > 0) check_ids(file, document.index, offset, ids);
  }
  if (ids.size() < out.size()) out.back() = *source.eos;
}

void TokenStream::check_ids(const TokenFile& file, int64_t document, int64_t position,
                            std::span<const int32_t> ids) const {
  const int64_t bad = find_outside_vocabulary(ids, vocab_size_);
  if (bad < 0) [[likely]]
    return;
  throw Error(fmt::format("{}: token id {} at position {} of document {} is outside the vocabulary of {}", file.path(),
                          ids[static_cast<size_t>(bad)], position + bad, document, vocab_size_));
}

}  // namespace octavo
