#include "kernels/optimizer/adamw.h"

#include "tests/kernels/law.h"

namespace octavo::adamw_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The tensors of the op. The weight is optional.
struct State {
  Array master, exp_avg, exp_avg_sq, grad, weight;
  bool with_weight = true;

  template <typename At>
  Adamw args(At at, const AdamwOptions& options = {.lr = 0.1f}) const {
    return {.master = at(master),
            .exp_avg = at(exp_avg),
            .exp_avg_sq = at(exp_avg_sq),
            .grad = at(grad),
            .weight = with_weight ? at(weight) : Tensor(),
            .grad_sum_of_squares = {},
            .options = options};
  }
};
Tensor on_host(const Array& x) { return x.host(); }
Tensor in_place(const Array& x) { return x; }

// The dtype is that of the moments.
class AdamwTest : public LawTest {
 protected:
  State start(int64_t n, int64_t offset = 0, int64_t grad_offset = 0) {
    const Array zeros = filled(dtype(), {n}, 0);
    return {on_device(random(DType::kFloat32, {n}), offset), on_device(zeros, offset), on_device(zeros, offset),
            on_device(random(DType::kFloat32, {n}), grad_offset), array(DType::kBFloat16, {n}, offset)};
  }
  static double stored_in_bfloat16(double value) {
    return static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(value))));
  }
};
INSTANTIATE_DEVICES_AND_DTYPES(AdamwTest);

struct Case {
  int64_t n, offset, grad_offset;
};
constexpr Case kCases[] = {{1, 0, 0},    {7, 1, 1},       {1009, 0, 0}, {4096, 0, 0},
                           {4096, 1, 0}, {10007, 13, 13}, {10007, 2, 3}};

// The gradient norm is not clipped, clipped, and below the limit. Each step starts from the stored state. The amax is
// that of the weights after the update, and never smaller than before.
TEST_P(AdamwTest, EveryStep) {
  for (const auto& [n, offset, grad_offset] : kCases) {
    for (const float grad_clip : {0.0f, 0.5f, 1e6f}) {
      State state = start(n, offset, grad_offset);
      for (int64_t step = 1; step <= 5; ++step) {
        state.grad = on_device(random(DType::kFloat32, {n}), grad_offset);
        poison(state.weight);
        const Array squares = single(dot(state.grad, state.grad.values()));
        const double before = step == 2 ? 1000 : 0;
        const Array amax = single(before);
        const AdamwOptions options{.lr = 0.01f,
                                   .beta1 = 0.8f,
                                   .beta2 = 0.9f,
                                   .eps = 1e-4f,
                                   .weight_decay = 0.1f,
                                   .grad_clip = grad_clip,
                                   .step = step};
        Adamw host_args = state.args(on_host, options);
        host_args.grad_sum_of_squares = squares.host();
        const ExactAdamw exact = exact_adamw(host_args);
        Adamw args = state.args(in_place, options);
        args.grad_sum_of_squares = squares;
        args.amax = amax;
        adamw(args, stream());
        expect_exact(state.exp_avg, "adamw exp_avg", exact.exp_avg);
        expect_exact(state.exp_avg_sq, "adamw exp_avg_sq", exact.exp_avg_sq);
        expect_exact(state.master, "adamw master", exact.master);
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(state.weight.at(i), stored_in_bfloat16(state.master.at(i)));
        EXPECT_EQ(amax.at(0), largest_magnitude(state.master, before)) << "amax of " << n << " weights";
      }
    }
  }
}

// An infinite gradient makes the moments infinite and the update NaN. A run without bfloat16 weights has no `weight`.
TEST_P(AdamwTest, AmaxOfWhatIsNotFinite) {
  for (const int64_t broken : {0, 5002}) {
    State state = start(5003, 3, 3);
    state.with_weight = false;
    const Array amax = single(0);
    Adamw args = state.args(in_place);
    args.amax = amax;
    adamw(args, stream());
    EXPECT_EQ(amax.at(0), largest_magnitude(state.master, 0));
    state.grad.set(broken, kInfinity);
    adamw(args, stream());
    EXPECT_TRUE(std::isnan(amax.at(0))) << broken;
    state.grad.set(broken, 1);
    adamw(args, stream());
    EXPECT_TRUE(std::isnan(amax.at(0))) << "a NaN was forgotten";
  }
}

