// Converts a growing list of tokens to text. The returned text consists of complete characters, and contains neither a
// stop string nor the beginning of a possible one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/text/tokenizer.h"

namespace octavo {

class TextStream {
 public:
  // Starts the text that follows `prompt`. The last tokens of the prompt are decoded too, because tokenizers decode a
  // token differently at the beginning of a text.
  // Requires: `tokenizer` outlives the stream.
  TextStream(TextTokenizer& tokenizer, const std::vector<int32_t>& prompt, std::vector<std::string> stop_strings);

  // Adds a token and returns the text that has become complete, often an empty one. If the text contains a stop string,
  // returns the text before it, and stopped() becomes true.
  std::string push(int32_t token);
  // Returns the text that push() still holds back. Called at the end of a text that did not stop.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  void decode(bool last);
  std::string show(size_t held_back);

  TextTokenizer& tokenizer_;
  std::vector<std::string> stop_strings_;
  // The last tokens whose text was added to pending_, as context, then the tokens whose text was not added yet.
  std::vector<int32_t> tokens_;
  size_t taken_;            // Number of context tokens at the beginning of tokens_.
  std::string taken_text_;  // Text of the context tokens.
  std::string pending_;     // Text that was not returned yet.
  bool stopped_ = false;
};

}  // namespace octavo
