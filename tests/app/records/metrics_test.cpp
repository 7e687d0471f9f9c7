// Tests of the console line, metrics.jsonl and TensorBoard event files. The tests decode the event files with an
// independent reader.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "app/records/append_file.h"
#include "app/records/metric_row.h"
#include "app/records/metrics_writer.h"
#include "app/records/tensorboard.h"
#include "core/error.h"
#include "core/format.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

class MetricsTest : public testing::Test {
 protected:
  static std::string read(const fs::path& path) { return read_whole_file(path.string()); }

  static MetricsWriter writer(const std::string& dir, std::optional<int64_t> resumes_after = {},
                              bool tensorboard = false) {
    return {dir, open_metric_sinks({.dir = dir, .tensorboard = tensorboard}), resumes_after};
  }

  TempDir scratch_;
  const fs::path dir_ = fs::path(scratch_ / "").parent_path();
};

MetricRow example() {
  MetricRow row(100, 2000);
  row.set("loss", 3.21449);
  row.set("grad_norm", 0.8121);
  row.set("lr", 3e-4);
  row.set("tokens", 104857600);
  row.set("wps", 16431.6);
  row.set("mfu", 0.9623);
  row.set("mfu_causal", 0.8431);
  row.set("utilization", 0.5517);
  row.set("tflops", 951.7);
  row.set("step_ms", 997.2);
  row.set("data_ms", 0.4);
  row.set("memory_gib", 71.28);
  row.set("goodput", 0.93);
  return row;
}

TEST_F(MetricsTest, ConsoleLineIsTheDesigns) {
  EXPECT_EQ(
      console_line(example(), 31 * 60 + 20),
      "step 100/2000  loss 3.2145  grad_norm 0.812  lr 3.00e-04  wps 16,432  mfu 96.2%  mem 71.3 GiB  step 997 ms  "
      "eta 31m  utilization 55.2%");
  MetricRow row = example();
  row.set("mfu", std::nullopt);
  row.set("mfu_causal", std::nullopt);
  row.set("utilization", std::nullopt);
  row.set("step_ms", 12345.6);
  row.set("validation_loss", 2.5);
  // The sign of NaN is not shown.
  row.set("loss", std::copysign(std::numeric_limits<double>::quiet_NaN(), -1.0));
  row.set("grad_norm", -std::numeric_limits<double>::infinity());
  EXPECT_EQ(console_line(row, 0),
            "step 100/2000  loss nan  grad_norm -inf  lr 3.00e-04  wps 16,432  mem 71.3 GiB  step 12,346 ms  "
            "eta 0s  validation_loss 2.5000");
}

TEST_F(MetricsTest, NumbersAndDurations) {
  EXPECT_EQ(with_thousands_separators(0), "0");
  EXPECT_EQ(with_thousands_separators(999), "999");
  EXPECT_EQ(with_thousands_separators(1000), "1,000");
  EXPECT_EQ(with_thousands_separators(-123456), "-123,456");
  EXPECT_EQ(with_thousands_separators(1234567890), "1,234,567,890");
  EXPECT_EQ(format_duration(42.4), "42s");
  EXPECT_EQ(format_duration(59.9), "1m");
  EXPECT_EQ(format_duration(5 * 3600 + 12 * 60), "5h 12m");
  EXPECT_EQ(format_duration(100 * 3600), "4d 4h");
  EXPECT_EQ(format_duration(-1), "-");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "-");
}

TEST_F(MetricsTest, JsonHasTheMetricsThatAreSet) {
  MetricRow row = example();
  row.set("validation_loss", 3.5);
  row.set("mfu", std::nullopt);
  const nlohmann::ordered_json json = nlohmann::ordered_json::parse(metrics_json(row));
  const std::vector<std::string> expected = {
      "step",        "loss",   "grad_norm", "lr",      "tokens",     "wps",     "mfu_causal",
      "utilization", "tflops", "step_ms",   "data_ms", "memory_gib", "goodput", "validation_loss"};
  std::vector<std::string> keys;
  for (const auto& item : json.items()) keys.push_back(item.key());
  EXPECT_EQ(keys, expected);
  EXPECT_EQ(json["step"], 100);
  EXPECT_EQ(json["tokens"], 104857600);
  EXPECT_EQ(json["loss"].get<double>(), 3.21449);
}

