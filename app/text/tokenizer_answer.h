// Parses the output of scripts/hf_tokenizer.py. Octavo never parses a Hugging Face tokenizer.json itself, but its
// content determines these answers, so they are untrusted input.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octavo {

// Maximum length of a line that the script prints. Longer answers are refused.
inline constexpr int64_t kMaxAnswerBytes = int64_t{64} << 20;

// Checks that the first line reports a tokenizer. Throws an InputError with the script's reason, if it gives one.
void check_tokenizer_ready(std::string_view output, const std::string& tokenizer);

// Return the token ids, or the text, in the last line of `output`. Throw an InputError that names `tokenizer` if there
// is no answer, with the script's reason if it gives one, or if an id is not an integer from 0 to 2^31 - 1.
std::vector<int32_t> answered_ids(std::string_view output, const std::string& tokenizer);
std::string answered_text(std::string_view output, const std::string& tokenizer);

}  // namespace octavo
