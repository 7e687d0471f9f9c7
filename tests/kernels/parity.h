// Fixture of the tests that compare ops on the GPU with the CPU. A test creates the tensors of an op as twins, fills
// the inputs with fill() and the outputs with poison(), and runs the op on both devices with on_both(). Then
// expect_close() compares GPU and CPU by norm, and expect_exact() compares the GPU with float64 by element (exact.h).
// The tests are skipped if there is no GPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/stream.h"
#include "tests/kernels/exact.h"

namespace octavo {

struct RowSize {
  int64_t tokens, hidden;
};

// A tensor on the CPU and a tensor on the GPU. An offset shifts both by that many elements from their 256-byte
// alignment.
class Twin {
 public:
  Twin(DType dtype, std::vector<int64_t> shape, int64_t offset = 0) {
    const int64_t elements = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    const int64_t bytes = (elements + offset) * dtype_bytes(dtype);
    host_ = Buffer::device(Device::kCpu, bytes);
    device_ = Buffer::device(Device::kCuda, bytes);
    cpu_ = view(static_cast<char*>(host_.data()) + offset * dtype_bytes(dtype), dtype, shape);
    gpu_ = view(static_cast<char*>(device_.data()) + offset * dtype_bytes(dtype), dtype, shape);
  }

  Tensor on(const Stream& stream) const { return stream.is_cuda() ? gpu_ : cpu_; }
  const Tensor& cpu() const { return cpu_; }
  const Tensor& gpu() const { return gpu_; }

  float at(int64_t i) const {
    switch (cpu_.dtype()) {
      case DType::kFloat32:
        return cpu_.data<float>()[i];
      case DType::kBFloat16:
        return static_cast<float>(cpu_.data<BFloat16>()[i]);
      default:
        return static_cast<float>(cpu_.data<int32_t>()[i]);
    }
  }
  void set(int64_t i, float value) {
    if (cpu_.dtype() == DType::kFloat32) cpu_.data<float>()[i] = value;
    if (cpu_.dtype() == DType::kBFloat16) cpu_.data<BFloat16>()[i] = BFloat16(value);
    if (cpu_.dtype() == DType::kInt32) cpu_.data<int32_t>()[i] = static_cast<int32_t>(value);
  }

 private:
  static Tensor view(void* data, DType dtype, const std::vector<int64_t>& shape) {
    if (shape.size() == 1) return {data, dtype, {shape[0]}};
    if (shape.size() == 2) return {data, dtype, {shape[0], shape[1]}};
    return {data, dtype, {shape.at(0), shape.at(1), shape.at(2)}};
  }