TEST_F(MetricsTest, NonfiniteValuesStayValidJson) {
  MetricRow row = example();
  row.set("loss", std::numeric_limits<double>::quiet_NaN());
  row.set("grad_norm", std::numeric_limits<double>::infinity());
  const nlohmann::json json = nlohmann::json::parse(metrics_json(row));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["grad_norm"].is_null());
  EXPECT_EQ(json["nonfinite"], (nlohmann::json{{"loss", "nan"}, {"grad_norm", "inf"}}));
}

TEST_F(MetricsTest, AppendsAcrossRunsAndDropsATornLine) {
  const std::string dir = (dir_ / "runs" / "deep").string();
  writer(dir).write(example());
  std::ofstream(dir + "/metrics.jsonl", std::ios::app) << "{\"step\":10";
  {
    MetricsWriter metrics = writer(dir);
    metrics.write(example());
    metrics.write(example());
  }
  const std::string line = metrics_json(example()) + "\n";
  EXPECT_EQ(read(dir + "/metrics.jsonl"), line + line + line);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir), fs::directory_iterator()), 1);
}

TEST_F(MetricsTest, DropsNoMoreThanATornLine) {
  const std::string path = (dir_ / "log").string();
  const auto kept = [&](const std::string& before) {
    std::ofstream(path, std::ios::trunc) << before;
    AppendFile(path).drop_torn_line();
    return read(path);
  };
  const std::string longer_than_a_block(5000, 'x');
  EXPECT_EQ(kept(""), "");
  EXPECT_EQ(kept("\n"), "\n");
  EXPECT_EQ(kept("whole\n"), "whole\n");
  EXPECT_EQ(kept("torn"), "");
  EXPECT_EQ(kept("whole\n" + longer_than_a_block), "whole\n");
  EXPECT_EQ(kept(longer_than_a_block + "\n" + longer_than_a_block), longer_than_a_block + "\n");
}

TEST_F(MetricsTest, FailuresNameTheFile) {
  std::ofstream(dir_ / "file") << "x";
  EXPECT_THROW(writer((dir_ / "file" / "sub").string()), InputError);
  fs::create_directories(dir_ / "metrics.jsonl");
  EXPECT_THROW(writer(dir_.string()), InputError);
}

TEST_F(MetricsTest, AFullDiskIsNamed) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  fs::create_symlink("/dev/full", dir_ / "metrics.jsonl");
  const auto sinks = open_metric_sinks({.dir = dir_.string(), .tensorboard = false});
  ASSERT_EQ(sinks.size(), 1u);
  EXPECT_EQ(sinks[0]->failure(), "");
  sinks[0]->write(example(), false);
  sinks[0]->write(example(), false);
  EXPECT_EQ(sinks[0]->failure(), (dir_ / "metrics.jsonl").string() + " cannot be written: No space left on device");
  EXPECT_EQ(sinks[0]->kept(), 2);
  MetricsWriter metrics = writer(dir_.string());
  metrics.write(example());
  EXPECT_EQ(metrics.end(),
            std::vector<std::string>{(dir_ / "metrics.jsonl").string() +
                                     " cannot be written: No space left on device; 1 of its lines are lost"});
}

TEST_F(MetricsTest, AFileThatIsRemovedOrReplacedIsNoticed) {
  const fs::path path = dir_ / "run/log";
  AppendFile file(path.string());
  EXPECT_TRUE(file.write("one\n"));
  testing::internal::CaptureStdout();
  fs::rename(path, dir_ / "moved");
  EXPECT_TRUE(file.write("two\n"));
  EXPECT_EQ(read(path), "two\n");
  std::ofstream(dir_ / "other") << "other\n";
  fs::rename(dir_ / "other", path);
  EXPECT_TRUE(file.write("three\n"));
  EXPECT_EQ(read(path), "other\nthree\n");
  EXPECT_EQ(read(dir_ / "moved"), "one\n");
  const std::string log = testing::internal::GetCapturedStdout();
  EXPECT_NE(log.find(path.string() + " was removed or replaced during the run"), std::string::npos) << log;
  // A directory that is gone may be a file system that is not mounted, so it is not created.
  fs::remove_all(dir_ / "run");
  EXPECT_FALSE(file.write("four\n"));
  EXPECT_FALSE(fs::exists(dir_ / "run"));
  std::vector<std::string> lost;
  file.add_lost_lines(lost);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_NE(lost[0].find("1 of its lines are lost"), std::string::npos) << lost[0];
  fs::create_directories(dir_ / "run");
  EXPECT_TRUE(file.write("five\n"));
  EXPECT_EQ(read(path), "four\nfive\n");
}

