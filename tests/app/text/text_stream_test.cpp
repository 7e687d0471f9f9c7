#include "app/text/text_stream.h"

#include <gtest/gtest.h>

#include "core/printable.h"
#include "data/tokens/byte_tokenizer.h"

namespace octavo {
namespace {

class BytesAsTokens final : public TextTokenizer {
 public:
  std::vector<int32_t> encode(const std::string& text) override { return ByteTokenizer::encode(text); }
  std::string decode(const std::vector<int32_t>& ids) override { return ByteTokenizer::decode(ids); }
};

// A tokenizer whose tokens are words with the space before them, and single bytes. Decoding omits a space at the
// beginning of a text, and turns bytes that are invalid UTF-8 into U+FFFD.
class Words final : public TextTokenizer {
 public:
  std::vector<int32_t> encode(const std::string&) override { return {}; }
  std::string decode(const std::vector<int32_t>& ids) override {
    std::string text;
    for (const int32_t id : ids) {
      if (id >= 1000) continue;  // Special tokens have no text.
      text += id < 256 ? std::string(1, static_cast<char>(id)) : kWords.at(static_cast<size_t>(id - 256));
    }
    if (text.starts_with(' ')) text.erase(0, 1);
    std::string clean;
    for (size_t i = 0; i < text.size();) {
      size_t size = 1;
      while (size <= 4 && !is_utf8(std::string_view(text).substr(i, size))) ++size;
      clean += size <= 4 ? text.substr(i, size) : "\xEF\xBF\xBD";
      i += size <= 4 ? size : 1;
    }
    return clean;
  }

 private:
  const std::vector<std::string> kWords{" a", " book", " of", "s"};
};

// Returns the text that each token completes, and finally the rest.
std::vector<std::string> pieces(TextTokenizer& tokenizer, const std::vector<int32_t>& prompt,
                                const std::vector<int32_t>& tokens, const std::vector<std::string>& stop = {}) {
  TextStream stream(tokenizer, prompt, stop);
  std::vector<std::string> shown;
  for (const int32_t token : tokens) {
    shown.push_back(stream.push(token));
    if (stream.stopped()) return shown;
  }
  shown.push_back(stream.finish());
  return shown;
}

using Pieces = std::vector<std::string>;

TEST(TextStream, NeverHalfACharacter) {
  BytesAsTokens bytes;
  EXPECT_EQ(pieces(bytes, {}, ByteTokenizer::encode("a\u00fcb")), (Pieces{"a", "", "\u00fc", "b", ""}));
  EXPECT_EQ(pieces(bytes, {}, ByteTokenizer::encode("\u20ac\U0001F4D6")),
            (Pieces{"", "", "\u20ac", "", "", "", "\U0001F4D6", ""}));
  // The text ends within a character, contains invalid UTF-8, or has a special token between the bytes of a character.
  EXPECT_EQ(pieces(bytes, {}, {'x', 0xe2, 0x82}), (Pieces{"x", "", "", "\xe2\x82"}));
  EXPECT_EQ(pieces(bytes, {}, {0xff, 0xe2, 'x'}), (Pieces{"\xff", "", "\xe2x", ""}));
  EXPECT_EQ(pieces(bytes, {}, {0xc3, 257, 0xbc}), (Pieces{"", "", "\u00fc", ""}));
}

TEST(TextStream, TokenizersThatDecodeTheBeginningDifferently) {
  Words words;
  EXPECT_EQ(pieces(words, {}, {256, 257, 259}), (Pieces{"a", " book", "s", ""}));
  EXPECT_EQ(pieces(words, {257}, {258, 256, 257}), (Pieces{" of", " a", " book", ""}));
  EXPECT_EQ(pieces(words, {257, 1000}, {1000, 258, 1000, 259}), (Pieces{"", " of", "", "s", ""}));
  EXPECT_EQ(pieces(words, {256}, {0xc3, 0xbc, 257, 0xe2, 0x82}),
            (Pieces{"", "\u00fc", " book", "", "", "\xEF\xBF\xBD\xEF\xBF\xBD"}));
}

TEST(TextStream, StopStrings) {
  BytesAsTokens bytes;
  const std::vector<int32_t> tokens = ByteTokenizer::encode("one, two.\n\nthree");
  EXPECT_EQ(pieces(bytes, {}, tokens, {"\n\n"}), (Pieces{"o", "n", "e", ",", " ", "t", "w", "o", ".", "", ""}));
  // A possible beginning of a stop string is held back. It is shown when it turns out not to be a stop string.
  EXPECT_EQ(pieces(bytes, {}, ByteTokenizer::encode("abab abc"), {"abc"}),
            (Pieces{"", "", "ab", "", "ab ", "", "", ""}));
  EXPECT_EQ(pieces(bytes, {}, ByteTokenizer::encode("aba"), {"abc"}), (Pieces{"", "", "ab", "a"}));
  // The first stop string in the text wins, whichever is found first. One stop string may lie within another, or within
  // a token.
  EXPECT_EQ(pieces(bytes, {}, tokens, {"three", "two", "e"}), (Pieces{"o", "n", ""}));
  Words words;
  EXPECT_EQ(pieces(words, {256}, {257, 258}, {"ook"}), (Pieces{" b"}));
  // The prompt is not searched for stop strings, not even for the beginning of one.
  EXPECT_EQ(pieces(bytes, ByteTokenizer::encode("stop s"), ByteTokenizer::encode("top"), {"stop"}),
            (Pieces{"t", "o", "p", ""}));
}

}  // namespace
}  // namespace octavo
