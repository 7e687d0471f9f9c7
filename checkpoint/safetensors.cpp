#include "checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/files/json_input.h"

namespace octavo {
namespace {

// Key in the metadata of files that Octavo writes.
constexpr const char* kProducerKey = "producer";
constexpr const char* kProducer = "octavo";

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr int64_t kMaxHeaderBytes = 100'000'000;  // Maximum size of a header that the format allows.

// IEEE half precision has 1 sign, 5 exponent (bias 15) and 10 mantissa bits.
float half_to_float(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  float magnitude;
  if (exponent == 31) {
    magnitude = mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  }
  return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
}

template <typename T, typename Convert>
void convert_elements(const std::byte* source, int64_t count, float* out, Convert convert) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, source + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    out[i] = convert(value);
  }
}

template <typename T>
void cast_elements(const std::byte* source, int64_t count, float* out) {
  convert_elements<T>(source, count, out, [](T value) { return static_cast<float>(value); });
}

// A dtype of the format.
struct StoredDType {
  std::string_view name;
  int64_t bytes;
  // Converts elements to float32. Null if that is not supported.
  void (*to_float32)(const std::byte* source, int64_t count, float* out) = nullptr;
};

constexpr StoredDType kStoredDTypes[] = {
    {"F64", 8, cast_elements<double>},
    {"F32", 4,
     [](const std::byte* s, int64_t n, float* out) { std::copy_n(s, 4 * n, reinterpret_cast<std::byte*>(out)); }},
    {"F16", 2, [](const std::byte* s, int64_t n, float* out) { convert_elements<uint16_t>(s, n, out, half_to_float); }},
    {"BF16", 2, cast_elements<BFloat16>},
    {"F8_E4M3", 1},
    {"F8_E5M2", 1},
    {"I64", 8, cast_elements<int64_t>},
    {"I32", 4, cast_elements<int32_t>},
    {"I16", 2},
    {"I8", 1},
    {"U64", 8},
    {"U32", 4},
    {"U8", 1, cast_elements<uint8_t>},
    {"BOOL", 1},
};

// Returns null for a dtype that the format does not have.
const StoredDType* find_dtype(std::string_view name) {
  const auto* found = std::ranges::find(kStoredDTypes, name, &StoredDType::name);
  return found == std::end(kStoredDTypes) ? nullptr : found;
}

// Returns the product of the dimensions, or -1 if one is negative or the product does not fit.
int64_t checked_numel(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count)) return -1;
  }
  return count;
}

SafetensorsEntry parse_entry(const std::string& path, const std::string& name, const nlohmann::json& value) {
  SafetensorsEntry entry;
  entry.name = name;
  const std::string where = fmt::format("{}: tensor {}", path, name);
  try {
    entry.dtype = value.at("dtype").get<std::string>();
    for (const nlohmann::json& size : value.at("shape")) entry.shape.push_back(as_integer(size, where + ": its shape"));
    const nlohmann::json& offsets = value.at("data_offsets");
    CHECK_INPUT(offsets.is_array() && offsets.size() == 2, "{}: data_offsets are {}, expected a list of 2", where,
                offsets.dump());
    entry.begin_byte = as_integer(offsets[0], where + ": a data offset");
    entry.end_byte = as_integer(offsets[1], where + ": a data offset");
  } catch (const nlohmann::json::exception& error) {
    throw InputError(fmt::format("{}: its header entry is not valid: {}", where, reason_of(error)));
  }
  const StoredDType* dtype = find_dtype(entry.dtype);
  CHECK_INPUT(dtype != nullptr, "{}: tensor {} has the unknown dtype {}", path, name, entry.dtype);
  const int64_t numel = checked_numel(entry.shape);
  int64_t expected = 0;
  CHECK_INPUT(numel >= 0 && !__builtin_mul_overflow(numel, dtype->bytes, &expected),
              "{}: tensor {} has the impossible shape {}", path, name, describe_shape(entry.shape));
  CHECK_INPUT(
      entry.begin_byte >= 0 && entry.end_byte >= entry.begin_byte && entry.end_byte - entry.begin_byte == expected,
      "{}: tensor {} is {} {} of {} bytes, but its data_offsets are {} to {}", path, name, entry.dtype,
      describe_shape(entry.shape), expected, entry.begin_byte, entry.end_byte);
  return entry;
}

}  // namespace

const char* safetensors_dtype(DType dtype) {
  constexpr const char* kNames[] = {"F32", "BF16", "I32", "U8", "F8_E4M3", "F8_E5M2"};  // In the order of DType.
  return kNames[static_cast<size_t>(dtype)];
}

void convert_to_float32(std::string_view dtype, const std::byte* source, int64_t count, float* out,
                        const std::string& where) {
  const StoredDType* stored = find_dtype(dtype);
  CHECK_INPUT(stored != nullptr && stored->to_float32 != nullptr,
              "{} has the dtype {}, expected one of F64, F32, F16, BF16, I64, I32, U8", where, dtype);
  stored->to_float32(source, count, out);
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  parse_header();
  check_ranges();
}

