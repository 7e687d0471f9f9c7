// Fuzzes config.json and model.safetensors.index.json of a Hugging Face directory with intact shards. The first bytes
// of the input are the length of config.json.
#include "checkpoint/weight_source.h"
#include "core/files/json_input.h"
#include "tests/fuzz/model_files.h"

namespace octavo::fuzz {
namespace {

// DIR/model has the files of the input, shards, and links to DIR/outside, whose shard must never be read.
class Files {
 public:
  Files() {
    for (const char* name : {"model", "outside"}) std::filesystem::create_directory(dir_ / name);
    write_weights(dir_ / "model/a.safetensors", kInside);
    write_weights(dir_ / "model/b.safetensors", kInside);
    write_weights(dir_ / "outside/a.safetensors", kOutside);
    std::filesystem::create_symlink("../outside/a.safetensors", dir_ / "model/l");
    std::filesystem::create_symlink("../outside", dir_ / "model/d");
    config_.emplace(path() + "/config.json");
    index_.emplace(path() + "/model.safetensors.index.json");
  }
  std::string path() const { return dir_ / "model"; }
  void set(const std::string& config, const std::string& index) {
    config_->set(config);
    index_->set(index);
  }

 private:
  ScratchDir dir_;
  std::optional<ScratchFile> config_, index_;
};

// Checks that an accepted shape is equal after it is written and read.
void check_config(const std::string& text) {
  const nlohmann::json json = parse_json(text, "config.json");
  const ModelConfig config = parse_hf_config(json, "config.json");
  config.validate();
  for (const std::string& key : ignored_hf_keys(json)) check_printed(printable(key));
  // An export writes a new file, or the file of the model with its changes.
  for (const HfMetadata& metadata : {HfMetadata{}, parse_hf_metadata({{kHfConfigName, json}})}) {
    const std::string written = make_hf_config(config, metadata, DType::kBFloat16).dump();
    require(parse_hf_config(parse_json(written, "written"), "written") == config, "what is written is read back");
  }
}

void check_model(const std::string& path) {
  HfWeights weights(path);
  check_printed(printable(weights.identity()));
  const ParameterLayout layout(weights.model_config());
  for (const ParameterSpec& spec : layout.specs()) {
    std::vector<float> values(static_cast<size_t>(spec.numel()));
    weights.read(spec.name, {}, 0, spec.numel(), values.data());
    check_values(values);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static Files files;

  Input input(bytes, size);
  const size_t config_bytes = input.take<uint16_t>();
  const std::string config = input.take_bytes(config_bytes);
  files.set(config, input.take_rest());
  accepts([&] { check_config(config); });
  accepts([&] { check_model(files.path()); });
  return 0;
}

}  // namespace octavo::fuzz
