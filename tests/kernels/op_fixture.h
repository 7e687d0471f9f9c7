// Fixture of the tests of ops on the CPU. The tests of an op are in tests/kernels/<op>_test.cpp, in a class derived
// from OpTest that INSTANTIATE_COMPUTE_DTYPES runs for float32 and bfloat16. They contain
//
//   the definition of the op in float64, written from its header as a plain function of vectors;
//   a test of forward, which runs the op on random() arrays: expect_close(out, definition(x), tolerance());
//   a test of backward: expect_gradient(d_x, [&](const Values& x) { return dot(d_out, definition(x)); }, x,
//   tolerance()).
//       It compares with central differences of the float64 definition, whose error is far below any tolerance;
//   tests of everything else that the header promises: += outputs, aliases, bits that do not depend on the number of
//       threads, errors.
//
// parity_test.cpp compares CUDA with the CPU.
#pragma once

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/stream.h"

namespace octavo {

using Values = std::vector<double>;

// A tensor in host memory that owns exactly the memory of its elements, so that AddressSanitizer detects every overrun.
// All bits are initially one, which is NaN in every float format, so that an element that an op fails to write is
// detected.
class Array {
 public:
  Array(DType dtype, std::initializer_list<int64_t> shape)
      : bytes_(static_cast<size_t>(Tensor(nullptr, dtype, shape).bytes()), 0xff),
        tensor_(bytes_.data(), dtype, shape) {}
  Array(const Array& other) : bytes_(other.bytes_), tensor_(other.tensor_) { tensor_ = other.moved_to(bytes_.data()); }
  Array& operator=(const Array& other) {
    bytes_ = other.bytes_;
    tensor_ = other.moved_to(bytes_.data());
    return *this;
  }

  operator const Tensor&() const { return tensor_; }  // NOLINT: an Array can be passed wherever an op takes a tensor.
  int64_t size() const { return tensor_.numel(); }
  DType dtype() const { return tensor_.dtype(); }

  double at(int64_t i) const {
    if (dtype() == DType::kBFloat16) return static_cast<double>(static_cast<float>(tensor_.data<BFloat16>()[i]));
    if (dtype() == DType::kInt32) return tensor_.data<int32_t>()[i];
    return static_cast<double>(tensor_.data<float>()[i]);
  }
  // Sets an element, rounded to the dtype.
  void set(int64_t i, double value) {
    if (dtype() == DType::kFloat32) tensor_.data<float>()[i] = static_cast<float>(value);
    if (dtype() == DType::kBFloat16) tensor_.data<BFloat16>()[i] = BFloat16(static_cast<float>(value));
    if (dtype() == DType::kInt32) tensor_.data<int32_t>()[i] = static_cast<int32_t>(value);
  }
  void fill(double value) {
    for (int64_t i = 0; i < size(); ++i) set(i, value);
  }
  Values values() const {
    Values all(static_cast<size_t>(size()));
    for (int64_t i = 0; i < size(); ++i) all[static_cast<size_t>(i)] = at(i);
    return all;
  }
  const std::vector<unsigned char>& bits() const { return bytes_; }

 private:
  Tensor moved_to(void* data) const {
    switch (tensor_.ndim()) {
      case 1:
        return {data, dtype(), {tensor_.dim(0)}};
      case 2:
        return {data, dtype(), {tensor_.dim(0), tensor_.dim(1)}};
      default:
        return {data, dtype(), {tensor_.dim(0), tensor_.dim(1), tensor_.dim(2)}};
    }
  }

