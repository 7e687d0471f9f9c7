// Fuzzes a YAML config. Each zero byte of the input begins an override of the command line.
#include "app/config/config.h"

#include "core/printable.h"
#include "tests/fuzz/fuzz_target.h"

namespace octavo::fuzz {
namespace {

std::vector<std::string> split_at_zeros(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0, end = 0; begin <= text.size(); begin = end + 1) {
    end = std::min(text.find('\0', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
  }
  return parts;
}

// Checks that all values survive a round trip through YAML and through the JSON of a checkpoint.
void check_round_trip(const Config& config, ScratchFile& file, const std::string& path) {
  const nlohmann::json json = to_json(config);
  const std::string yaml = to_yaml(config);
  file.set(yaml);
  require(to_json(load_config(path)) == json, "the YAML of a config is read back as the same");
  require(to_json(config_from_json(nlohmann::json::parse(json.dump()))) == json, "so is its JSON");
  std::string lines = yaml;
  std::replace(lines.begin(), lines.end(), '\n', ' ');
  require(printable(lines, 4 * lines.size()) == lines, "it has no control characters");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const ScratchDir dir;
  static const std::string path = dir / "config.yaml";
  static ScratchFile file(path);

  std::vector<std::string> parts = split_at_zeros({reinterpret_cast<const char*>(bytes), size});
  file.set(parts.front());
  parts.erase(parts.begin());
  std::optional<Config> config;
  if (accepts([&] { config = load_config(path, parts); })) check_round_trip(*config, file, path);
  return 0;
}

}  // namespace octavo::fuzz
