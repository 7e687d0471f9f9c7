// Arrays, comparisons and fixtures of the tests of ops. A class derived from DeviceTest runs its tests on both devices,
// one derived from OpTest on the CPU only. law.h has the fixture that compares results with exact values.
#pragma once

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/error.h"
#include "core/stream.h"

namespace octavo {

using Values = std::vector<double>;

class Array;

// The arrays of a test whose ops run on a device. Each array has a copy in host memory, which the test writes and
// reads.
class DeviceArrays {
 public:
  explicit DeviceArrays(Stream& stream) : stream_(stream) {}

  // Copies arrays that the test has written to the device. An op that is queued next may write any array.
  Stream& begin_op();

 private:
  friend class Array;
  Stream& stream_;
  std::set<Array*> arrays_;
  int64_t ops_ = 0;
};

// A tensor that owns exactly the memory of its elements, so that AddressSanitizer detects every overrun. All bits are
// initially one, which is NaN in every float format, so that an element that an op fails to write is detected. An array
// lies in host memory, or on the device of a DeviceArrays. An offset shifts the copy on the device by that many
// elements from its alignment.
class Array {
 public:
  Array(DType dtype, const std::vector<int64_t>& shape)
      : bytes_(static_cast<size_t>(bytes_of(dtype, shape)), 0xff), tensor_(view(bytes_.data(), dtype, shape)) {}
  Array(DeviceArrays& arrays, DType dtype, const std::vector<int64_t>& shape, int64_t offset = 0)
      : Array(dtype, shape) {
    attach(&arrays, offset);
  }
  Array(const Array& other) { *this = other; }
  Array& operator=(const Array& other) {
    if (this == &other) return *this;
    detach();
    bytes_ = other.bits();
    tensor_ = other.tensor_at(bytes_.data());
    attach(other.arrays_, other.offset_);
    return *this;
  }
  ~Array() { detach(); }

  // NOLINT: an Array can be passed wherever an op takes a tensor.
  operator const Tensor&() const { return arrays_ == nullptr ? tensor_ : device_tensor_; }
  // Returns the copy in host memory.
  const Tensor& host() const {
    read();
    return tensor_;
  }
  int64_t size() const { return tensor_.numel(); }
  int64_t dim(int i) const { return tensor_.dim(i); }
  DType dtype() const { return tensor_.dtype(); }

