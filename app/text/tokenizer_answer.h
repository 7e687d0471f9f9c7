// Parses the output of scripts/hf_tokenizer.py. Octavo never parses a Hugging Face tokenizer.json itself, but its
// content determines these answers, so they are untrusted input.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo {

// Maximum length of a line that the script prints. Longer answers are refused.
inline constexpr int64_t kMaxAnswerBytes = int64_t{64} << 20;

// The tokens at the beginning and the end of a text, as the files of a tokenizer name them.
struct TextEnds {
  std::optional<int32_t> bos = {};  // Token that transformers puts before a text.
  std::vector<int32_t> eos = {};    // Tokens that end a generated text.
};

// Returns what the first line reports about a tokenizer. Throws an InputError with the script's reason, if it gives
// one, or if an id is not an integer from 0 to 2^31 - 1.
TextEnds answered_ends(std::string_view output, const std::string& tokenizer);

// Return the token ids, or the text, in the last line of `output`. Throw an InputError that names `tokenizer` if there
// is no answer, with the script's reason if it gives one, or if an id is not an integer from 0 to 2^31 - 1.
std::vector<int32_t> answered_ids(std::string_view output, const std::string& tokenizer);
std::string answered_text(std::string_view output, const std::string& tokenizer);

}  // namespace octavo
