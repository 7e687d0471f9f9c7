#include "app/records/tensorboard.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <filesystem>

#include "app/process/runtime.h"
#include "core/error.h"
#include "parallel/ranks/machines.h"

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
std::string raw(T value) {
  const auto bytes = std::bit_cast<std::array<char, sizeof(T)>>(value);
  return {bytes.data(), bytes.size()};
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>((value & 0x7f) | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

// Protobuf's wire types. Every field starts with (number << 3 | wire type).
enum class Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string field_key(uint32_t field, Wire wire) { return varint(field << 3 | static_cast<uint32_t>(wire)); }

template <typename T>
std::string fixed_field(uint32_t field, T value) {
  return field_key(field, sizeof(T) == sizeof(uint64_t) ? Wire::kFixed64 : Wire::kFixed32) + raw(value);
}

std::string bytes_field(uint32_t field, std::string_view bytes) {
  return field_key(field, Wire::kBytes) + varint(bytes.size()) + std::string(bytes);
}

std::string event_with_time() {
  const std::chrono::duration<double> since_epoch = std::chrono::system_clock::now().time_since_epoch();
  return fixed_field(1, since_epoch.count());
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
  write_record(event_with_time() + bytes_field(3, "brain.Event:2"));
}

void TensorBoardWriter::write(int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    summary += bytes_field(1, bytes_field(1, scalar.tag) + fixed_field(2, static_cast<float>(scalar.value)));
  }
  const std::string step_field = field_key(2, Wire::kVarint) + varint(static_cast<uint64_t>(step));
  write_record(event_with_time() + step_field + bytes_field(5, summary));
}

void TensorBoardWriter::write_record(std::string_view event) {
  const std::string length = raw(static_cast<uint64_t>(event.size()));
  file_.write(length + raw(masked_crc(length)) + std::string(event) + raw(masked_crc(event)));
}

}  // namespace octavo
