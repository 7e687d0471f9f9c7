#include "app/records/tensorboard.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <filesystem>

#include "app/process/runtime.h"
#include "core/error.h"

namespace octavo {

namespace {

static_assert(std::endian::native == std::endian::little, "the records below are written in host byte order");

constexpr uint32_t kCrcMaskDelta = 0xa282ead8u;
constexpr uint32_t kReflectedCastagnoli = 0x82f63b78u;

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) ? kReflectedCastagnoli : 0u);
    table[byte] = remainder;
  }
  return table;
}

uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + kCrcMaskDelta; }

template <typename T>
void append_raw(std::string& out, T value) {
  const auto bytes = std::bit_cast<std::array<char, sizeof(T)>>(value);
  out.append(bytes.data(), bytes.size());
}

// Protobuf's encoding: every field starts with (number << 3 | wire type).
enum class Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7f) | 0x80));
  out.push_back(static_cast<char>(value));
}

void append_key(std::string& out, uint32_t field, Wire wire) {
  append_varint(out, field << 3 | static_cast<uint32_t>(wire));
}

void append_bytes_field(std::string& out, uint32_t field, std::string_view bytes) {
  append_key(out, field, Wire::kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

std::string event_with_time() {
  const std::chrono::duration<double> since_epoch = std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  append_key(event, 1, Wire::kFixed64);
  append_raw(event, since_epoch.count());
  return event;
}

std::string new_event_path(const std::string& dir) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  const std::string name = fmt::format("{}/events.out.tfevents.{:010}.{}.{}", dir, seconds, host_name(), ::getpid());
  std::string path = name;
  for (int suffix = 1; std::filesystem::exists(path); ++suffix) path = fmt::format("{}.{}", name, suffix);
  return path;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = make_crc_table();
  uint32_t crc = 0xffffffffu;
  for (const char byte : bytes) crc = kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

TensorBoardWriter::TensorBoardWriter(const std::string& dir) : file_(new_event_path(dir)) {
  std::string event = event_with_time();
  append_bytes_field(event, 3, "brain.Event:2");
  write_record(event);
}

void TensorBoardWriter::write(int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    append_bytes_field(value, 1, scalar.tag);
    append_key(value, 2, Wire::kFixed32);
    append_raw(value, static_cast<float>(scalar.value));
    append_bytes_field(summary, 1, value);
  }
  write_summary(step, summary);
}

void TensorBoardWriter::write_text(int64_t step, const std::string& tag, std::string_view markdown) {
  constexpr uint64_t kStringType = 7;
  std::string dim;
  append_key(dim, 1, Wire::kVarint);
  append_varint(dim, 1);
  std::string shape;
  append_bytes_field(shape, 2, dim);
  std::string tensor;
  append_key(tensor, 1, Wire::kVarint);
  append_varint(tensor, kStringType);
  append_bytes_field(tensor, 2, shape);
  append_bytes_field(tensor, 8, markdown);
  std::string plugin;
  append_bytes_field(plugin, 1, "text");
  std::string metadata;
  append_bytes_field(metadata, 1, plugin);
  std::string value;
  append_bytes_field(value, 1, tag);
  append_bytes_field(value, 8, tensor);
  append_bytes_field(value, 9, metadata);
  std::string summary;
  append_bytes_field(summary, 1, value);
  write_summary(step, summary);
}

void TensorBoardWriter::write_summary(int64_t step, std::string_view summary) {
  std::string event = event_with_time();
  append_key(event, 2, Wire::kVarint);
  append_varint(event, static_cast<uint64_t>(step));
  append_bytes_field(event, 5, summary);
  write_record(event);
}

void TensorBoardWriter::write_record(std::string_view event) {
  std::string length;
  append_raw(length, static_cast<uint64_t>(event.size()));
  std::string record = length;
  append_raw(record, masked_crc(length));
  record += event;
  append_raw(record, masked_crc(event));
  file_.write(record);
}

}  // namespace octavo
