// Tests of bfloat16, float8, Tensor, Arena, Stream, StagingMemory, Profiler and the median.
#include <omp.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "core/arena.h"
#include "core/float8.h"
#include "core/median.h"
#include "core/profiler.h"
#include "core/staging_memory.h"
#include "tests/kernels/op_fixture.h"

namespace octavo {
namespace {

// ---- bfloat16

double value_of(uint16_t bits) {
  BFloat16 number;
  number.bits = bits;
  return static_cast<double>(static_cast<float>(number));
}

bool is_nan(uint16_t bits) { return (bits & 0x7fff) > 0x7f80; }

TEST(BFloat16, EveryValueSurvivesConversionToFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    BFloat16 number;
    number.bits = static_cast<uint16_t>(bits);
    const BFloat16 back(static_cast<float>(number));
    if (is_nan(number.bits)) {
      EXPECT_TRUE(is_nan(back.bits)) << bits;
    } else {
      EXPECT_EQ(back.bits, bits);
    }
  }
}

// A number between two neighbouring bfloat16 values rounds to the nearer one. A number halfway between them rounds to
// the one whose last bit is zero.
TEST(BFloat16, RoundsToNearestEven) {
  std::mt19937 generator(7);
  std::uniform_int_distribution<uint32_t> any;
  for (int i = 0; i < 200'000; ++i) {
    uint32_t word = any(generator);
    // The word lies exactly halfway between two bfloat16 values.
    if (i % 3 == 0) word = (word & 0xffff0000u) | 0x8000u;
    const float x = std::bit_cast<float>(word);
    const auto low = static_cast<uint16_t>(word >> 16);  // The neighbour closer to zero.
    if (!std::isfinite(x) || (low & 0x7fff) == 0x7f7f) continue;
    const auto high = static_cast<uint16_t>(low + 1);
    const double to_low = std::abs(static_cast<double>(x) - value_of(low));
    const double to_high = std::abs(static_cast<double>(x) - value_of(high));
    const bool take_low = to_low < to_high || (to_low == to_high && low % 2 == 0);
    ASSERT_EQ(BFloat16(x).bits, take_low ? low : high) << x;
  }
}

TEST(BFloat16, Ends) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(BFloat16(kInfinity).bits, 0x7f80);
  EXPECT_EQ(BFloat16(-kInfinity).bits, 0xff80);
  // The argument exceeds the largest finite bfloat16.
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(BFloat16(-0.0f).bits, 0x8000);
  // The upper 16 bits alone would be an infinity.
  EXPECT_TRUE(is_nan(BFloat16(std::bit_cast<float>(0x7f800001u)).bits));
  EXPECT_TRUE(is_nan(BFloat16(std::bit_cast<float>(0xffffffffu)).bits));
}

// ---- Float8 and Tensor

// Compares the decoded value of every byte with the formula of the format.
template <typename F>
void expect_values_of_format(int mantissa_bits, int largest) {
  for (int byte = 0; byte < 256; ++byte) {
    const int exponent = (byte & 0x7f) >> mantissa_bits;
    const int mantissa = byte & ((1 << mantissa_bits) - 1);
    const int unit = std::max(exponent, 1) - F::kBias - mantissa_bits;
    const double magnitude = std::ldexp(exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits), unit);
    const float value = F::decode(static_cast<uint8_t>(byte));
    EXPECT_EQ(std::signbit(value), byte >= 128) << byte;
    if ((byte & 0x7f) > largest) {
      EXPECT_TRUE(std::isnan(value)) << byte;
    } else {
      EXPECT_EQ(std::fabs(value), magnitude) << byte;
    }
  }
}

TEST(Float8, ValuesAreThoseOfTheFormats) {
  expect_values_of_format<Float8E4M3>(3, 0x7e);
  expect_values_of_format<Float8E5M2>(2, 0x7b);
  EXPECT_EQ(Float8E4M3::max(), 448);
  EXPECT_EQ(Float8E5M2::max(), 57344);
}

