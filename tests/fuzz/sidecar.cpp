// Fuzzes PREFIX.json next to an intact token file.
#include "data/sidecar.h"

#include <nlohmann/json.hpp>

#include "data/inspect.h"
#include "data/tokens/token_writer.h"
#include "tests/fuzz/fuzz_target.h"

namespace octavo::fuzz {
namespace {

constexpr int64_t kDocuments = 2, kTokens = 5;

std::string write_tokens(const std::string& prefix) {
  TokenFileWriter writer(prefix, TokenDtype::kU16);
  writer.add_document(std::array<int32_t, 3>{5, 6, 7});
  writer.add_document(std::array<int32_t, 2>{5, 6});
  writer.finish();
  return prefix;
}

// Checks that a description is intact exactly if it lists no problem, and that an intact sidecar has the counts of the
// file.
void check_description(const nlohmann::ordered_json& json) {
  require(json["intact"] == json["problems"].empty(), "what has a problem is not intact");
  const auto& sidecar = json["sidecar"];
  if (sidecar.is_null() || json["intact"] != true) return;
  for (const auto& [key, count] : {std::pair("documents", kDocuments), std::pair("tokens", kTokens)}) {
    if (!sidecar.contains(key) || !sidecar[key].is_number_integer()) continue;
    require(sidecar[key] == count, "an intact sidecar has the counts of the file");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const ScratchDir dir;
  static const std::string prefix = write_tokens(dir / "t");
  static ScratchFile file(prefix + ".json");

  file.set({reinterpret_cast<const char*>(bytes), size});
  const nlohmann::ordered_json json = inspect_token_file(prefix);
  check_description(json);
  (void)json.dump(2);
  (void)accepts([] { check_parts({prefix}); });
  return 0;
}

}  // namespace octavo::fuzz
