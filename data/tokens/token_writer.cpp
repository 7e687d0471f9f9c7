#include "data/tokens/token_writer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"

namespace octavo {
namespace {

template <typename T>
void write_narrowed(OutputFile& file, std::span<const int32_t> tokens) {
  std::array<T, 4096> buffer;
  while (!tokens.empty()) {
    const size_t count = std::min(buffer.size(), tokens.size());
    std::transform(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count), buffer.begin(),
                   [](int32_t id) { return static_cast<T>(id); });
    file.write(std::span<const T>(buffer).first(count));
    tokens = tokens.subspan(count);
  }
}

template <typename T>
void write_value(OutputFile& file, T value) {
  file.write(&value, sizeof(T));
}

}  // namespace

TokenFileWriter::TokenFileWriter(const std::string& prefix, TokenDtype dtype, TokenFileInfo info)
    : prefix_(prefix), dtype_(dtype), info_(std::move(info)), bin_(prefix + ".bin") {}

void TokenFileWriter::add_document(std::span<const int32_t> tokens) {
  const int64_t bad = find_outside_vocabulary(tokens, max_token_id(dtype_) + 1);
  CHECK_INPUT(bad < 0, "{}: token id {} at position {} of document {} does not fit {}", bin_.path(),
              tokens[static_cast<size_t>(bad)], bad, num_documents(), token_dtype_name(dtype_));
  switch (dtype_) {
    case TokenDtype::kU8:
      write_narrowed<uint8_t>(bin_, tokens);
      break;
    case TokenDtype::kU16:
      write_narrowed<uint16_t>(bin_, tokens);
      break;
    case TokenDtype::kI32:
      write_narrowed<int32_t>(bin_, tokens);
      break;
  }
  // The length of a sequence is an int32 on disk. A longer document becomes several sequences.
  constexpr int64_t kLongest = std::numeric_limits<int32_t>::max();
  auto remaining = static_cast<int64_t>(tokens.size());
  do {
    const int64_t length = std::min(remaining, kLongest);
    sequence_lengths_.push_back(static_cast<int32_t>(length));
    remaining -= length;
  } while (remaining > 0);
  document_ends_.push_back(static_cast<int64_t>(sequence_lengths_.size()));
  num_tokens_ += static_cast<int64_t>(tokens.size());
}

void TokenFileWriter::write_index() {
  OutputFile& idx = *idx_;
  idx.write(std::string_view("MMIDIDX\0\0", 9));
  write_value<uint64_t>(idx, 1);
  write_value(idx, static_cast<uint8_t>(dtype_));
  write_value<uint64_t>(idx, sequence_lengths_.size());
  write_value<uint64_t>(idx, document_ends_.size() + 1);
  idx.write(std::span<const int32_t>(sequence_lengths_));
  int64_t offset = 0;
  for (const int32_t length : sequence_lengths_) {
    write_value(idx, offset);
    offset += length * token_size_bytes(dtype_);
  }
  write_value<int64_t>(idx, 0);
  idx.write(std::span<const int64_t>(document_ends_));
}

std::string TokenFileWriter::sidecar() const {
  nlohmann::ordered_json json;
  json["tokenizer"] = nullptr;
  if (!info_.tokenizer.empty()) json["tokenizer"] = info_.tokenizer;
  json["vocab_size"] = nullptr;
  if (info_.vocab_size > 0) json["vocab_size"] = info_.vocab_size;
  json["bos"] = nullptr;
  if (info_.bos) json["bos"] = *info_.bos;
  json["eos"] = nullptr;
  if (info_.eos) json["eos"] = *info_.eos;
  json["documents"] = num_documents();
  json["tokens"] = num_tokens_;
  return json.dump(2) + "\n";
}

void TokenFileWriter::close() {
  idx_.emplace(prefix_ + ".idx");
  json_.emplace(prefix_ + ".json");
  write_index();
  json_->write(sidecar());
  bin_.finish();
  idx_->finish();
  json_->finish();
}

void TokenFileWriter::publish(std::span<TokenFileWriter* const> writers) {
  std::vector<OutputFile*> files;
  // The index is last in this order, so rename_together() moves an older index away first. Otherwise, if the process
  // died between two renames, the index of an older dataset could stand next to the new tokens.
  for (TokenFileWriter* writer : writers) {
    files.insert(files.end(), {&writer->bin_, &*writer->json_, &*writer->idx_});
  }
  rename_together(files);
}

}  // namespace octavo