TEST(Tensor, ShapesAndViews) {
  Array storage(DType::kFloat32, {4, 6});
  for (int64_t i = 0; i < 24; ++i) storage.set(i, static_cast<double>(i));
  const Tensor tensor = storage;
  EXPECT_EQ(tensor.numel(), 24);
  EXPECT_EQ(tensor.bytes(), 96);
  EXPECT_EQ(tensor.dim(-1), 6);
  EXPECT_EQ(tensor.describe(), "float32 [4, 6]");
  const Tensor rows = tensor.rows(1, 3);
  EXPECT_EQ(rows.describe(), "float32 [2, 6]");
  EXPECT_EQ(rows.data<float>()[0], 6.0f);
  EXPECT_EQ(tensor.rows(4, 4).numel(), 0);
  const Tensor view = rows.view({3, 2, 2});
  EXPECT_EQ(view.describe(), "float32 [3, 2, 2]");
  EXPECT_EQ(view.data<float>()[11], 17.0f);
  EXPECT_TRUE(tensor.same_shape(Array(DType::kInt32, {4, 6})));
  EXPECT_FALSE(tensor.same_shape(view));
  EXPECT_FALSE(Tensor().defined());
}

TEST(Tensor, MisuseThrows) {
  const Array storage(DType::kFloat32, {4, 6});
  const Tensor tensor = storage;
  expect_error([&] { tensor.data<BFloat16>(); }, "expected a bfloat16 tensor, got float32 [4, 6]");
  expect_error([&] { tensor.rows(3, 5); }, "rows 3 to 5 of float32 [4, 6]");
  expect_error([&] { tensor.rows(3, 2); }, "rows 3 to 2");
  expect_error([&] { tensor.view({5, 5}); }, "cannot view float32 [4, 6] as float32 [5, 5]");
  expect_error([&] { Tensor(nullptr, DType::kFloat32, {2, -1}); }, "negative dimension in [2, -1]");
  expect_error([&] { Tensor(nullptr, DType::kFloat32, {1, 1, 1, 1, 1}); }, "at most 4 dimensions, got 5");
  expect_error(
      [&] {
        expect_tensor(tensor, "x", DType::kFloat32, {6, 4});
      },
      "x is float32 [4, 6], expected float32 [6, 4]");
  expect_error([&] { expect_tensor(tensor, "x", DType::kBFloat16, {4, 6}); }, "expected bfloat16 [4, 6]");
  expect_error([&] { expect_tensor({}, "x", DType::kFloat32, {1}); }, "x is missing, expected float32 [1]");
}

// ---- Arena

std::vector<Tensor> lay_out(Arena& arena) {
  return {arena.allocate("a", DType::kBFloat16, {3, 5}), arena.allocate("b", DType::kFloat32, {65}),
          arena.allocate("c", DType::kInt32, {1})};
}

TEST(Arena, ThePlanIsWhatIsAllocated) {
  Arena plan(Device::kCpu);
  EXPECT_TRUE(plan.planning());
  lay_out(plan);
  EXPECT_EQ(plan.used(), 256 + 512 + 256);
  ASSERT_EQ(plan.items().size(), 3u);
  EXPECT_EQ(plan.items()[1].name, "b");
  EXPECT_EQ(plan.items()[1].bytes, 260);

  Arena arena(Device::kCpu, plan.used());
  EXPECT_FALSE(arena.planning());
  for (const Tensor& tensor : lay_out(arena)) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.raw()) % 256, 0u);
    const auto* bytes = static_cast<const char*>(tensor.raw());
    for (int64_t i = 0; i < tensor.bytes(); ++i) ASSERT_EQ(bytes[i], 0);
  }
  EXPECT_EQ(arena.used(), plan.used());
  expect_error([&] { arena.allocate("one more", DType::kFloat32, {1}); }, "is too small for one more (float32 [1]");
}