std::string_view SafetensorsFile::header() const {
  return {reinterpret_cast<const char*>(file_.data()) + kSafetensorsLengthBytes, static_cast<size_t>(header_bytes_)};
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

std::span<const std::byte> SafetensorsFile::bytes(const SafetensorsEntry& entry) const {
  return {file_.data() + kSafetensorsLengthBytes + header_bytes_ + entry.begin_byte,
          static_cast<size_t>(entry.end_byte - entry.begin_byte)};
}

void SafetensorsFile::read(const SafetensorsEntry& entry, int64_t begin, int64_t end, float* out) const {
  CHECK(0 <= begin && begin <= end && end <= entry.numel(), "{}: elements {} to {} do not exist in tensor {} {}",
        path(), begin, end, entry.name, describe_shape(entry.shape));
  convert_to_float32(entry.dtype, bytes(entry).data() + begin * find_dtype(entry.dtype)->bytes, end - begin, out,
                     fmt::format("{}: tensor {}", path(), entry.name));
}

void SafetensorsFile::parse_header() {
  CHECK_INPUT(size_bytes() >= kSafetensorsLengthBytes, "{}: is {} bytes long, too short for a safetensors file", path(),
              size_bytes());
  uint64_t length = 0;
  std::memcpy(&length, file_.data(), sizeof(length));
  CHECK_INPUT(length <= kMaxHeaderBytes,
              "{}: is not a safetensors file: its first 8 bytes announce a header of {} bytes", path(), length);
  header_bytes_ = static_cast<int64_t>(length);
  CHECK_INPUT(kSafetensorsLengthBytes + header_bytes_ <= size_bytes(),
              "{}: is truncated or not a safetensors file: {} bytes, but its header alone should have {}", path(),
              size_bytes(), header_bytes_);
  const nlohmann::json json = parse_json(header(), path() + ": its header");
  CHECK_INPUT(json.is_object(), "{}: is not a safetensors file: its header is not a JSON object", path());
  for (const auto& [name, value] : json.items()) {
    if (name != "__metadata__") {
      entries_.emplace(name, parse_entry(path(), name, value));
    } else {
      is_ours_ = value.is_object() && value.contains(kProducerKey) && value.at(kProducerKey) == kProducer;
    }
  }
}

void SafetensorsFile::check_ranges() const {
  std::vector<const SafetensorsEntry*> ordered;
  for (const auto& [name, entry] : entries_) ordered.push_back(&entry);
  std::ranges::sort(ordered, {}, [](const SafetensorsEntry* e) { return std::pair(e->begin_byte, e->end_byte); });
  int64_t next = 0;
  for (const SafetensorsEntry* entry : ordered) {
    CHECK_INPUT(entry->begin_byte == next, "{}: tensor {} starts at byte {} of the data, expected {} (a {})", path(),
                entry->name, entry->begin_byte, next, entry->begin_byte < next ? "overlap" : "gap");
    next = entry->end_byte;
  }
  const int64_t data_bytes = size_bytes() - kSafetensorsLengthBytes - header_bytes_;
  CHECK_INPUT(next == data_bytes, "{}: {}: its tensors take {} bytes, the file has {} for them", path(),
              next > data_bytes ? "is truncated" : "has bytes after its last tensor", next, data_bytes);
}

std::string begin_safetensors(std::vector<SafetensorsEntry>& entries) {
  // An ordered JSON object, so that the tensors appear in the order of their offsets, as other programs write them.
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}, {kProducerKey, kProducer}};
  int64_t end = 0;
  for (SafetensorsEntry& entry : entries) {
    CHECK(!header.contains(entry.name), "tensor {} is written twice to one safetensors file", entry.name);
    entry.begin_byte = end;
    end += entry.numel() * find_dtype(entry.dtype)->bytes;
    entry.end_byte = end;
    header[entry.name] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin_byte, entry.end_byte}}};
  }
  std::string text(kSafetensorsLengthBytes, '\0');
  text += header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size() - kSafetensorsLengthBytes;
  std::memcpy(text.data(), &length, sizeof(length));
  return text;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> entries)
    : beginning_(begin_safetensors(entries)), data_bytes_(entries.empty() ? 0 : entries.back().end_byte), file_(path) {
  file_.write(beginning_);
}

void SafetensorsWriter::write(const void* bytes, int64_t count) {
  written_bytes_ += count;
  CHECK(written_bytes_ <= data_bytes_, "{}: more bytes were written than the {} in the header", file_.path(),
        data_bytes_);
  file_.write(bytes, static_cast<size_t>(count));
}

void SafetensorsWriter::finish() {
  CHECK(written_bytes_ == data_bytes_, "{}: {} bytes of tensors were written, but the header says {}", file_.path(),
        written_bytes_, data_bytes_);
  file_.finish();
}

}  // namespace octavo