  std::vector<unsigned char> bytes_;
  Tensor tensor_;
};

inline double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
inline double dot(const Array& a, const Values& b) { return dot(a.values(), b); }

inline Values sum_of(Values a, const Values& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// Returns ||value - expected|| / ||expected||. A NaN in either makes the result NaN, which exceeds every tolerance.
inline double relative_error(const Values& value, const Values& expected) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += (value.at(i) - expected[i]) * (value[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return difference == 0 ? 0.0 : std::sqrt(difference / norm);
}

inline void expect_close(const Array& array, const Values& expected, double tolerance, const char* name = "out") {
  ASSERT_EQ(array.size(), static_cast<int64_t>(expected.size())) << name;
  EXPECT_LT(relative_error(array.values(), expected), tolerance)
      << name << ", " << static_cast<const Tensor&>(array).describe();
}

// Compares every `stride`-th element of a gradient with the central difference of the float64 function f at the stored
// values of x. `added_to` holds the content of the gradient before an op with += outputs.
template <typename F>
void expect_gradient(const Array& gradient, F f, const Array& x, double tolerance, const char* name, int64_t stride = 1,
                     const Values& added_to = {}) {
  constexpr double kStep = 1e-5;  // Truncation and rounding errors are both about 1e-10.
  ASSERT_EQ(gradient.size(), x.size()) << name;
  Values at = x.values();
  Values found;
  Values expected;
  for (size_t i = 0; i < at.size(); i += static_cast<size_t>(stride)) {
    const double center = at[i];
    at[i] = center + kStep;
    const double above = f(at);
    at[i] = center - kStep;
    const double below = f(at);
    at[i] = center;
    found.push_back(gradient.at(static_cast<int64_t>(i)) - (added_to.empty() ? 0.0 : added_to[i]));
    expected.push_back((above - below) / (2 * kStep));
  }
  EXPECT_LT(relative_error(found, expected), tolerance) << name << ", " << static_cast<const Tensor&>(x).describe();
}

// Returns max(before, max |x|), the amax that an op must leave if it was `before`.
inline double largest_magnitude(const Array& x, double before) {
  for (int64_t i = 0; i < x.size(); ++i) before = std::max(before, std::abs(x.at(i)));
  return before;
}

// Expects that `work` throws an Error (or the given type) whose message contains `text`.
template <typename Kind = Error, typename Work>
void expect_error(Work work, const std::string& text) {
  try {
    work();
    ADD_FAILURE() << "no error; expected one that says: " << text;
  } catch (const Kind& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what() << "\nexpected: " << text;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another kind of error: " << error.what();
  }
}

// Expects that `run` returns an Array with equal bits for every number of threads.
template <typename Run>
void expect_thread_independent(Run run) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const Array alone = run();
  for (const int threads : {2, 3, 7}) {
    omp_set_num_threads(threads);
    EXPECT_EQ(run().bits(), alone.bits()) << threads << " threads";
  }
  omp_set_num_threads(before);
}

class OpTest : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  // Tolerance, as a relative norm, for a result of float32 arithmetic that is rounded once to the dtype. Rounding to
  // bfloat16 changes each element by up to 2^-8. Float32 arithmetic over a few hundred terms loses a few 1e-7.
  double tolerance() const { return dtype() == DType::kBFloat16 ? 0x1p-8 : 3e-6; }

  // Returns normally distributed values, rounded to the dtype.
  Array random(DType type, std::initializer_list<int64_t> shape, double deviation = 1.0, double mean = 0.0) {
    Array array(type, shape);
    std::normal_distribution<double> normal(mean, deviation);
    for (int64_t i = 0; i < array.size(); ++i) array.set(i, normal(generator_));
    return array;
  }
  Array random(std::initializer_list<int64_t> shape, double deviation = 1.0, double mean = 0.0) {
    return random(dtype(), shape, deviation, mean);
  }
  // Returns uniform integers in [low, high).
  Array random_integers(std::initializer_list<int64_t> shape, int32_t low, int32_t high) {
    Array array(DType::kInt32, shape);
    std::uniform_int_distribution<int32_t> uniform(low, high - 1);
    for (int64_t i = 0; i < array.size(); ++i) array.set(i, uniform(generator_));
    return array;
  }

  // Gives the stream a workspace of exactly this size.
  void reserve(int64_t bytes) {
    workspace_.assign(static_cast<size_t>(bytes), 0xff);
    stream_.set_workspace(Tensor(workspace_.data(), DType::kUInt8, {bytes}));
  }

  Stream stream_ = Stream::cpu();
  std::mt19937_64 generator_{20250131};

 private:
  std::vector<unsigned char> workspace_;
};

#define INSTANTIATE_COMPUTE_DTYPES(Suite)                                                    \
  INSTANTIATE_TEST_SUITE_P(Cpu, Suite, ::testing::Values(DType::kFloat32, DType::kBFloat16), \
                           [](const auto& instance) { return std::string(dtype_name(instance.param)); })

}  // namespace octavo