TEST_F(MetricsTest, AFileThatIsMovedWithItsDirectoryIsContinued) {
  const fs::path path = dir_ / "run/log";
  AppendFile file(path.string());
  EXPECT_TRUE(file.write("one\n"));
  fs::rename(dir_ / "run", dir_ / "elsewhere");
  testing::internal::CaptureStdout();
  EXPECT_TRUE(file.write("two\n"));
  EXPECT_TRUE(file.write("three\n"));
  EXPECT_NE(testing::internal::GetCapturedStdout().find(path.string() + " was moved"), std::string::npos);
  EXPECT_EQ(read(dir_ / "elsewhere/log"), "one\ntwo\nthree\n");
  EXPECT_FALSE(fs::exists(dir_ / "run"));
}

// Values that the fake sink of a test received.
struct Taken {
  std::vector<std::pair<int64_t, bool>> steps;
  std::string failure;
  int64_t times_kept_was_written = 0;
};

class FakeSink : public MetricSink {
 public:
  explicit FakeSink(Taken& taken) : taken_(taken) {}
  void write(const MetricRow& row, bool repeated) override { taken_.steps.emplace_back(row.step, repeated); }
  void add_lost_lines(std::vector<std::string>& /*sentences*/) override { ++taken_.times_kept_was_written; }
  std::string failure() const override { return taken_.failure; }

 private:
  Taken& taken_;
};

TEST_F(MetricsTest, EverySinkGetsEveryStep) {
  writer(dir_.string()).write(example());
  Taken first;
  Taken second;
  first.failure = "it fails, and the run goes on";
  std::vector<std::unique_ptr<MetricSink>> sinks;
  sinks.push_back(std::make_unique<FakeSink>(first));
  sinks.push_back(std::make_unique<FakeSink>(second));
  MetricsWriter metrics(dir_.string(), std::move(sinks), 99);
  metrics.write(example());  // metrics.jsonl already has step 100.
  metrics.write(example());
  metrics.end();
  const std::vector<std::pair<int64_t, bool>> expected = {{100, true}, {100, false}};
  EXPECT_EQ(first.steps, expected);
  EXPECT_EQ(second.steps, expected);
  EXPECT_EQ(second.times_kept_was_written, 1);
}

TEST_F(MetricsTest, PrometheusHasTheLastStepAlone) {
  const std::string path = (dir_ / "octavo.prom").string();
  const auto sinks = open_metric_sinks({.dir = (dir_ / "run").string(), .tensorboard = false, .prometheus = path});
  ASSERT_EQ(sinks.size(), 2u);
  sinks[1]->write(example(), true);
  EXPECT_NE(read(path).find("\noctavo_wps{run=\"" + (dir_ / "run").string() + "\"} 16431.6\n"), std::string::npos);
  fs::remove(path);
  fs::create_directories(path);
  sinks[1]->write(example(), false);
  EXPECT_NE(sinks[1]->failure().find("octavo.prom"), std::string::npos) << sinks[1]->failure();
  fs::remove(path);
  sinks[1]->write(example(), false);
  EXPECT_EQ(sinks[1]->failure(), "");
}

// The limit on the file size simulates a disk that is full and later has space again.
TEST_F(MetricsTest, WhatCannotBeWrittenIsWrittenLater) {
  const std::string path = (dir_ / "log").string();
  AppendFile file(path);
  EXPECT_TRUE(file.write("before\n"));
  {
    const FileSizeLimit limit(10);
    EXPECT_FALSE(file.write("first\n")) << "only half of the record fits";
    EXPECT_FALSE(file.write("second\n"));
  }
  EXPECT_EQ(read(path), "before\nfir");
  EXPECT_EQ(file.kept(), 2);
  EXPECT_TRUE(file.write("third\n"));
  EXPECT_EQ(read(path), "before\nfirst\nsecond\nthird\n");
  EXPECT_EQ(file.failure(), "");
}

