// Text to token ids and back, for `octavo generate`: the byte tokenizer, or a Hugging Face tokenizer.json through
// scripts/hf_tokenizer.py (Python with the `tokenizers` package), run as a child process.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace octavo {

class TextTokenizer {
 public:
  virtual ~TextTokenizer() = default;
  virtual std::vector<int32_t> encode(const std::string& text) = 0;
  virtual std::string decode(const std::vector<int32_t>& ids) = 0;
};

// `name`: "byte" or the path of a tokenizer.json. InputError when that file is missing or cannot be used.
std::unique_ptr<TextTokenizer> open_tokenizer(const std::string& name);

}  // namespace octavo
