#include "data/tokens/token_writer.h"

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"

namespace octavo {
namespace {

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
  constexpr size_t kLongest = std::numeric_limits<int32_t>::max();  // The index has an int32 per document.
  CHECK_INPUT(tokens.size() <= kLongest, "{}: document {} has {} tokens, expected at most {}", bin_.path(),
              num_documents(), tokens.size(), kLongest);
  // The host is little-endian, like the file, so an id in a narrower type is the first bytes of the int32.
  const auto width = static_cast<size_t>(token_size_bytes(dtype_));
  std::string bytes(tokens.size() * width, '\0');
  for (size_t i = 0; i < tokens.size(); ++i) std::memcpy(&bytes[i * width], &tokens[i], width);
  bin_.write(bytes);
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
  num_tokens_ += std::ssize(tokens);
}

void TokenFileWriter::write_index() {
  OutputFile& idx = *idx_;
  idx.write(std::string_view("MMIDIDX\0\0", 9));
  write_value<uint64_t>(idx, 1);
  write_value(idx, static_cast<uint8_t>(dtype_));
  write_value<uint64_t>(idx, lengths_.size());
  write_value<uint64_t>(idx, lengths_.size() + 1);
  idx.write(std::span<const int32_t>(lengths_));
  int64_t offset = 0;
  for (const int32_t length : lengths_) {
    write_value(idx, offset);
    offset += length * token_size_bytes(dtype_);
  }
  for (int64_t document = 0; document <= num_documents(); ++document) write_value(idx, document);
}

std::string TokenFileWriter::sidecar() const {
  using Json = nlohmann::ordered_json;
  const Json json = {{"tokenizer", info_.tokenizer.empty() ? Json() : Json(info_.tokenizer)},
                     {"vocab_size", info_.vocab_size > 0 ? Json(info_.vocab_size) : Json()},
                     {"bos", info_.bos ? Json(*info_.bos) : Json()},
                     {"eos", info_.eos ? Json(*info_.eos) : Json()},
                     {"documents", num_documents()},
                     {"tokens", num_tokens_}};
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

void TokenFileWriter::finish_together(std::span<TokenFileWriter* const> writers) {
  for (TokenFileWriter* writer : writers) writer->close();
  std::vector<OutputFile*> files;
  // The index is last in this order, so rename_together() moves an older index away first. Otherwise, if the process
  // died between two renames, the index of an older dataset could stand next to the new tokens.
  for (TokenFileWriter* writer : writers) {
    files.insert(files.end(), {&writer->bin_, &*writer->json_, &*writer->idx_});
  }
  rename_together(files);
}

}  // namespace octavo
