#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "core/error.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

// Writes a file with this JSON header, without checking it, followed by `data_bytes` zero bytes.
std::string make_file(const TempDir& dir, const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string content(reinterpret_cast<const char*>(&length), sizeof(length));
  content += header + std::string(data_bytes, '\0');
  const std::string path = dir / "made.safetensors";
  write_file(path, content);
  return path;
}

void expect_refused(const std::string& path, const std::string& part) {
  expect_mentions(input_error_of([&] { SafetensorsFile file(path); }), {part, path});
}

std::string write_two_tensors(const TempDir& dir) {
  const std::string path = dir / "two.safetensors";
  const std::vector<float> first{1.0f, -2.5f, 3.25f, 4.0f, 5.0f, 6.0f};
  const std::vector<BFloat16> second{BFloat16(0.5f), BFloat16(-1.0f), BFloat16(7.0f)};
  SafetensorsWriter writer(path, {{"b", "F32", {2, 3}, 0, 0}, {"a", "BF16", {3}, 0, 0}});
  writer.write(first.data(), 12);
  writer.write(first.data() + 3, 12);
  writer.write(second.data(), 6);
  writer.commit();
  EXPECT_EQ(static_cast<int64_t>(std::filesystem::file_size(path)), writer.size_bytes());
  return path;
}

TEST(Safetensors, WritesWhatItReads) {
  const TempDir dir;
  const SafetensorsFile file(write_two_tensors(dir));
  ASSERT_EQ(file.entries().size(), 2u);
  EXPECT_EQ(file.header().size() % 8, 0u);
  const SafetensorsEntry* b = file.find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->shape, (std::vector<int64_t>{2, 3}));
  std::vector<float> values(6);
  file.read(*b, 0, 6, values.data());
  EXPECT_EQ(values, (std::vector<float>{1.0f, -2.5f, 3.25f, 4.0f, 5.0f, 6.0f}));
  float middle[2];
  file.read(*file.find("a"), 1, 3, middle);
  EXPECT_EQ(middle[0], -1.0f);
  EXPECT_EQ(middle[1], 7.0f);
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_THROW(file.read(*b, 4, 7, values.data()), Error);
}

TEST(Safetensors, IsInvisibleUntilCommitted) {
  const TempDir dir;
  const std::string path = dir / "unfinished.safetensors";
  {
    SafetensorsWriter writer(path, {{"x", "F32", {4}, 0, 0}});
    const float value = 1;
    writer.write(&value, 4);
    EXPECT_THROW(writer.finish(), Error);  // Data of 12 bytes has not been written.
  }
  EXPECT_TRUE(std::filesystem::is_empty(std::filesystem::path(path).parent_path()));
}

TEST(Safetensors, RefusesMoreBytesThanAnnouncedAndEqualNames) {
  const TempDir dir;
  SafetensorsWriter writer(dir / "x", {{"x", "U8", {2}, 0, 0}});
  EXPECT_THROW(writer.write("abc", 3), Error);
  EXPECT_THROW(SafetensorsWriter(dir / "y", {{"x", "U8", {2}, 0, 0}, {"x", "U8", {2}, 0, 0}}), Error);
}

TEST(Safetensors, ConvertsEveryDtypeUnaligned) {
  std::vector<std::byte> bytes(17);
  float out[2] = {};
  const auto convert = [&](const char* dtype, auto first, auto second) {
    std::memcpy(bytes.data() + 1, &first, sizeof(first));
    std::memcpy(bytes.data() + 1 + sizeof(first), &second, sizeof(second));
    convert_to_float32(dtype, bytes.data() + 1, 2, out, "test");
  };
  convert("F64", 0.1, -1e300);
  EXPECT_EQ(out[0], 0.1f);
  EXPECT_TRUE(std::isinf(out[1]));
  convert("I64", int64_t{-3}, int64_t{1} << 40);
  EXPECT_EQ(out[0], -3.0f);
  EXPECT_EQ(out[1], 0x1p40f);
  convert("I32", int32_t{7}, int32_t{-8});
  EXPECT_EQ(out[1], -8.0f);
  convert("U8", uint8_t{255}, uint8_t{1});
  EXPECT_EQ(out[0], 255.0f);
  // The values are the float16 nearest to 1/3 and the negative subnormal closest to zero.
  convert("F16", uint16_t{0x3555}, uint16_t{0x8001});
  EXPECT_EQ(out[0], 0x1.554p-2f);
  EXPECT_EQ(out[1], -0x1p-24f);
  convert("F16", uint16_t{0x7bff}, uint16_t{0xfc00});
  EXPECT_EQ(out[0], 65504.0f);
  EXPECT_EQ(out[1], -INFINITY);
  convert("F16", uint16_t{0x7e00}, uint16_t{0x0400});
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_EQ(out[1], 0x1p-14f);
  EXPECT_THROW(convert_to_float32("F8_E4M3", bytes.data(), 1, out, "tensor q"), InputError);
}

TEST(Safetensors, ReadsUnpaddedHeadersAndScalars) {
  const TempDir dir;
  const SafetensorsFile file(make_file(dir, R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4));
  float value = 1;
  file.read(*file.find("s"), 0, 1, &value);
  EXPECT_EQ(value, 0.0f);
}

TEST(Safetensors, RefusesEveryTruncation) {
  const TempDir dir;
  const std::string whole = read_whole_file(write_two_tensors(dir));
  const std::string path = dir / "cut.safetensors";
  for (size_t length = 0; length < whole.size(); ++length) {
    write_file(path, whole.substr(0, length));
    expect_refused(path, path);
  }
  write_file(path, whole + "x");
  expect_refused(path, "after its last tensor");
}

TEST(Safetensors, RefusesForeignAndInconsistentFiles) {
  const TempDir dir;
  expect_refused(dir / "none", "none");
  write_file(dir / "text", "This is a text file that is no safetensors file.");
  expect_refused(dir / "text", "not a safetensors file");
  expect_refused(make_file(dir, "[1, 2]", 0), "not a JSON object");
  expect_refused(make_file(dir, "{\"a\": ", 0), "not JSON");
  expect_refused(make_file(dir, R"({"a":{"dtype":"F32","shape":[2]}})", 8), "tensor a");
  expect_refused(make_file(dir, R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", 8), "F31");
  expect_refused(make_file(dir, R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8), "12 bytes");
  expect_refused(make_file(dir, R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4),
                 "tensor a: its shape is -1");
  expect_refused(make_file(dir, R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,0]}})", 0),
                 "impossible");
  const std::string a = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)";
  expect_refused(make_file(dir, a + R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12), "overlap");
  expect_refused(make_file(dir, a + R"("b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})", 16), "gap");
}

TEST(Safetensors, ReadsFilesOfTheReferenceLibrary) {
  const SafetensorsFile file(std::string(OCTAVO_SOURCE_DIR) + "/tests/golden/gqa/model.safetensors");
  const SafetensorsEntry* head = file.find("lm_head.weight");
  ASSERT_NE(head, nullptr);
  EXPECT_EQ(head->dtype, "F32");
  std::vector<float> values(static_cast<size_t>(head->numel()));
  file.read(*head, 0, head->numel(), values.data());
  double sum_of_squares = 0;
  for (const float value : values) sum_of_squares += static_cast<double>(value) * static_cast<double>(value);
  // The weights were drawn with a standard deviation of 0.05, so a wrong offset or dtype would change the result.
  EXPECT_NEAR(std::sqrt(sum_of_squares / static_cast<double>(values.size())), 0.05, 0.005);
}

}  // namespace
}  // namespace octavo
