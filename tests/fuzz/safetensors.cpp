// Fuzzes a safetensors file. The first bytes of the input are the length of its header and what is repaired first.
#include "checkpoint/safetensors.h"

#include <nlohmann/json.hpp>

#include "core/files/json_input.h"
#include "tests/fuzz/fuzz_target.h"

namespace octavo::fuzz {
namespace {

constexpr size_t kMostBytes = size_t{1} << 16;

enum Mend : unsigned { kMendLength = 1, kMendOffsets = 2, kMendData = 4 };

// Sets the offsets so that the tensors are adjacent, with lengths that follow from their shapes. Returns the total
// number of bytes.
int64_t mend_offsets(nlohmann::json& header) {
  int64_t end = 0;
  for (auto& [name, entry] : header.items()) {
    if (!entry.is_object() || !entry.contains("data_offsets") || !entry.contains("shape")) continue;
    const std::string dtype = entry.value("dtype", nlohmann::json()).dump();
    int64_t bytes = dtype.find("64") != std::string::npos   ? 8
                    : dtype.find("32") != std::string::npos ? 4
                    : dtype.find("16") != std::string::npos ? 2
                                                            : 1;
    for (const nlohmann::json& size : entry["shape"]) {
      if (size.is_number_unsigned()) bytes *= static_cast<int64_t>(size.get<uint64_t>() % 61);
    }
    bytes %= static_cast<int64_t>(kMostBytes);
    entry["data_offsets"] = {end, end + bytes};
    end += bytes;
  }
  return end;
}

std::string make_file(unsigned mended, size_t header_bytes, Input& input) {
  std::string header = input.take_bytes(header_bytes), data = input.take_rest();
  uint64_t length = header.size();
  const auto mend_json = [&] {
    nlohmann::json json = parse_json(header, "header");
    const auto bytes = static_cast<size_t>(mend_offsets(json));
    if (mended & kMendData) data.resize(std::min(bytes, kMostBytes), '\1');
    header = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    length = header.size();
  };
  if (mended & kMendOffsets) accepts(mend_json);
  if (!(mended & kMendLength)) return header + data;
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header + data;
}

// Checks that the entries cover the data exactly once, and that two halves of a tensor equal the whole.
void check_entries(const SafetensorsFile& file, size_t size) {
  size_t bytes = 8 + file.header().size();
  for (const auto& found : file.entries()) {
    const SafetensorsEntry& entry = found.second;
    require(entry.name == found.first && file.find(found.first) == &entry, "an entry is found by its name");
    bytes += file.bytes(entry).size();
    const int64_t count = entry.numel();
    require(count <= static_cast<int64_t>(size), "an element has a byte at least");
    std::vector<float> whole(static_cast<size_t>(count)), halves(whole);
    if (!accepts([&] { file.read(entry, 0, count, whole.data()); })) continue;  // Some dtypes are not converted.
    file.read(entry, 0, count / 2, halves.data());
    file.read(entry, count / 2, count, halves.data() + count / 2);
    require(count == 0 || std::memcmp(whole.data(), halves.data(), whole.size() * sizeof(float)) == 0,
            "halves make the whole");
    require(!accepts([&] { file.read(entry, 0, count + 1, whole.data()); }), "nothing is read behind the end");
  }
  require(bytes == size, "the file is its header and its tensors");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const ScratchDir dir;
  static const std::string path = dir / "t.safetensors";
  static ScratchFile scratch(path);

  Input input(bytes, size);
  const unsigned mended = input.take<uint8_t>();
  const size_t header_bytes = input.take<uint16_t>();
  const std::string content = make_file(mended, header_bytes, input);
  scratch.set(content);
  accepts([&] {
    const SafetensorsFile file(path);
    check_entries(file, content.size());
  });
  return 0;
}

}  // namespace octavo::fuzz
