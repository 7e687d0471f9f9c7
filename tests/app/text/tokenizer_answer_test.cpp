#include "app/text/tokenizer_answer.h"

#include <gtest/gtest.h>

#include "tests/core/messages.h"

namespace octavo {
namespace {

TEST(TokenizerAnswer, IsTheLastLine) {
  EXPECT_EQ(answered_ids("{\"vocab_size\": 9}\n{\"ids\": [0, 7, 2147483647]}\n", "t"),
            (std::vector<int32_t>{0, 7, 2147483647}));
  EXPECT_EQ(answered_text("{\"text\": \"first\"}\n{\"text\": \"a\\u001b\"}\n\n", "t"), "a\x1b");
  EXPECT_TRUE(answered_ids("{\"ids\": []}", "t").empty());
}

TEST(TokenizerAnswer, FirstLineNamesTheEndsOfATextIfTheScriptKnowsThem) {
  const TextEnds ends = answered_ends("{\"vocab_size\": 9, \"bos\": 1, \"ends\": [2, 0]}\n", "t");
  EXPECT_EQ(ends.bos, 1);
  EXPECT_EQ(ends.eos, (std::vector<int32_t>{2, 0}));
  for (const char* hello : {"{\"vocab_size\": 9}", "{\"vocab_size\": 9, \"bos\": null, \"ends\": []}"}) {
    EXPECT_FALSE(answered_ends(hello, "t").bos || !answered_ends(hello, "t").eos.empty()) << hello;
  }
  for (const char* wrong : {"{\"bos\": 1}", "{\"vocab_size\": 9, \"bos\": -1}", "{\"vocab_size\": 9, \"ends\": [0.5]}",
                            "{\"vocab_size\": 9, \"ends\": 5}"}) {
    EXPECT_NE(input_error_of([&] { answered_ends(wrong, "t"); }).find("the tokenizer t"), std::string::npos) << wrong;
  }
}

TEST(TokenizerAnswer, WhatIsNoneIsRefused) {
  for (const char* output : {"", "\n", "text", "[1]", "{\"vocab_size\": 9}", "{\"ids\": [1]}\nTraceback"}) {
    EXPECT_NE(
        input_error_of([&] { answered_ids(output, "t.json"); }).find("the tokenizer t.json could not be used: python3"),
        std::string::npos);
  }
  EXPECT_NE(input_error_of([&] { answered_text("{\"error\": \"none \\u001b\"}", "t"); }).find("\"none \\u001b\""),
            std::string::npos);
  for (const char* ids :
       {"5", "\"5\"", "{}", "[-1]", "[2147483648]", "[18446744073709551615]", "[1.5]", "[[1]]", "[null]"}) {
    const std::string output = std::string("{\"ids\": ") + ids + "}";
    EXPECT_NE(input_error_of([&] { answered_ids(output, "t"); }).find("the tokenizer t"), std::string::npos) << ids;
  }
  EXPECT_NE(input_error_of([&] { answered_text("{\"text\": [1]}", "t"); }).find("does not return a text"),
            std::string::npos);
}

}  // namespace
}  // namespace octavo