// Closing the file tries to write the last record once more.
TEST_F(MetricsTest, WhatCouldNotBeWrittenIsWrittenAtTheEnd) {
  const std::string path = (dir_ / "log").string();
  {
    AppendFile file(path);
    const FileSizeLimit limit(3);
    EXPECT_FALSE(file.write("last\n"));
  }
  EXPECT_EQ(read(path), "last\n");
}

MetricRow at_step(int64_t step, double loss) {
  MetricRow row = example();
  row.step = step;
  row.set("loss", loss);
  row.set("validation_loss", std::nullopt);
  return row;
}

// A run that was killed after step 8 resumes after step 5. Steps 6 to 8 repeat, and step 8 has another loss than
// before.
TEST_F(MetricsTest, RepeatedStepsHaveOneLine) {
  const std::string path = (dir_ / "metrics.jsonl").string();
  {
    MetricsWriter metrics = writer(dir_.string(), 0);
    for (int64_t step = 1; step <= 8; ++step) metrics.write(at_step(step, 10.0 / static_cast<double>(step)));
  }
  std::ofstream(path, std::ios::app) << "{\"step\":9,\"lo";
  MetricsWriter metrics = writer(dir_.string(), 5);
  for (int64_t step = 6; step <= 9; ++step) {
    MetricRow row = at_step(step, step == 8 ? 7 : 10.0 / static_cast<double>(step));
    row.set("wps", 1);  // The speed is not compared.
    metrics.write(row);
  }
  std::vector<int64_t> steps;
  std::istringstream lines(read(path));
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object()) steps.push_back(json["step"]);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 8, 9}));
}

// The file is longer than the block at its end that is read at once.
TEST_F(MetricsTest, RepeatedStepsOfALongFile) {
  constexpr int64_t kSteps = 6000;
  {
    MetricsWriter metrics = writer(dir_.string(), 0);
    for (int64_t step = 1; step <= kSteps; ++step) metrics.write(at_step(step, static_cast<double>(step)));
  }
  const auto bytes = fs::file_size(dir_ / "metrics.jsonl");
  ASSERT_GT(bytes, 1u << 20);
  MetricsWriter metrics = writer(dir_.string(), 10);
  for (int64_t step = 11; step <= kSteps; ++step) metrics.write(at_step(step, static_cast<double>(step)));
  EXPECT_EQ(fs::file_size(dir_ / "metrics.jsonl"), bytes);
}

TEST_F(MetricsTest, Crc32cKnownValues) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
}

