// Fixture of the tests of ops on both devices: one law per op. A law runs the op on random arrays of odd, prime and
// realistic sizes, and compares each element of the result with the exact value (exact.h):
//
//   const Exact exact = exact_rms_norm(x.host(), weight.host()).out;
//   rms_norm_forward({.out = out, ..., .x = x, .weight = weight}, stream());
//   expect_exact(out, "rms_norm_forward out", exact);
//
// expect_gradient() compares the exact gradient itself with finite differences. Other tests of an op check everything
// else that its header promises: += outputs, aliases, bits that do not depend on the number of threads, errors.
#pragma once

#include <iostream>
#include <map>

#include "tests/kernels/exact.h"
#include "tests/kernels/op_fixture.h"

namespace octavo {

// Lengths of flat tensors, and offsets of two tensors from their alignment: none, equal, and different ones.
constexpr int64_t kFlatLengths[] = {0, 1, 2, 7, 15, 16, 17, 255, 1009, 4096, 70001};
struct FlatOffsets {
  int64_t out, x;
};
constexpr FlatOffsets kFlatOffsets[] = {{0, 0}, {1, 1}, {5, 5}, {15, 15}, {4, 20}, {0, 1}, {3, 0}, {16, 2}};

class LawTest : public DeviceTest {
 protected:
  // Prints for each bound on a GPU how much of it the largest error used, so that one run shows which bounds are too
  // wide or too narrow.
  void TearDown() override {
    for (const auto& [name, ratio] : worst_of_bound_) {
      if (on_gpu()) std::cout << fmt::format("[  bounds  ] {:.2f} of what is allowed: {}\n", ratio, name);
    }
  }

  // Expects that every element is within its bound. On the CPU also expects that the bounds detect a single element
  // that is wrong by `fraction` of the larger of its magnitude and the root mean square of the tensor.
  void expect_exact(const Array& result, const std::string& name, const Exact& exact, double fraction = 0) {
    const DType type = result.dtype();
    const std::vector<float> values = floats(result.host());
    const Comparison comparison = compare_elements(values, type, exact);
    double& worst = worst_of_bound_[name];
    worst = std::max(worst, comparison.worst_ratio);
    EXPECT_EQ(comparison.wrong, 0) << name << ", " << result.host().describe() << ": "
                                   << comparison.describe(result.dim(-1));
    if (on_gpu()) return;
    if (fraction == 0) fraction = type == DType::kBFloat16 ? 0x1p-6 : 1e-4;
    double squares = 0;
    for (const double value : exact.values) squares += value * value;
    const double scale = std::sqrt(squares / static_cast<double>(values.size()));
    for (size_t i = 0; i < values.size(); i += 1 + values.size() / 53) {
      const auto step = static_cast<float>(fraction * std::max(std::abs(static_cast<double>(values[i])), scale));
      if (step == 0) continue;
      for (const float wrong : {values[i] + step, values[i] - step, std::numeric_limits<float>::quiet_NaN()}) {
        EXPECT_GT(error_ratio(wrong, type, exact, i), 1)
            << name << ", " << result.host().describe() << ": element " << i << ", " << values[i] << " made " << wrong;
      }
    }
  }

  // op(amax) writes `out`. Expects that the amax is that of the written values, never decreases, and does not change a
  // bit of `out`.
  template <typename Op>
  void expect_amax(Array& out, Op op) {
    op(Tensor());
    const std::vector<unsigned char> expected = out.bits();
    for (const double before : {0.0, 0x1p66}) {
      const Array amax = single(before);
      poison(out);
      op(static_cast<const Tensor&>(amax));
      EXPECT_TRUE(out.bits() == expected) << out.host().describe();
      EXPECT_EQ(amax.at(0), largest_magnitude(out, before)) << out.host().describe();
    }
  }
  template <typename Op>
  double amax_after(Op op) {
    const Array amax = single(0);
    op(static_cast<const Tensor&>(amax));
    return amax.at(0);
  }

  // Expects that an op gives the bits of the CPU. op(at, stream) runs the op on the tensors at(array).
  template <typename Op>
  void expect_bits_of_cpu(const std::vector<Array*>& results, Op op) {
    std::vector<std::vector<unsigned char>> before, expected;
    for (const Array* result : results) before.push_back(result->bits());
    op([](const Array& array) { return array.host(); }, cpu_);
    for (const Array* result : results) expected.push_back(result->bits());
    for (size_t i = 0; i < results.size(); ++i) results[i]->set_bits(before[i]);
    op([](const Array& array) { return static_cast<const Tensor&>(array); }, stream());
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_TRUE(results[i]->bits() == expected[i]) << "result " << i << ", " << results[i]->host().describe();
    }
  }

 private:
  Stream cpu_ = Stream::cpu();
  std::map<std::string, double> worst_of_bound_;
};

// Expects that an exact gradient is the derivative of the exact loss(), a function of the float32 array x. Compares
// every `stride`-th element with a central difference, whose error is about 1e-6. `added_to` has the content of the
// gradient to which the op adds.
template <typename F>
void expect_gradient(const Exact& gradient, Array& x, F loss, const char* name, int64_t stride = 1,
                     const Values& added_to = {}) {
  constexpr double kStep = 0x1p-9;
  Values found, expected;
  for (int64_t i = 0; i < x.size(); i += stride) {
    const auto k = static_cast<size_t>(i);
    const double center = x.at(i);
    x.set(i, center + kStep);
    const double high = x.at(i), above = loss();
    x.set(i, center - kStep);
    const double low = x.at(i), below = loss();
    x.set(i, center);
    found.push_back(gradient.values[k] - (added_to.empty() ? 0.0 : added_to[k]));
    expected.push_back((above - below) / (high - low));
  }
  EXPECT_LT(relative_error(found, expected), 2e-5) << name << ", " << x.host().describe();
}

}  // namespace octavo
