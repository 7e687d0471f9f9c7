// The byte tokenizer: a text is its bytes (token ids 0 to 255), plus bos 256, eos 257 and pad 258. The vocabulary is
// rounded up to 272, a multiple of 16, for fast matmuls. Ids 259 to 271 never occur.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo {

struct ByteTokenizer {
  static constexpr int32_t kBos = 256;
  static constexpr int32_t kEos = 257;
  static constexpr int32_t kPad = 258;
  static constexpr int64_t kVocabSize = 272;

  // Returns the bytes of `text`, one id each, without bos and eos.
  static std::vector<int32_t> encode(std::string_view text) {
    std::vector<int32_t> ids;
    ids.reserve(text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }

  // Returns the bytes among `ids`. Special and unused ids are omitted.
  static std::string decode(std::span<const int32_t> ids) {
    std::string text;
    text.reserve(ids.size());
    for (const int32_t id : ids) {
      if (id >= 0 && id < 256) text.push_back(static_cast<char>(static_cast<unsigned char>(id)));
    }
    return text;
  }
};

}  // namespace octavo