TEST(Arena, OverlaidPartsShareMemory) {
  std::vector<Tensor> few;
  std::vector<Tensor> many;
  const auto lay_out_both = [&](Arena& arena) {
    const Tensor before = arena.allocate("before", DType::kFloat32, {1});
    arena.overlay({[&](Arena& part) { few = {part.allocate("one", DType::kFloat32, {100})}; },
                   [&](Arena& part) { many = lay_out(part); }});
    return std::pair{before, arena.allocate("after", DType::kFloat32, {1})};
  };
  Arena plan(Device::kCpu);
  lay_out_both(plan);
  EXPECT_EQ(plan.used(), 256 + (256 + 512 + 256) + 256);
  ASSERT_EQ(plan.items().size(), 6u);
  int64_t counted = 0;
  for (const Arena::Item& item : plan.items()) counted += item.overlaid ? 0 : item.bytes;
  EXPECT_EQ(counted, 4 + (30 + 260 + 4) + 4);

  Arena arena(Device::kCpu, plan.used());
  const auto [before, after] = lay_out_both(arena);
  EXPECT_EQ(arena.used(), plan.used());
  EXPECT_EQ(few[0].raw(), many[0].raw());
  const auto distance = [](const Tensor& a, const Tensor& b) {
    return static_cast<char*>(b.raw()) - static_cast<char*>(a.raw());
  };
  EXPECT_EQ(distance(before, many[0]), 256);
  EXPECT_EQ(distance(many[2], after), 256);
}

// ---- Stream

TEST(Stream, CopiesAndZeroes) {
  Stream stream = Stream::cpu();
  Array from(DType::kFloat32, {2, 3});
  from.fill(1.5);
  const Array to(DType::kFloat32, {6});
  stream.copy(to, from);
  EXPECT_EQ(to.bits(), from.bits());
  stream.zero(to);
  EXPECT_EQ(to.values(), Values(6, 0.0));
  const Array small(DType::kFloat32, {5});
  expect_error([&] { stream.copy(small, from); }, "cannot copy float32 [2, 3] to float32 [5]");
}

TEST(Stream, WorkspaceIsBorrowedAndChecked) {
  Stream stream = Stream::cpu();
  EXPECT_EQ(stream.workspace_bytes(), 0);
  expect_error([&] { stream.workspace(1); }, "needs a workspace of 1 bytes, but the stream has 0");
  const Array scratch(DType::kInt32, {4});
  stream.set_workspace(scratch);
  EXPECT_EQ(stream.workspace(16), static_cast<const Tensor&>(scratch).raw());
  expect_error([&] { stream.workspace(17); }, "needs a workspace of 17 bytes, but the stream has 16");
}

struct Counted {
  explicit Counted(Stream&) {}
  int uses = 0;
};

TEST(Stream, MovesWithAllItHolds) {
  Stream stream = Stream::planned(132);
  stream.set_deterministic(true);
  EXPECT_EQ(++stream.state<Counted>().uses, 1);
  EXPECT_EQ(++stream.state<Counted>().uses, 2);
  Stream moved = Stream::cpu();
  moved = std::move(stream);
  EXPECT_TRUE(moved.is_planned());
  EXPECT_EQ(moved.multiprocessors(), 132);
  EXPECT_TRUE(moved.deterministic());
  EXPECT_EQ(++moved.state<Counted>().uses, 3);
}

TEST(Stream, PlannedOnesRecord) {
  OpRecord record;
  Stream compute = Stream::planned(132, &record);
  Stream beside = Stream::beside(compute);
  Event event(compute.device());
  event.wait(beside);  // The event is not recorded yet, so there is nothing to wait for.
  event.record(compute);
  event.wait(beside);
  const char* name = "add";
  const OpTimer timer(beside, {.name = name, .bytes = 12});
  const OpTimer same(beside, {.name = name, .bytes = 12});
  const OpTimer other(beside, {.name = name, .bytes = 13});
  EXPECT_TRUE(timer.planned());
  ASSERT_EQ(record.entries().size(), 5u);
  const OpRecord::Entry& wait = record.entries()[1];
  EXPECT_EQ(wait.action, OpRecord::Action::kWait);
  EXPECT_EQ(wait.index, record.entries()[0].index);
  EXPECT_EQ(wait.stream, 1);
  const OpRecord::Entry& op = record.entries()[2];
  EXPECT_STREQ(record.ops()[op.index].name, "add");
  EXPECT_EQ(record.ops()[op.index].bytes, 12);
  EXPECT_EQ(op.stream, 1);
  EXPECT_EQ(record.entries()[3].index, op.index);
  EXPECT_EQ(record.ops()[record.entries()[4].index].bytes, 13);
  { const ProfilerRange range(beside, "block 3"); }
  ASSERT_EQ(record.entries().size(), 7u);
  EXPECT_EQ(record.entries()[5].action, OpRecord::Action::kBegin);
  EXPECT_EQ(record.ranges()[record.entries()[5].index], "block 3");
  EXPECT_EQ(record.entries()[6].action, OpRecord::Action::kEnd);
}

