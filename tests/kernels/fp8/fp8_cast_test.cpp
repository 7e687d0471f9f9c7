// Tests of ops that write FP8 operands instead of their result. The bits must equal those of the op followed by
// quantize on the same device. The bytes of a GPU and of the CPU may differ, because functions like exp differ in the
// last bits.
#include "kernels/fp8/fp8_cast.h"

#include <functional>

#include "kernels/attention/qk_norm_rope.h"
#include "kernels/attention/rope.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/layers/swiglu.h"
#include "tests/kernels/fp8/fp8_law.h"

namespace octavo::fp8_cast_test {
namespace {

struct Size {
  int64_t m, n;
};

class Fp8CastTest : public Fp8Law {
 protected:
  // On GPUs the widths are multiples of 16, and in training, which casts gradients and into columns, so is the number
  // of tokens.
  std::vector<Size> sizes() const {
    if (!on_gpu()) return {{1, 1}, {7, 13}, {131, 257}, {128, 128}, {37, 384}};
    return {{16, 16}, {144, 272}, {128, 128}, {272, 144}, {304, 384}, {48, 1536}, {48, 4096}, {3, 1536}, {17, 272}};
  }
  bool takes_columns(int64_t tokens) const { return !on_gpu() || tokens % 16 == 0; }

  // Returns values that span many powers of two, with some zeros. Large matrices also have an infinity and a NaN.
  Array varied_with_zeros(int64_t m, int64_t n) {
    Array x = varied(m, n, 13);
    for (int64_t i = 0; i < x.size(); i += 97) x.set(i, 0);
    if (x.size() < 1000) return x;
    x.set(300, std::numeric_limits<double>::infinity());
    x.set(x.size() - 5, std::nan(""));
    return x;
  }

  // The operands that a cast writes.
  struct OwnedCast {
    Operand rows, columns;
    Fp8Cast view(bool with_rows, bool with_columns, const Tensor& amax) const {
      return {.rows = with_rows ? rows.view() : Fp8Operand{},
              .columns = with_columns ? columns.view() : Fp8Operand{},
              .amax = amax};
    }
  };
  OwnedCast owned(DType format, Scaling scaling, int64_t m, int64_t n) {
    return {operand(format, scaling, m, n), operand(format, scaling, n, m)};
  }