  Buffer host_;
  Buffer device_;
  Tensor cpu_;
  Tensor gpu_;
};

class ParityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "needs a GPU";
    gpu_stream_.emplace(Stream::cuda(0));
  }

  // Prints for each bound how much of it the largest error used, so that one run shows which bounds are too wide or too
  // narrow.
  void TearDown() override {
    for (const auto& [name, ratio] : worst_of_bound_) {
      std::cout << fmt::format("[  bounds  ] {:.2f} of what is allowed: {}\n", ratio, name);
    }
  }

  Stream& cpu() { return cpu_stream_; }
  Stream& gpu() { return *gpu_stream_; }

  // Allocates the workspaces of the two streams.
  void reserve(int64_t cpu_bytes, int64_t gpu_bytes) {
    gpu().synchronize();
    cpu_workspace_ = Buffer::device(Device::kCpu, cpu_bytes);
    gpu_workspace_ = Buffer::device(Device::kCuda, gpu_bytes);
    cpu().set_workspace(Tensor(cpu_workspace_.data(), DType::kUInt8, {cpu_bytes}));
    gpu().set_workspace(Tensor(gpu_workspace_.data(), DType::kUInt8, {gpu_bytes}));
  }

  void upload(const Twin& twin) {
    gpu().copy(twin.gpu(), twin.cpu());
    gpu().synchronize();
  }

  // Fills both tensors with normally distributed values.
  void fill(Twin& twin, float deviation = 1.0f, float mean = 0.0f) {
    std::normal_distribution<float> normal(mean, deviation);
    for (int64_t i = 0; i < twin.cpu().numel(); ++i) twin.set(i, normal(random_));
    upload(twin);
  }

  // Fills both tensors with uniform integers in [low, high).
  void fill_integers(Twin& twin, int32_t low, int32_t high) {
    std::uniform_int_distribution<int32_t> uniform(low, high - 1);
    for (int64_t i = 0; i < twin.cpu().numel(); ++i) twin.cpu().data<int32_t>()[i] = uniform(random_);
    upload(twin);
  }

  // Sets all bits to one, which is NaN in every float format, so that an element that an op fails to write is detected.
  void poison(const Twin& twin) {
    std::memset(twin.cpu().raw(), 0xff, static_cast<size_t>(twin.cpu().bytes()));
    upload(twin);
  }

  template <typename Op>
  void on_both(Op op) {
    op(cpu());
    op(gpu());
    gpu().synchronize();
  }

  std::vector<char> gpu_bytes(const Twin& twin) {
    std::vector<char> bytes(static_cast<size_t>(twin.gpu().bytes()));
    gpu().copy(bytes.data(), twin.gpu().raw(), twin.gpu().bytes());
    gpu().synchronize();
    return bytes;
  }

  std::vector<float> gpu_values(const Twin& twin) {
    const std::vector<char> bytes = gpu_bytes(twin);
    const Tensor host(const_cast<char*>(bytes.data()), twin.gpu().dtype(), {twin.gpu().numel()});
    std::vector<float> values(static_cast<size_t>(host.numel()));
    for (int64_t i = 0; i < host.numel(); ++i) {
      values[static_cast<size_t>(i)] =
          host.dtype() == DType::kFloat32 ? host.data<float>()[i] : static_cast<float>(host.data<BFloat16>()[i]);
    }
    return values;
  }

  // Returns ||gpu - cpu|| / ||cpu||. A NaN on either side makes the result NaN, which exceeds every tolerance.
  double relative_error(const Twin& twin) {
    const std::vector<float> values = gpu_values(twin);
    double difference = 0;
    double norm = 0;
    for (int64_t i = 0; i < twin.cpu().numel(); ++i) {
      const double expected = static_cast<double>(twin.at(i));
      const double delta = static_cast<double>(values[static_cast<size_t>(i)]) - expected;
      difference += delta * delta;
      norm += expected * expected;
    }
    return difference == 0 ? 0.0 : std::sqrt(difference / norm);
  }

  void expect_close(const Twin& twin, const char* name, double tolerance) {
    const double error = relative_error(twin);
    worst_ = std::max(worst_, std::isnan(error) ? std::numeric_limits<double>::infinity() : error);
    RecordProperty("worst_relative_error", std::to_string(worst_ * 1e6) + "e-6");
    EXPECT_LT(error, tolerance) << name << ", " << twin.cpu().describe();
  }

  // Expects that every element of the GPU's tensor is within its bound (exact.h).
  void expect_exact(const Twin& twin, const std::string& name, const Exact& exact) {
    expect_exact(gpu_values(twin), twin.cpu(), name, exact);
  }
  // Expects that values copied from the GPU are within their bounds. `like` is a tensor of their dtype and shape.
  void expect_exact(const std::vector<float>& values, const Tensor& like, const std::string& name, const Exact& exact) {
    const Comparison comparison = compare_elements(values, like.dtype(), exact);
    double& worst = worst_of_bound_[name];
    worst = std::max(worst, comparison.worst_ratio);
    EXPECT_EQ(comparison.wrong, 0) << name << ", " << like.describe() << ": " << comparison.describe(like.dim(-1));
  }

  void expect_equal_bytes(const Twin& twin, const char* name) {
    const std::vector<char> bytes = gpu_bytes(twin);
    const char* expected = static_cast<const char*>(twin.cpu().raw());
    const auto differing = std::mismatch(bytes.begin(), bytes.end(), expected);
    if (differing.first == bytes.end()) return;
    const auto count = std::inner_product(bytes.begin(), bytes.end(), expected, int64_t{0}, std::plus<>(),
                                          [](char a, char b) { return a == b ? 0 : 1; });
    ADD_FAILURE() << name << ", " << twin.cpu().describe() << ": " << count << " bytes differ, the first is byte "
                  << differing.first - bytes.begin() << ": " << static_cast<int>(static_cast<uint8_t>(*differing.first))
                  << ", expected " << static_cast<int>(static_cast<uint8_t>(*differing.second));
  }

  std::mt19937 random_{20250131};

 private:
  Stream cpu_stream_ = Stream::cpu();
  std::optional<Stream> gpu_stream_;
  Buffer cpu_workspace_;
  Buffer gpu_workspace_;
  double worst_ = 0;
  std::map<std::string, double> worst_of_bound_;
};

// Returns the relative error allowed in a result of this dtype. Float32 sums in another order differ by less than 1e-5,
// and a rounding to bfloat16 adds up to 2^-9.
inline double tolerance_of(DType dtype) { return dtype == DType::kFloat32 ? 1e-5 : 5e-3; }

class ComputeDtypeParity : public ParityTest, public ::testing::WithParamInterface<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  double tolerance() const { return tolerance_of(dtype()); }
};

}  // namespace octavo