// ---- Staging memory

TEST(StagingMemory, IsThereWhenItIsAskedFor) {
  const Stream stream = Stream::cpu();
  StagingMemory staging(stream);
  EXPECT_EQ(staging.data(), nullptr);
  staging.reserve(0);
  EXPECT_EQ(staging.bytes(), 0);
  staging.reserve(5'000'000);
  auto* data = static_cast<char*>(staging.data());
  EXPECT_EQ(staging.bytes(), 5'000'000);
  data[0] = 1;
  data[4'999'999] = 2;
  staging.reserve(100);
  EXPECT_EQ(staging.data(), data) << "the memory is already large enough";
  EXPECT_EQ(data[4'999'999], 2);
  staging.reserve(9'000'000);  // This request starts before the test has waited for the previous one.
  staging.reserve(10'000'000);
  std::memset(staging.data(), 3, 10'000'000);
  EXPECT_EQ(staging.bytes(), 10'000'000);
}

TEST(StagingMemory, IsMadeInTheBackground) {
  const Stream stream = Stream::cpu();
  StagingMemory staging(stream);
  EXPECT_TRUE(staging.is_ready());
  staging.reserve(int64_t{512} << 20);
  EXPECT_FALSE(staging.is_ready());
  staging.data();
  EXPECT_TRUE(staging.is_ready());
}

// Copies between memory of the stream's device and staging memory, across the border of two chunks, which is at 128
// MiB.
void expect_copies_across_chunks(Stream& stream) {
  StagingMemory staging(stream);
  staging.reserve(int64_t{160} << 20);
  std::vector<char> source(int64_t{40} << 20), back(source.size());
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(i * 7 + i / 4096);
  const Buffer device = Buffer::device(stream.device(), std::ssize(source));
  char* to = static_cast<char*>(staging.data()) + (int64_t{100} << 20) + 3;
  stream.copy(device.data(), source.data(), std::ssize(source));
  staging.copy(stream, to, device.data(), std::ssize(source));
  stream.copy(device.data(), back.data(), std::ssize(back));  // Overwrites the device's memory.
  staging.copy(stream, device.data(), to, std::ssize(source));
  stream.copy(back.data(), device.data(), std::ssize(back));
  stream.synchronize();
  EXPECT_TRUE(back == source);
}

TEST(StagingMemory, CopiesAcrossTheBordersOfChunks) {
  Stream stream = Stream::cpu();
  expect_copies_across_chunks(stream);
}

TEST(StagingMemory, CopiesFromAGpuAndBack) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs a GPU";
  Stream stream = Stream::cuda(0);
  expect_copies_across_chunks(stream);
}

// ---- Profiler

TEST(OpTimer, RunsSmallOpsOnOneThread) {
  const Stream stream = Stream::cpu();
  const int before = omp_get_max_threads();
  omp_set_num_threads(3);
  const auto threads_of = [&](double flops, double bytes) {
    const OpTimer timer(stream, {.name = "op", .flops = flops, .bytes = bytes});
    return omp_get_max_threads();
  };
  EXPECT_EQ(threads_of(0, 0), 3) << "every op is shared by default";
  set_least_shared_work(1000);
  EXPECT_EQ(threads_of(0, 999), 1);
  EXPECT_EQ(threads_of(0, 1000), 3);
  EXPECT_EQ(threads_of(1000, 499), 1);
  EXPECT_EQ(threads_of(1000, 500), 3);
  {
    const OpTimer small(stream, "small", 1);
    EXPECT_EQ(threads_of(0, 1e9), 1) << "within a small op";
    EXPECT_EQ(threads_of(0, 1), 1);
  }
  EXPECT_EQ(omp_get_max_threads(), 3);
  set_least_shared_work(0);
  omp_set_num_threads(before);
}

