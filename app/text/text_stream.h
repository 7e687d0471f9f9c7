// The text of tokens as it grows, token by token. Shown text consists of whole characters, and contains neither a stop
// string nor the beginning of a possible one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/text/tokenizer.h"

namespace octavo {

class TextStream {
 public:
  // Makes a stream of text that follows `prompt`. Some of the last tokens of the prompt are decoded too, because
  // tokenizers write a token differently at the beginning of a text. `tokenizer` must outlive the stream.
  TextStream(TextTokenizer& tokenizer, const std::vector<int32_t>& prompt, std::vector<std::string> stop_strings);

  // Adds a token. Returns the text that can be shown since the last call, often nothing. At a stop string, returns the
  // text before it, and the stream has stopped.
  std::string push(int32_t token);
  // Returns the text that is still held back, at the end of a text that did not stop.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  void decode(bool last);
  std::string show(size_t held_back);

  TextTokenizer& tokenizer_;
  std::vector<std::string> stop_strings_;
  // The tokens whose text has not been taken yet, with some tokens before them, and the text of the latter.
  std::vector<int32_t> tokens_;
  size_t taken_;
  std::string taken_text_;
  std::string pending_;  // Text that has not been shown.
  bool stopped_ = false;
};

}  // namespace octavo