  double at(int64_t i) const {
    read();
    if (dtype() == DType::kBFloat16) return static_cast<double>(static_cast<float>(tensor_.data<BFloat16>()[i]));
    if (dtype() == DType::kInt32) return tensor_.data<int32_t>()[i];
    return static_cast<double>(tensor_.data<float>()[i]);
  }
  // Sets an element, rounded to the dtype.
  void set(int64_t i, double value) {
    write();
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
  const std::vector<unsigned char>& bits() const {
    read();
    return bytes_;
  }
  void set_bits(const std::vector<unsigned char>& bits) {
    write();
    std::copy(bits.begin(), bits.end(), bytes_.begin());
  }

 private:
  friend class DeviceArrays;

  static Tensor view(void* data, DType dtype, const std::vector<int64_t>& s) {
    if (s.size() == 1) return {data, dtype, {s[0]}};
    if (s.size() == 2) return {data, dtype, {s[0], s[1]}};
    return {data, dtype, {s.at(0), s.at(1), s.at(2)}};
  }
  static int64_t bytes_of(DType dtype, const std::vector<int64_t>& shape) {
    return view(nullptr, dtype, shape).bytes();
  }
  Tensor tensor_at(void* data) const {
    std::vector<int64_t> shape;
    for (int i = 0; i < tensor_.ndim(); ++i) shape.push_back(tensor_.dim(i));
    return view(data, dtype(), shape);
  }

  void attach(DeviceArrays* arrays, int64_t offset) {
    arrays_ = arrays;
    offset_ = offset;
    if (arrays == nullptr) return;
    arrays->arrays_.insert(this);
    const int64_t skipped = offset * dtype_bytes(dtype());
    const int64_t bytes = skipped + std::ssize(bytes_);
    if (arrays->stream_.is_cuda()) {
      device_memory_ = Buffer::device(Device::kCuda, bytes);
    } else {
      cpu_memory_.assign(static_cast<size_t>(bytes), 0xff);
    }
    void* first = arrays->stream_.is_cuda() ? device_memory_.data() : cpu_memory_.data();
    device_tensor_ = tensor_at(static_cast<char*>(first) + skipped);
    written_ = true;
  }
  void detach() {
    if (arrays_ != nullptr) arrays_->arrays_.erase(this);
  }
  void write() {
    read();
    written_ = true;
  }
  void read() const {
    if (arrays_ == nullptr || written_ || read_after_ == arrays_->ops_) return;
    copy(bytes_.data(), device_tensor_.raw());
    read_after_ = arrays_->ops_;
  }
  void copy(void* out, const void* in) const {
    if (bytes_.empty()) return;
    arrays_->stream_.copy(out, in, std::ssize(bytes_));
    arrays_->stream_.synchronize();
  }

  mutable std::vector<unsigned char> bytes_;
  Tensor tensor_;
  DeviceArrays* arrays_ = nullptr;  // Null if the array is in host memory only.
  int64_t offset_ = 0;
  Tensor device_tensor_;
  std::vector<unsigned char> cpu_memory_;
  Buffer device_memory_;
  bool written_ = false;            // Whether the test wrote the array since the last op.
  mutable int64_t read_after_ = 0;  // Number of ops after which the device's memory was copied.
};

inline Stream& DeviceArrays::begin_op() {
  for (Array* array : arrays_) {
    if (array->written_) array->copy(array->device_tensor_.raw(), array->bytes_.data());
    array->written_ = false;
  }
  ++ops_;
  return stream_;
}

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

// The dtype and the device of the tests of an op.
struct OpPlace {
  // NOLINT: where a test has no device, its parameter is a dtype.
  OpPlace(DType dtype_, Device device_ = Device::kCpu) : dtype(dtype_), device(device_) {}
  operator DType() const { return dtype; }  // NOLINT
  DType dtype;
  Device device;
};
inline std::string name_of_place(const ::testing::TestParamInfo<OpPlace>& info) { return dtype_name(info.param.dtype); }

class OpTest : public ::testing::TestWithParam<OpPlace> {
 protected:
  DType dtype() const { return GetParam().dtype; }
  // Tolerance, as a relative norm, for a result of float32 arithmetic that is rounded once to the dtype. Rounding to
  // bfloat16 changes each element by up to 2^-8. Float32 arithmetic over a few hundred terms loses a few 1e-7.
  double tolerance() const { return dtype() == DType::kBFloat16 ? 0x1p-8 : 3e-6; }

