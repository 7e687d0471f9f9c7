// The answers of scripts/hf_tokenizer.py: all that Octavo itself reads of a Hugging Face tokenizer.json, whose content
// decides what they contain.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octavo {

// Largest size of a line that the script prints. A tokenizer whose answer is longer is refused.
inline constexpr int64_t kMaxAnswerBytes = int64_t{64} << 20;

// The first line says that there is a tokenizer; else InputError with the script's reason, where it gives one.
void check_tokenizer_ready(std::string_view output, const std::string& tokenizer);

// The ids, or the text, in `output`, the last line of which is the answer. InputError naming `tokenizer` when there is
// none (with the script's reason, where it gives one), or an id is no integer from 0 to 2^31 - 1.
std::vector<int32_t> answered_ids(std::string_view output, const std::string& tokenizer);
std::string answered_text(std::string_view output, const std::string& tokenizer);

}  // namespace octavo
