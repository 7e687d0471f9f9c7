// Fuzzes manifest.json of a checkpoint. The first byte of the input selects what is repaired first: the checksum of the
// manifest, without which nearly every input would be refused, and the checksums of the shard.
#include "checkpoint/weight_source.h"
#include "core/files/checksum.h"
#include "core/files/json_input.h"
#include "tests/fuzz/model_files.h"

namespace octavo::fuzz {
namespace {

constexpr int64_t kReadElements = 4096;

enum Mend : unsigned { kMendChecksum = 1, kMendShards = 2, kMendPieces = 4 };

std::string checksum_of(std::string_view bytes) {
  return checksum_hex(bytes.data(), static_cast<int64_t>(bytes.size()));
}

// DIR/step_00000001 has a shard, an attached file, and links to DIR/outside, which has files of the same names that
// must never be read.
class Files {
 public:
  Files() {
    for (const char* name : {"step_00000001", "outside"}) std::filesystem::create_directory(dir_ / name);
    write_weights(dir_ / "step_00000001/rank_00000.safetensors", kInside);
    write_weights(dir_ / "outside/rank_00000.safetensors", kOutside);
    ScratchFile(dir_ / "step_00000001/tokenizer.json").set("inside");
    ScratchFile(dir_ / "outside/tokenizer.json").set("outside");
    std::filesystem::create_symlink("../outside/rank_00000.safetensors", dir_ / "step_00000001/l");
    std::filesystem::create_symlink("../outside", dir_ / "step_00000001/d");
    shard_.emplace(dir_ / "step_00000001/rank_00000.safetensors");
    outside_.emplace(dir_ / "outside/rank_00000.safetensors");
    manifest_.emplace(path() + "/manifest.json");
  }
  std::string path() const { return dir_ / "step_00000001"; }
  const SafetensorsFile& shard() const { return *shard_; }
  // Returns the shard inside the checkpoint or, for the name of a link, the one outside.
  const SafetensorsFile& shard(const nlohmann::json& name) const {
    return name == "rank_00000.safetensors" ? *shard_ : *outside_;
  }
  void set_manifest(const std::string& text) { manifest_->set(text); }

 private:
  ScratchDir dir_;
  std::optional<SafetensorsFile> shard_, outside_;
  std::optional<ScratchFile> manifest_;
};

void mend_shards(nlohmann::json& json, const SafetensorsFile& shard) {
  if (!json.contains("shards")) return;
  for (nlohmann::json& listed : json["shards"]) {
    if (!listed.is_object()) continue;
    listed["bytes"] = shard.size_bytes();
    listed["header_xxh3"] = checksum_of(shard.header());
  }
}

void mend_pieces(nlohmann::json& json, const Files& files) {
  if (!json.contains("tensors")) return;
  for (nlohmann::json& tensor : json["tensors"]) {
    if (!tensor.is_object() || !tensor.contains("pieces")) continue;
    for (nlohmann::json& piece : tensor["pieces"]) {
      if (!piece.is_object() || !piece.value("key", nlohmann::json()).is_string()) continue;
      const SafetensorsFile& shard = files.shard(piece.value("file", nlohmann::json()));
      const SafetensorsEntry* entry = shard.find(piece["key"].get<std::string>());
      if (entry == nullptr) continue;
      const auto stored = shard.bytes(*entry);
      piece["xxh3"] = checksum_of({reinterpret_cast<const char*>(stored.data()), stored.size()});
    }
  }
}

std::string mended_manifest(unsigned mended, const std::string& text, const Files& files) {
  std::string manifest = text;
  accepts([&] {
    nlohmann::json json = parse_json(text, "manifest");
    if (!json.is_object()) return;
    if (mended & kMendShards) mend_shards(json, files.shard());
    if (mended & kMendPieces) mend_pieces(json, files);
    json.erase("xxh3");
    if (mended & kMendChecksum) json["xxh3"] = checksum_of(json.dump());
    manifest = json.dump();
  });
  return manifest;
}

void check_tensors(Checkpoint& checkpoint) {
  for (const CheckpointTensorInfo& tensor : checkpoint.tensors()) {
    const int64_t count = std::min(tensor.numel(), kReadElements);
    std::vector<float> values(static_cast<size_t>(count));
    if (accepts([&] { checkpoint.read(tensor.name, {}, 0, count, values.data()); })) check_values(values);
  }
  for (const ListedFile& file : checkpoint.files()) {
    accepts([&] { require(checkpoint.read_file(file) == "inside", "a file that is attached lies inside"); });
  }
}

// Reads weights of the shape that the manifest gives and checks them.
void check_weights(const std::string& path) {
  CheckpointWeights weights{Checkpoint(path)};
  const ParameterLayout layout(weights.model_config());
  for (const ParameterSpec& spec : layout.specs()) {
    const int64_t count = std::min(spec.numel(), kReadElements);
    std::vector<float> values(static_cast<size_t>(count));
    if (accepts([&] { weights.read(spec.name, {}, 0, count, values.data()); })) check_values(values);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static Files files;

  Input input(bytes, size);
  const unsigned mended = input.take<uint8_t>();
  files.set_manifest(mended_manifest(mended, input.take_rest(), files));
  accepts([&] {
    Checkpoint checkpoint(files.path());
    check_tensors(checkpoint);
    check_printed(printable_json(checkpoint.describe(), 2));
    check_weights(files.path());
  });
  return 0;
}

}  // namespace octavo::fuzz
