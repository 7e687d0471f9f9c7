#include <gtest/gtest.h>

#include "app/inputs/model_path.h"
#include "app/inputs/tokenizer_source.h"
#include "core/error.h"
#include "core/files/input_file.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

class DocumentTokensTest : public testing::Test {
 protected:
  // Writes a token file whose sidecar has the given content. Without content there is no sidecar. Returns its path.
  std::string tokens(const std::string& name, const std::string& sidecar) const {
    write_tokens(dir_ / name, {{1, 2, 3}});
    write_file(dir_ / (name + ".json"), sidecar);
    if (sidecar.empty()) std::filesystem::remove(dir_ / (name + ".json"));
    return dir_ / name;
  }
  Config config(const std::string& train, const std::string& validation, const std::string& more = "") const {
    const std::string path = dir_ / "config.yaml";
    write_file(path, "data: {train: [" + train + "], validation: [" + validation + "]" + more +
                         "}\ncheckpoint: {dir: " + (dir_ / "checkpoints") + "}\n");
    return load_config(path);
  }
  static std::string resolved(Config config, Purpose purpose = Purpose::kTrain) {
    const std::string note = resolve_document_tokens(config, purpose, checkpoint_to_resume(config.checkpoint));
    const DataConfig& found = config.data;
    EXPECT_EQ(note.find("documents run together") == std::string::npos, found.bos_auto || found.bos_id || found.eos_id)
        << note;
    const nlohmann::json data = to_json(config).at("data");
    return data.at("bos_id").dump() + " " + data.at("eos_id").dump();
  }
  std::string refusal(const Config& config) const {
    return message_of<InputError>([&] { resolved(config); });
  }

  TempDir dir_;
};

TEST_F(DocumentTokensTest, AreThoseThatAllSidecarsName) {
  const std::string a = tokens("a", R"({"bos": 256, "eos": 257})"), b = tokens("b", R"({"bos": 256, "eos": 257})");
  const std::string plain = tokens("plain", ""), other = tokens("other", R"({"bos": 256, "eos": 9})");
  const std::string none = tokens("none", R"({"bos": null, "tokenizer": "t.json"})");
  EXPECT_EQ(resolved(config(a, b)), "256 257");
  EXPECT_EQ(resolved(config(plain, none)), "null null");
  EXPECT_EQ(resolved(config(a, b, ", eos_id: null, bos_id: 5")), "5 null")
      << "the config takes precedence over the sidecars";
  EXPECT_EQ(resolved(config(a, other, ", eos_id: null")), "256 null") << "eos is not asked for";
  EXPECT_EQ(resolved(config(a, b), Purpose::kSynthetic), "\"auto\" \"auto\"");
  EXPECT_EQ(resolved(config("nowhere", other), Purpose::kEvaluate), "256 9") << "only the validation data is read";
  EXPECT_EQ(resolved(config("{path: " + a + "}, {path: " + other + ", weight: 0}", "")), "256 257");

  expect_mentions(refusal(config(a, other)),
                  {a + ".json has eos 257", other + ".json has eos 9", "data.eos_id is auto"});
  expect_mentions(refusal(config(a + ", " + plain, "")), {"there is no " + plain + ".json", "bos 256"});
  expect_mentions(refusal(config(none + ", " + a, "")), {none + ".json has no bos"});
  expect_mentions(refusal(config(tokens("bad", "{"), "")), {"bad.json", "is not JSON"});
  expect_mentions(refusal(config(tokens("large", R"({"eos": 2147483648})"), "")), {"large.json", "eos 2147483648"});
  for (const char* id : {"\"256\"", "true", "1.5", "[256]", "99999999999999999999"}) {
    const std::string odd = tokens("odd", fmt::format(R"({{"bos": {}}})", id));
    expect_mentions(refusal(config(odd, "")), {"odd.json has bos ", "expected null or an id"});
  }
  expect_mentions(refusal(config(tokens("list", "[]"), "")), {"list.json: is not a JSON object"});
  EXPECT_THROW(resolved(config("nowhere", "")), UnreadableFile);
}

// The datasets of all stages are checked.
TEST_F(DocumentTokensTest, AreThoseOfEveryStage) {
  const std::string a = tokens("a", R"({"bos": 1, "eos": 2})"), b = tokens("b", R"({"bos": 1, "eos": 3})");
  write_file(dir_ / "stages.yaml",
             "data: {train: [" + a + "]}\nstages: [{steps: 1}, {steps: 1, data: {train: [" + b + "]}}]\n");
  expect_mentions(refusal(load_config(dir_ / "stages.yaml")), {"a.json has eos 2", "b.json has eos 3"});
}

}  // namespace
}  // namespace octavo