  // A function op(cast, amax) that writes `result`, or the cast if `cast` is given.
  using Op = std::function<void(const Fp8Cast&, const Tensor&)>;
  // The scale of a tensor is that of a given amax, or with `own_scale` that of the amax that the op measures.
  void check(Array& result, CastOf what, Scaling scaling, const Op& op, bool own_scale = false) {
    const int64_t m = result.dim(0), n = result.dim(1);
    for (const DType format : kFloat8Formats) {
      if (what == CastOf::kActivation && format != kE4M3) continue;
      for (const auto& [with_rows, with_columns] : {std::pair{true, true}, {true, false}, {false, true}}) {
        if ((with_columns || what == CastOf::kGradient) && !takes_columns(m)) continue;
        SCOPED_TRACE(fmt::format("[{}, {}] to {}, scaling {}{}, rows {}, columns {}", m, n, dtype_name(format),
                                 traits(scaling).name, own_scale ? " of its own" : "", with_rows, with_columns));
        const OwnedCast expected = owned(format, scaling, m, n), cast = expected;
        const Array given = single(2.5), expected_amax = single(own_scale ? 0 : 0.5), amax = expected_amax;
        poison(result);
        op({}, expected_amax);
        quantize({.cast = expected.view(with_rows, with_columns, own_scale ? expected_amax : given), .x = result},
                 stream());
        op(cast.view(with_rows, with_columns, own_scale ? amax : given), amax);
        EXPECT_TRUE(cast.rows == expected.rows);
        EXPECT_TRUE(cast.columns == expected.columns);
        EXPECT_EQ(amax.bits(), expected_amax.bits());
      }
    }
  }
  void check_scalings(Array& result, CastOf what, const Op& op) {
    for (const Scaling scaling : {Scaling::kTensor, Scaling::kBlock1x128}) check(result, what, scaling, op);
    check(result, what, Scaling::kTensor, op, true);
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, Fp8CastTest, ::testing::Values(DType::kFloat32, DType::kBFloat16), name_of_place);
INSTANTIATE_GPU(Fp8CastTest, DType::kBFloat16);

TEST_P(Fp8CastTest, Swiglu) {
  for (const auto& [tokens, width] : sizes()) {
    const Array gate_up = varied_with_zeros(tokens, 2 * width), d_out = varied_with_zeros(tokens, width);
    Array out = array({tokens, width}), d_gate_up = array({tokens, 2 * width});
    const auto forward = [&](const Fp8Cast& cast, const Tensor& amax) {
      swiglu_forward({out, gate_up, amax, cast}, stream());
    };
    const auto backward = [&](const Fp8Cast& cast, const Tensor& amax) {
      swiglu_backward({d_gate_up, d_out, gate_up, amax, cast}, stream());
    };
    for (const Scaling scaling : {Scaling::kTensor, Scaling::kBlock1x128}) {
      check(out, CastOf::kActivation, scaling, forward);
      if (scaling == Scaling::kBlock1x128 && width % 128 != 0) continue;
      check(d_gate_up, CastOf::kGradient, scaling, backward);
    }
  }
}

// Backward also casts the recomputed result of forward. The gradient is cast in some cases and not in others, and may
// replace gate_up.
TEST_P(Fp8CastTest, SwigluBackwardCastsTheResultOfForward) {
  for (const auto& [tokens, width] : sizes()) {
    if (!takes_columns(tokens)) continue;
    const Array gate_up = varied_with_zeros(tokens, 2 * width), d_out = varied_with_zeros(tokens, width);
    const Array out = array({tokens, width}), amax = single(2.5), in_place = gate_up, scratch = d_out;
    Array d_gate_up = array({tokens, 2 * width});
    for (const Scaling scaling : {Scaling::kTensor, Scaling::kBlock1x128}) {
      const OwnedCast expected = owned(kE4M3, scaling, tokens, width);
      swiglu_forward({out, gate_up, {}, expected.view(false, true, amax)}, stream());
      const auto backward = [&](const Array& d_x, const Array& x, const Array& d, const Array& result,
                                const Fp8Cast& cast, const Tensor& measured) {
        const OwnedCast again = owned(kE4M3, scaling, tokens, width);
        swiglu_backward({d_x, d, x, measured, cast, result, again.view(false, true, amax)}, stream());
        EXPECT_TRUE(again.columns == expected.columns);
      };
      swiglu_backward({d_gate_up, d_out, gate_up}, stream());
      const std::vector<unsigned char> plain = d_gate_up.bits();
      poison(d_gate_up);
      backward(d_gate_up, gate_up, d_out, out, {}, {});
      EXPECT_TRUE(d_gate_up.bits() == plain);
      if (scaling == Scaling::kTensor) {
        backward(in_place, in_place, scratch, scratch, {}, {});
        EXPECT_TRUE(in_place.bits() == plain);
      }
      if (scaling == Scaling::kBlock1x128 && width % 128 != 0) continue;
      const auto op = [&](const Fp8Cast& cast, const Tensor& measured) {
        backward(d_gate_up, gate_up, d_out, out, cast, measured);
      };
      check(d_gate_up, CastOf::kGradient, scaling, op);
    }
  }
}

TEST_P(Fp8CastTest, RmsNorm) {
  for (const auto& [tokens, hidden] : sizes()) {
    for (const bool with_residual : {false, true}) {
      Array x = varied_with_zeros(tokens, hidden), residual = varied_with_zeros(tokens, hidden);
      const Array weight = random({hidden}, 0.2, 1.0), sum = array({tokens, hidden});
      const Array rstd = array(DType::kFloat32, {tokens});
      Array out = array({tokens, hidden});
      const auto forward = [&](const Fp8Cast& cast, const Tensor& amax) {
        rms_norm_forward({.out = out,
                          .rstd = rstd,
                          .residual_out = with_residual ? Tensor(sum) : Tensor(),
                          .x = x,
                          .residual = with_residual ? Tensor(residual) : Tensor(),
                          .weight = weight,
                          .amax = amax,
                          .cast = cast},
                         stream());
      };
      check_scalings(out, CastOf::kActivation, forward);
      x = random({tokens, hidden});  // Finite inputs give a finite amax.
      residual = random({tokens, hidden});
      check(out, CastOf::kActivation, Scaling::kTensor, forward, true);
    }
  }
}

// On GPUs, heads of 80, 96 and 256 are cast by a second kernel.
TEST_P(Fp8CastTest, RopeAndQkNormRope) {
  for (const int64_t head_dim :
       on_gpu() ? std::vector<int64_t>{32, 64, 80, 96, 128, 256} : std::vector<int64_t>{2, 20, 64}) {
    for (const int64_t tokens : on_gpu() ? std::vector<int64_t>{16, 80, 192} : std::vector<int64_t>{1, 74}) {
      const int64_t width = (5 + 2 * 3) * head_dim;
      Array input = varied_with_zeros(tokens, width), result = input;
      Array host_table(DType::kFloat32, {tokens == 1 ? 1 : tokens / 2, head_dim});
      rope_table(host_table, 500000.0, RopeScaling{});
      const Array table = on_device(host_table);
      for (const bool inverse : {false, true}) {
        const auto rotate = [&](const Fp8Cast& cast, const Tensor& amax) {
          result.set_bits(input.bits());
          rope({result, table, 5, 3, inverse, amax, cast}, stream());
        };
        check_scalings(result, CastOf::kGradient, rotate);
        const Array saved = input;
        input = on_device(random({tokens, width}));  // Finite inputs give a finite amax.
        check(result, CastOf::kGradient, Scaling::kTensor, rotate, true);
        input = saved;
      }
      reserve(qk_norm_rope_backward_workspace_bytes(head_dim, stream()));
      const Array qkv = random({tokens, width}), weight = random({head_dim}, 0.2, 1.0);
      const Array d_weight = random(DType::kFloat32, {head_dim});
      const auto backward = [&](const Fp8Cast& cast, const Tensor& amax) {
        result.set_bits(input.bits());
        qk_norm_rope_backward({.d_qkv = result,
                               .d_q_weight = d_weight,
                               .d_k_weight = d_weight,
                               .qkv = qkv,
                               .table = table,
                               .q_weight = weight,
                               .k_weight = weight,
                               .num_heads = 5,
                               .num_kv_heads = 3,
                               .amax = amax,
                               .cast = cast},
                              stream());
      };
      input = varied_with_zeros(tokens, width);
      result = input;
      check_scalings(result, CastOf::kGradient, backward);
      input = random({tokens, width});  // Finite inputs give a finite amax.
      check(result, CastOf::kGradient, Scaling::kTensor, backward, true);
    }
  }
}

TEST_P(Fp8CastTest, WrongArgumentsThrow) {
  const Array gate_up = random({3, 10}), d_out = random({3, 5}), out = array({3, 5}), amax = single(1);
  const auto view = [&](Scaling scaling, int64_t n) { return owned(kE4M3, scaling, 3, n); };
  const OwnedCast by_row = view(Scaling::kRow, 5), wide = view(Scaling::kTensor, 6);
  const OwnedCast blocks = view(Scaling::kBlock1x128, 10);
  const auto forward = [&](const OwnedCast& cast) {
    swiglu_forward({out, gate_up, {}, cast.view(true, true, amax)}, stream());
  };
  expect_error([&] { forward(by_row); }, "known only after the result");
  expect_error([&] { forward(wide); }, "swiglu_forward cast rows");
  expect_error(
      [&] {
        swiglu_backward({gate_up, d_out, gate_up, {}, blocks.view(true, true, amax)}, stream());
      },
      "5 is no multiple of 128");
}

}  // namespace
}  // namespace octavo::fp8_cast_test