// If the gradient and the moments are zero, only the weight decay acts: padding stays zero, and weights shrink by lr *
// decay.
TEST_P(AdamwTest, ZeroGradient) {
  State state = start(3);
  state.master.set(0, 0);
  state.master.set(1, 2);
  state.grad.fill(0);
  adamw(state.args(in_place, {.lr = 0.5f, .weight_decay = 0.25f}), stream());
  EXPECT_EQ(state.master.at(0), 0);
  EXPECT_EQ(state.master.at(1), 1.75);
}

TEST_P(AdamwTest, NanNormShows) {
  const State state = start(2);
  const Array squares = single(std::nan(""));
  Adamw args = state.args(in_place, {.lr = 0.1f, .grad_clip = 1});
  args.grad_sum_of_squares = squares;
  adamw(args, stream());
  EXPECT_TRUE(std::isnan(state.master.at(0)));
}

// Non-finite gradients change no state, and the amax is that of the unchanged weights.
TEST_P(AdamwTest, SkipLeavesEverythingAsItIs) {
  for (const double broken : {kInfinity, std::nan("")}) {
    State state = start(5003, 3, 3);
    adamw(state.args(in_place), stream());
    const State before = state;
    state.grad.fill(broken);
    const Array amax = single(0), skip = single(1);
    Adamw args = state.args(in_place);
    args.amax = amax;
    args.skip = skip;
    adamw(args, stream());
    EXPECT_EQ(state.master.bits(), before.master.bits());
    EXPECT_EQ(state.exp_avg.bits(), before.exp_avg.bits());
    EXPECT_EQ(state.exp_avg_sq.bits(), before.exp_avg_sq.bits());
    EXPECT_EQ(state.weight.bits(), before.weight.bits());
    EXPECT_EQ(amax.at(0), largest_magnitude(before.master, 0));
  }
}

TEST_P(AdamwTest, IsReproducible) {
  const State first = start(1013);
  expect_reproducible([&] {
    const State state = first;
    adamw(state.args(in_place), stream());
    return state.master;
  });
}

TEST_P(AdamwTest, WrongArgumentsThrow) {
  State state = start(5);
  const Array grad = random(DType::kFloat32, {4});
  Adamw args = state.args(in_place, {});
  args.grad = grad;
  expect_error([&] { adamw(args, stream()); }, "adamw grad is float32 [4], expected float32 [5]");
  args.grad = state.grad;
  args.amax = state.grad;
  expect_error([&] { adamw(args, stream()); }, "adamw amax is float32 [5], expected float32 [1]");
  args.amax = {};
  args.options.grad_clip = 1;
  expect_error([&] { adamw(args, stream()); }, "missing, expected float32 [1]");
  args.options.grad_clip = 0;
  args.options.step = 0;
  expect_error([&] { adamw(args, stream()); }, "steps count from 1, got 0");
}

// Moments in float8, on GPUs: all bits equal those of the CPU, including those of the stochastic rounding.
class AdamwFloat8Parity : public LawTest {};
INSTANTIATE_GPU(AdamwFloat8Parity, DType::kFloat32);

TEST_P(AdamwFloat8Parity, EveryStep) {
  for (const auto& [n, offset, grad_offset] : kCases) {
    for (const int64_t columns : {1, 3, 128, 500, 999, 1000}) {
      Array master = on_device(random({n}), offset), exp_avg = array(DType::kFloat8E4M3, {n}, offset);
      Array exp_avg_sq = array(DType::kBFloat16, {n}, offset), weight = array(DType::kBFloat16, {n}, offset);
      Array amax = single(0);
      exp_avg.set_bits(std::vector<unsigned char>(static_cast<size_t>(n), 0));
      exp_avg_sq.fill(0);
      for (int64_t step = 1; step <= 5; ++step) {
        const Array grad = on_device(random({n}), grad_offset), norm = single(static_cast<double>(n));
        expect_bits_of_cpu(
            {&master, &exp_avg, &exp_avg_sq, &weight, &amax}, [&, columns = columns](auto at, Stream& s) {
              adamw({.master = at(master),
                     .exp_avg = at(exp_avg),
                     .exp_avg_sq = at(exp_avg_sq),
                     .grad = at(grad),
                     .weight = at(weight),
                     .amax = at(amax),
                     .grad_sum_of_squares = at(norm),
                     .options = {.lr = 0.01f, .weight_decay = 0.1f, .grad_clip = step == 2 ? 0.0f : 1.0f, .step = step},
                     .random_key = 1000 + static_cast<uint64_t>(step),
                     .range = {.first_index = 77, .begin = 13, .columns = columns, .row_stride = 1000}},
                    s);
            });
      }
    }
  }
}

}  // namespace
}  // namespace octavo::adamw_test
