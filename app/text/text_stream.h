// The text of tokens as it grows, token by token: what can be shown already is whole characters, and neither a stop
// string nor what may become one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/text/tokenizer.h"

namespace octavo {

class TextStream {
 public:
  // Text that follows `prompt`, some of whose last tokens are decoded along, as tokenizers write a token differently at
  // the beginning of a text. `tokenizer` must outlive the stream.
  TextStream(TextTokenizer& tokenizer, const std::vector<int32_t>& prompt, std::vector<std::string> stop_strings);

  // Takes a token; returns what can be shown since the last call, often nothing. After a stop string, what stood before
  // it, and the stream has stopped.
  std::string push(int32_t token);
  // Returns the text that is still held back, at the end of a text that did not stop.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  void decode(bool last);
  std::string show(size_t held_back);

  TextTokenizer& tokenizer_;
  std::vector<std::string> stop_strings_;
  // The tokens from some before those whose text has not been taken yet; and the text of the former.
  std::vector<int32_t> tokens_;
  size_t taken_;
  std::string taken_text_;
  std::string pending_;  // text that has not been shown
  bool stopped_ = false;
};

}  // namespace octavo
