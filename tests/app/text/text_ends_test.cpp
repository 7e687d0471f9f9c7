#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "app/text/tokenizer.h"

namespace octavo {
namespace {

// A tokenizer whose files may name a bos, or the byte tokenizer, which has no files.
class NamedTokenizer : public TextTokenizer {
 public:
  explicit NamedTokenizer(std::optional<int32_t> bos, bool is_byte = false) : bos_(bos), is_byte_(is_byte) {}
  std::vector<int32_t> encode(const std::string&) override { return {}; }
  std::string decode(const std::vector<int32_t>&) override { return ""; }
  TextEnds ends() const override { return {.bos = bos_}; }
  bool is_byte() const override { return is_byte_; }

 private:
  std::optional<int32_t> bos_;
  bool is_byte_;
};

// A text begins as the documents of the run did, and only an untrained model's text as in transformers.
TEST(TextEnds, BeginAsTheDocumentsOfTheRun) {
  const NamedTokenizer with_bos(1), without_bos({}), byte({}, true);
  const nlohmann::json hf = {{"config.json", {{"bos_token_id", 7}, {"eos_token_id", {2, 3}}}}};
  struct Case {
    const char* data;  // Recorded in the checkpoint's config.
    const TextTokenizer& tokenizer;
    std::optional<int32_t> bos;
  };
  const Case cases[] = {
      {R"({"bos_id": null})", with_bos, {}},  {R"({"bos_id": null})", byte, {}},
      {R"({"bos_id": 5})", with_bos, 5},      {R"({"bos_id": 5})", without_bos, 5},
      {R"({"bos_id": 0})", byte, 0},          {R"({"bos_id": "auto"})", with_bos, 1},
      {R"({"tokenizer": "t"})", with_bos, 1}, {R"({"tokenizer": "t"})", without_bos, {}},
      {R"({"tokenizer": "byte"})", byte, 7},  {"{}", byte, 7},
  };
  for (const Case& c : cases) {
    const nlohmann::json recorded = nlohmann::json::parse(c.data);
    DataConfig data;
    if (recorded.contains("bos_id") && recorded.at("bos_id").is_number()) data.bos_id = recorded.at("bos_id");
    const TextEnds ends = text_ends({{"config", {{"data", recorded}}}, {"hugging_face", hf}}, data, c.tokenizer);
    EXPECT_EQ(ends.bos, c.bos) << c.data;
    EXPECT_EQ(ends.eos, (std::vector<int32_t>{2, 3})) << c.data;
  }
  // The metadata of a Hugging Face directory has no config.
  EXPECT_EQ(text_ends({{"hugging_face", hf}}, {}, byte).bos, 7);
  EXPECT_EQ(text_ends({{"hugging_face", hf}}, {}, with_bos).bos, 1);
}

}  // namespace
}  // namespace octavo