  // Returns normally distributed values, rounded to the dtype.
  Array random(DType type, const std::vector<int64_t>& shape, double deviation = 1.0, double mean = 0.0) {
    Array array(type, shape);
    std::normal_distribution<double> normal(mean, deviation);
    for (int64_t i = 0; i < array.size(); ++i) array.set(i, normal(generator_));
    return array;
  }
  Array random(const std::vector<int64_t>& shape, double deviation = 1.0, double mean = 0.0) {
    return random(dtype(), shape, deviation, mean);
  }
  // Returns uniform integers in [low, high).
  Array random_integers(const std::vector<int64_t>& shape, int32_t low, int32_t high) {
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

// A test whose ops run on the device of its parameter. Arrays are made by array(), random() and random_integers(), and
// ops are queued on stream(). Tests on a GPU are skipped if there is none.
class DeviceTest : public OpTest {
 protected:
  void SetUp() override {
    if (on_gpu() && cuda_device_count() == 0) GTEST_SKIP() << "needs a GPU";
    if (on_gpu()) stream_ = Stream::cuda(0);
  }

  bool on_gpu() const { return GetParam().device == Device::kCuda; }
  // Returns the stream for the next op, after it has copied to the device what the test has written. Do not keep it.
  Stream& stream() { return arrays_.begin_op(); }

  Array array(DType type, const std::vector<int64_t>& shape, int64_t offset = 0) {
    return {arrays_, type, shape, offset};
  }
  Array array(const std::vector<int64_t>& shape) { return array(dtype(), shape); }
  Array filled(DType type, const std::vector<int64_t>& shape, double value) {
    Array result = array(type, shape);
    result.fill(value);
    return result;
  }
  // Returns a tensor [1] float32.
  Array single(double value) { return filled(DType::kFloat32, {1}, value); }
  // Returns an array on the device with the elements of x, `offset` elements after an aligned address.
  Array on_device(const Array& x, int64_t offset = 0) {
    std::vector<int64_t> shape;
    for (int i = 0; i < static_cast<const Tensor&>(x).ndim(); ++i) shape.push_back(x.dim(i));
    Array result = array(x.dtype(), shape, offset);
    result.set_bits(x.bits());
    return result;
  }
  Array random(DType type, const std::vector<int64_t>& shape, double deviation = 1.0, double mean = 0.0) {
    return on_device(OpTest::random(type, shape, deviation, mean));
  }
  Array random(const std::vector<int64_t>& shape, double deviation = 1.0, double mean = 0.0) {
    return random(dtype(), shape, deviation, mean);
  }
  Array random_integers(const std::vector<int64_t>& shape, int32_t low, int32_t high) {
    return on_device(OpTest::random_integers(shape, low, high));
  }
  static void poison(Array& array) { array.set_bits(std::vector<unsigned char>(array.bits().size(), 0xff)); }

  // Gives the stream a workspace of this size with arbitrary contents.
  void reserve(int64_t bytes) {
    stream().synchronize();
    if (!on_gpu()) return OpTest::reserve(bytes);
    const std::vector<unsigned char> ones(static_cast<size_t>(bytes), 0xff);
    gpu_workspace_ = Buffer::device(Device::kCuda, bytes);
    stream_.copy(gpu_workspace_.data(), ones.data(), bytes);
    stream_.synchronize();
    stream_.set_workspace(Tensor(gpu_workspace_.data(), DType::kUInt8, {bytes}));
  }

  // Expects that run(), which returns an Array, gives equal bits every time, and on the CPU for every number of
  // threads.
  template <typename Run>
  void expect_reproducible(Run run) {
    if (!on_gpu()) return expect_thread_independent(run);
    const Array first = run();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(run().bits(), first.bits()) << "not deterministic";
  }

 private:
  DeviceArrays arrays_{stream_};
  Buffer gpu_workspace_;
};

#define INSTANTIATE_COMPUTE_DTYPES(Suite) \
  INSTANTIATE_TEST_SUITE_P(Cpu, Suite, ::testing::Values(DType::kFloat32, DType::kBFloat16), name_of_place)

// Runs a suite for these dtypes on both devices.
#define INSTANTIATE_DEVICES(Suite, ...)                                                                             \
  INSTANTIATE_TEST_SUITE_P(Cpu, Suite, ::testing::ValuesIn(places_of(Device::kCpu, {__VA_ARGS__})), name_of_place); \
  INSTANTIATE_TEST_SUITE_P(Gpu, Suite, ::testing::ValuesIn(places_of(Device::kCuda, {__VA_ARGS__})), name_of_place)
#define INSTANTIATE_GPU(Suite, ...) \
  INSTANTIATE_TEST_SUITE_P(Gpu, Suite, ::testing::ValuesIn(places_of(Device::kCuda, {__VA_ARGS__})), name_of_place)
#define INSTANTIATE_DEVICES_AND_DTYPES(Suite) INSTANTIATE_DEVICES(Suite, DType::kFloat32, DType::kBFloat16)

inline std::vector<OpPlace> places_of(Device device, const std::vector<DType>& dtypes) {
  std::vector<OpPlace> places;
  for (const DType dtype : dtypes) places.emplace_back(dtype, device);
  return places;
}

}  // namespace octavo
