// Tests of manifests that have a valid checksum and impossible values.
#include <functional>
#include <limits>

#include "tests/checkpoint/checkpoint_fixture.h"

namespace octavo {
namespace {

using Json = nlohmann::json;

class HostileManifestTest : public CheckpointTest {
 protected:
  // Returns the message with which the manifest of an intact checkpoint is refused after `change` edits it. The
  // checksum is updated after the edit.
  std::string refusal(const std::function<void(Json&)>& change) {
    State state(1);
    save(5, state);
    edit_manifest(5, change);
    return message_of<DamagedCheckpoint>([&] { Checkpoint(step_path(5)).describe(); });
  }

  void expect_refused(const char* pointer, const Json& value) {
    const std::string message = refusal([&](Json& json) { json[Json::json_pointer(pointer)] = value; });
    expect_mentions(message, {"manifest.json: is not a valid manifest: "});
    EXPECT_EQ(message.find("json.exception"), std::string::npos) << message;
    EXPECT_LT(message.size(), 500u) << message;
  }
};

const std::vector<Json>& no_size() {
  static const std::vector<Json> values{0,
                                        -1,
                                        1.5,
                                        1e300,
                                        nullptr,
                                        "1",
                                        Json::array({1}),
                                        Json::object(),
                                        true,
                                        std::numeric_limits<int64_t>::max(),
                                        uint64_t{1} << 63,
                                        std::numeric_limits<uint64_t>::max()};
  return values;
}

TEST_F(HostileManifestTest, ModelsThatCannotExist) {
  for (const char* field :
       {"hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab_size"}) {
    for (const Json& value : no_size()) expect_refused(fmt::format("/model/{}", field).c_str(), value);
  }
  expect_refused("/model/num_kv_heads", 255);
  expect_refused("/model/num_layers", int64_t{1} << 32);
  expect_refused("/model/num_layers", 4);  // The manifest lists only 3 tensors.
  expect_refused("/model/rope_theta", "x");
  expect_refused("/model/rope_scaling", 1);
  expect_refused("/model/rms_norm_eps", -1);
  expect_refused("/model/tie_word_embeddings", 1);
  expect_refused("/model", nullptr);
}

TEST_F(HostileManifestTest, TensorsThatCannotExist) {
  for (const Json& value : no_size()) {
    if (value != 0) expect_refused("/tensors/0/pieces/0/begin", value);
    expect_refused("/tensors/0/pieces/0/end", value);
    expect_refused("/tensors/0/shape/0", value);
    expect_refused("/tensors/0/shape", value);
  }
  expect_refused("/tensors/0/shape", Json::array({-7, -5}));
  expect_refused("/tensors/0/shape", Json::array({int64_t{1} << 32, int64_t{1} << 32, 35}));
  expect_refused("/tensors/0/pieces", Json::array());
  expect_refused("/tensors/0/pieces/0/columns", Json::array({0, 6}));
  expect_refused("/tensors/0/pieces/0/columns", Json::array({uint64_t{1} << 63, 1}));
  expect_refused("/tensors/0/dtype", "float7");
  expect_refused("/tensors/0/name", 5);
  expect_refused("/tensors", Json::array());
  expect_refused("/shards/0/file", "../../etc/passwd");
  expect_refused("/shards/0/bytes", -1);
}

TEST_F(HostileManifestTest, TheRest) {
  for (const char* pointer : {"/mesh/ranks", "/mesh"}) {
    for (const Json& value : no_size()) expect_refused(pointer, value);
  }
  expect_refused("/step", -1);
  expect_refused("/step", uint64_t{1} << 63);
  expect_refused("/meta", "text");
  expect_refused("/meta/tokens", "many");
  expect_refused("/meta/bfloat16_until", "x");
}

// Parts of these manifests are missing, as if a save had been incomplete.
TEST_F(HostileManifestTest, Holes) {
  expect_refused("/shards", Json::array());
  expect_refused("/shards/0/header_xxh3", "");
  expect_refused("/tensors/0/pieces/0/xxh3", "");
  expect_refused("/tensors/0/pieces/0/file", "rank_00001.safetensors");
}

}  // namespace
}  // namespace octavo
