// Text to token ids and back, for `octavo generate`: the byte tokenizer, or a Hugging Face tokenizer.json through
// scripts/hf_tokenizer.py (Python with the `tokenizers` package), a child process that serves until the object is gone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace octavo {

class TextTokenizer {
 public:
  virtual ~TextTokenizer() = default;
  virtual std::vector<int32_t> encode(const std::string& text) = 0;
  virtual std::string decode(const std::vector<int32_t>& ids) = 0;
};

inline constexpr const char* kTokenizerName = "tokenizer.json";

// Returns the files of a Hugging Face tokenizer, as checkpoints carry them: `path` as kTokenizerName, and
// tokenizer_config.json, special_tokens_map.json and chat_template.jinja from its folder, if they exist. The files of
// PREFIX.tokenizer.json begin with "PREFIX.". Returns none when `path` is not a file.
std::vector<CarriedFile> read_tokenizer_files(const std::filesystem::path& path);
// Returns the files that a run's checkpoints carry: those of data.tokenizer, or else those of the checkpoint that the
// run resumes. Warns if there are none.
std::vector<CarriedFile> tokenizer_to_carry(const std::string& name, const std::optional<Checkpoint>& resumed);
bool is_tokenizer_file(std::string_view name);

// `name`: "byte" or the path of a tokenizer.json. InputError when that file is missing or cannot be used.
std::unique_ptr<TextTokenizer> open_tokenizer(const std::string& name);

}  // namespace octavo