TEST(Profiler, SumsByName) {
  Stream stream = Stream::cpu();
  Profiler profiler(Device::kCpu);
  { const OpTimer unheard(stream, "before", 0); }
  stream.set_profiler(&profiler);
  for (int i = 0; i < 3; ++i) {
    const OpTimer timer(stream, {.name = "sleep", .flops = 10, .bytes = 100});
    const OpTimer inner(stream, "inner", 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const auto totals = profiler.totals();
  ASSERT_EQ(totals.size(), 2u);
  EXPECT_EQ(totals.at("sleep").calls, 3);
  EXPECT_GE(totals.at("sleep").milliseconds, 6.0);
  EXPECT_EQ(totals.at("sleep").flops, 30);
  EXPECT_EQ(totals.at("sleep").bytes, 300);
  EXPECT_LE(totals.at("inner").milliseconds, totals.at("sleep").milliseconds);

  EXPECT_EQ(totals.at("sleep").fp8_flops, 0);

  profiler.clear();
  { const OpTimer timer(stream, "again", 0); }
  const auto after = profiler.totals();
  ASSERT_EQ(after.size(), 1u);
  EXPECT_EQ(after.at("again").calls, 1);
  EXPECT_EQ(after.at("again").flops, 0);
}

TEST(Profiler, TellsWhatBoundsAnOp) {
  Stream stream = Stream::cpu();
  Profiler profiler(Device::kCpu);
  stream.set_profiler(&profiler);
  { const OpTimer timer(stream, {.name = "qkv", .flops = 10, .bytes = 1, .bound = OpBound::kMatmul}); }
  { const OpTimer timer(stream, {.name = "qkv", .flops = 30, .bytes = 1, .bound = OpBound::kFp8Matmul}); }
  { const OpTimer timer(stream, {.name = "all_reduce", .bytes = 1, .bound = OpBound::kCommunication}); }
  const auto totals = profiler.totals();
  EXPECT_EQ(totals.at("qkv").flops, 40);
  EXPECT_EQ(totals.at("qkv").fp8_flops, 30);
  EXPECT_FALSE(totals.at("qkv").communication);
  EXPECT_TRUE(totals.at("all_reduce").communication);
}

TEST(Profiler, ATimelineNestsAndTotalsLeaveRangesOut) {
  Stream stream = Stream::cpu();
  Event origin(Device::kCpu, true);
  origin.record(stream);
  Profiler profiler(Device::kCpu, Profiler::Detail::kTimeline);
  stream.set_profiler(&profiler);
  {
    const ProfilerRange host(stream, "wait", Profiler::Kind::kHostRange);
    const ProfilerRange block(stream, "block 3");
    const OpTimer timer(stream, {.name = "all_gather", .bytes = 8, .bound = OpBound::kCommunication}, "block 4");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::vector<Profiler::Span> spans = profiler.spans(origin);
  ASSERT_EQ(spans.size(), 3u);
  const auto& [wait, block, op] = std::tie(spans[0], spans[1], spans[2]);
  EXPECT_EQ(wait.kind, Profiler::Kind::kHostRange);
  EXPECT_GT(wait.host_end_ms, wait.host_begin_ms);
  EXPECT_EQ(block.kind, Profiler::Kind::kRange);
  EXPECT_STREQ(block.op.name, "block 3");
  EXPECT_EQ(op.kind, Profiler::Kind::kOp);
  EXPECT_STREQ(op.what, "block 4");
  EXPECT_LE(0, block.begin_ms);
  EXPECT_LE(block.begin_ms, op.begin_ms);
  EXPECT_GE(op.end_ms, op.begin_ms + 1);
  EXPECT_LE(op.end_ms, block.end_ms);
  EXPECT_EQ(profiler.totals().size(), 1u);
}

TEST(Profiler, OfOpsAloneHasNoRanges) {
  Stream stream = Stream::cpu();
  Event origin(Device::kCpu, true);
  origin.record(stream);
  Profiler profiler(Device::kCpu);
  stream.set_profiler(&profiler);
  const std::vector<float> values(4, 1.0f);
  std::vector<float> copied(4);
  {
    const ProfilerRange block(stream, "block 3");
    stream.copy(copied.data(), values.data(), 16);
  }
  ASSERT_EQ(profiler.spans(origin).size(), 1u);
  EXPECT_EQ(profiler.totals().at("copy").bytes, 32);
  EXPECT_EQ(copied, values);
}

// ---- Median

TEST(Median, IsTheMiddleOneOrBetweenTheTwoInTheMiddle) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({5, 1, 3}), 3);
  EXPECT_EQ(median({9, 1, 2, 4}), 3);
}

}  // namespace
}  // namespace octavo
