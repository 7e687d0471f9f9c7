#include "app/text/text_stream.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/printable.h"

namespace octavo {

namespace {

constexpr size_t kTokensBefore = 5;

// U+FFFD, which tokenizers print for bytes that are not, or not yet, a complete character.
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Returns the length of the longest end of `text` that is a proper prefix of `whole`.
size_t beginning_at_end(std::string_view text, std::string_view whole) {
  for (size_t bytes = std::min(text.size(), whole.empty() ? 0 : whole.size() - 1); bytes > 0; --bytes) {
    if (whole.starts_with(text.substr(text.size() - bytes))) return bytes;
  }
  return 0;
}

}  // namespace

TextStream::TextStream(TextTokenizer& tokenizer, const std::vector<int32_t>& prompt,
                       std::vector<std::string> stop_strings)
    : tokenizer_(tokenizer),
      stop_strings_(std::move(stop_strings)),
      tokens_(prompt.end() - static_cast<std::ptrdiff_t>(std::min(prompt.size(), kTokensBefore)), prompt.end()),
      taken_(tokens_.size()),
      taken_text_(tokenizer.decode(tokens_)) {}

// Adds the text of the new tokens to pending_, unless it ends in an incomplete character. The tokens that were added
// last are kept as the context of the next ones.
void TextStream::decode(bool last) {
  const std::string text = tokenizer_.decode(tokens_);
  if (text.size() <= taken_text_.size() || (!last && text.ends_with(kReplacement))) return;
  pending_ += text.substr(taken_text_.size());
  tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(taken_));
  taken_ = tokens_.size();
  taken_text_ = tokenizer_.decode(tokens_);
}

std::string TextStream::show(size_t held_back) {
  const size_t shown = pending_.size() - held_back;
  std::string text = pending_.substr(0, shown);
  pending_.erase(0, shown);
  return text;
}

std::string TextStream::push(int32_t token) {
  tokens_.push_back(token);
  decode(false);
  size_t stop = std::string::npos;
  size_t held_back = incomplete_character_bytes(pending_);
  for (const std::string& string : stop_strings_) {
    stop = std::min(stop, pending_.find(string));
    held_back = std::max(held_back, beginning_at_end(pending_, string));
  }
  stopped_ = stop != std::string::npos;
  return show(stopped_ ? pending_.size() - stop : held_back);
}

std::string TextStream::finish() {
  decode(true);
  return show(0);
}

}  // namespace octavo