// A minimal reader of the event format that shares no code with the writer. This function computes the CRC bit by bit.
uint32_t slow_masked_crc(const std::string& bytes) {
  uint32_t crc = 0xffffffffu;
  for (const char c : bytes) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc % 2 == 1 ? crc / 2 ^ 0x82f63b78u : crc / 2;
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

template <typename T>
T take(std::string& bytes) {
  T value{};
  if (bytes.size() < sizeof(T)) throw std::runtime_error("the record is cut short");
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.erase(0, sizeof(T));
  return value;
}

std::string take_bytes(std::string& bytes, size_t count) {
  if (bytes.size() < count) throw std::runtime_error("the record is cut short");
  std::string taken = bytes.substr(0, count);
  bytes.erase(0, count);
  return taken;
}

uint64_t take_varint(std::string& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<uint8_t>(bytes);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

// Returns the payloads of a protobuf message by field number. Fixed and varint fields have eight bytes.
std::multimap<uint64_t, std::string> decode_message(std::string bytes) {
  std::multimap<uint64_t, std::string> fields;
  while (!bytes.empty()) {
    const uint64_t key = take_varint(bytes);
    std::string payload;
    if (key % 8 == 0) {
      const uint64_t value = take_varint(bytes);
      payload.assign(reinterpret_cast<const char*>(&value), sizeof(value));
    } else if (key % 8 == 1) {
      payload = take_bytes(bytes, 8);
    } else if (key % 8 == 2) {
      payload = take_bytes(bytes, take_varint(bytes));
    } else if (key % 8 == 5) {
      payload = take_bytes(bytes, 4);
    } else {
      throw std::runtime_error("unknown wire type");
    }
    fields.emplace(key / 8, payload);
  }
  return fields;
}

std::vector<std::string> decode_records(std::string bytes) {
  std::vector<std::string> records;
  while (!bytes.empty()) {
    const std::string length_bytes = bytes.substr(0, 8);
    const auto length = take<uint64_t>(bytes);
    EXPECT_EQ(take<uint32_t>(bytes), slow_masked_crc(length_bytes));
    records.push_back(take_bytes(bytes, length));
    EXPECT_EQ(take<uint32_t>(bytes), slow_masked_crc(records.back()));
  }
  return records;
}

std::map<std::string, float> decode_scalars(const std::string& summary) {
  std::map<std::string, float> scalars;
  for (const auto& [field, bytes] : decode_message(summary)) {
    EXPECT_EQ(field, 1u);
    const auto value = decode_message(bytes);
    std::string number = value.find(2)->second;
    scalars[value.find(1)->second] = take<float>(number);
  }
  return scalars;
}

TEST_F(MetricsTest, TensorBoardEventsDecode) {
  MetricRow row = example();
  row.step = 1'000'000;
  {
    MetricsWriter metrics = writer(dir_.string(), {}, true);
    metrics.write(row);
    row.set("validation_loss", 2.25);
    row.fp8 = {{.layer = 3,
                .linear = "qkv",
                .tensor = "input",
                .per_tensor = true,
                .stats = {.elements = 10, .non_zero = 10, .amax = 7.5f, .smallest_scale = 64, .largest_scale = 64}},
               {.layer = 3,
                .linear = "o",
                .tensor = "weight",
                .per_tensor = false,
                .stats = {.elements = 10, .non_zero = 10, .amax = 1.5f, .smallest_scale = 2, .largest_scale = 8}}};
    metrics.write(row);
  }
  std::vector<fs::path> events;
  for (const auto& entry : fs::directory_iterator(dir_)) {
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) events.push_back(entry.path());
  }
  ASSERT_EQ(events.size(), 1u);
  const std::vector<std::string> records = decode_records(read(events.front()));
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(decode_message(records[0]).find(3)->second, "brain.Event:2");
  const auto event = decode_message(records[2]);
  std::string wall_time = event.find(1)->second;
  std::string step = event.find(2)->second;
  EXPECT_NEAR(take<double>(wall_time), static_cast<double>(std::time(nullptr)), 60);
  EXPECT_EQ(take<int64_t>(step), 1'000'000);
  const std::map<std::string, float> expected = {{"train/loss", 3.21449f},
                                                 {"optimizer/grad_norm", 0.8121f},
                                                 {"optimizer/lr", 3e-4f},
                                                 {"train/tokens", 104857600.0f},
                                                 {"throughput/wps", 16431.6f},
                                                 {"throughput/mfu", 0.9623f},
                                                 {"throughput/mfu_causal", 0.8431f},
                                                 {"throughput/utilization", 0.5517f},
                                                 {"throughput/tflops", 951.7f},
                                                 {"throughput/step_ms", 997.2f},
                                                 {"data/data_ms", 0.4f},
                                                 {"memory/memory_gib", 71.28f},
                                                 {"throughput/goodput", 0.93f},
                                                 {"validation/loss", 2.25f},
                                                 {"fp8/3/qkv/input/amax", 7.5f},
                                                 {"fp8/3/qkv/input/scale", 64.0f},
                                                 {"fp8/3/qkv/input/saturated", 0.0f},
                                                 {"fp8/3/qkv/input/flushed", 0.0f},
                                                 {"fp8/3/o/weight/amax", 1.5f},
                                                 {"fp8/3/o/weight/scale_min", 2.0f},
                                                 {"fp8/3/o/weight/scale_max", 8.0f},
                                                 {"fp8/3/o/weight/saturated", 0.0f},
                                                 {"fp8/3/o/weight/flushed", 0.0f}};
  EXPECT_EQ(decode_scalars(event.find(5)->second), expected);
  EXPECT_EQ(decode_scalars(decode_message(records[1]).find(5)->second).count("validation/loss"), 0u);
}

TEST_F(MetricsTest, EventFilesOfOneProcessDoNotMix) {
  const TensorBoardWriter first(dir_.string());
  const TensorBoardWriter second(dir_.string());
  EXPECT_NE(first.file().path(), second.file().path());
}

}  // namespace
}  // namespace octavo
