// Tests of ops that write FP8 operands instead of their result. The bits must equal those of the op followed by
// quantize.
#include "kernels/fp8/fp8_cast.h"

#include <functional>
#include <limits>

#include "core/error.h"
#include "kernels/attention/qk_norm_rope.h"
#include "kernels/attention/rope.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/layers/swiglu.h"
#include "tests/kernels/op_fixture.h"

namespace octavo::fp8_cast_test {
namespace {

struct Size {
  int64_t m, n;
};
constexpr Size kSizes[] = {{1, 1}, {7, 13}, {131, 257}, {128, 128}, {37, 384}};

// Owns the tensors that a cast of a matrix [m, n] writes.
struct OwnedCast {
  Array rows, rows_scale_inv, columns, columns_scale_inv, amax;
  Scaling scaling;

  OwnedCast(DType format, Scaling scaling_, int64_t m, int64_t n)
      : rows(format, {m, n}),
        rows_scale_inv(DType::kFloat32, {fp8_scale_count(scaling_, m, n)}),
        columns(format, {n, m}),
        columns_scale_inv(DType::kFloat32, {fp8_scale_count(scaling_, n, m)}),
        amax(DType::kFloat32, {1}),
        scaling(scaling_) {
    amax.fill(2.5);
  }
  Fp8Cast view() const { return {{rows, rows_scale_inv, scaling}, {columns, columns_scale_inv, scaling}, amax}; }
};

class Fp8CastTest : public OpTest {
 protected:
  // Returns values that span many powers of two, with some zeros. Large matrices also have an infinity and a NaN.
  Array varied(int64_t m, int64_t n) {
    Array x = random({m, n});
    for (int64_t i = 0; i < x.size(); ++i) x.set(i, x.at(i) * std::pow(2.0, (i / n * 3 + i % n * 5) % 13 - 6));
    for (int64_t i = 0; i < x.size(); i += 97) x.set(i, 0);
    if (x.size() < 1000) return x;
    x.set(300, std::numeric_limits<double>::infinity());
    x.set(x.size() - 5, std::nan(""));
    return x;
  }

  // A function op(cast, amax) that writes and returns a result [m, n], or writes the cast if `cast` is given.
  using Op = std::function<Array(const Fp8Cast&, const Tensor&)>;
  void expect_bits_of_quantize(int64_t m, int64_t n, CastOf what, Scaling scaling, const Op& op) {
    for (const DType format : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      if (what == CastOf::kActivation && format != DType::kFloat8E4M3) continue;
      SCOPED_TRACE(fmt::format("[{}, {}], {}, scaling {}", m, n, dtype_name(format), static_cast<int>(scaling)));
      Array amax(DType::kFloat32, {1});
      Array amax_out(DType::kFloat32, {1});
      amax.fill(0.5);
      amax_out.fill(0.5);
      const OwnedCast expected(format, scaling, m, n);
      const OwnedCast cast(format, scaling, m, n);
      const Array result = op({}, amax);
      const Fp8Cast wanted = expected.view();
      quantize({.cast = wanted, .x = result}, stream_);
      op(cast.view(), amax_out);
      EXPECT_EQ(cast.rows.bits(), expected.rows.bits());
      EXPECT_EQ(cast.rows_scale_inv.bits(), expected.rows_scale_inv.bits());
      EXPECT_EQ(cast.columns.bits(), expected.columns.bits());
      EXPECT_EQ(cast.columns_scale_inv.bits(), expected.columns_scale_inv.bits());
      EXPECT_EQ(amax_out.bits(), amax.bits());
    }
  }

  // Expects that an op that scales its result by the result's own amax writes the same bits as quantize() of the
  // result.
  void expect_bits_of_own_scale(int64_t m, int64_t n, CastOf what, const Op& op) {
    for (const DType format : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      if (what == CastOf::kActivation && format != DType::kFloat8E4M3) continue;
      SCOPED_TRACE(fmt::format("[{}, {}], {}, scale of its own", m, n, dtype_name(format)));
      const OwnedCast expected(format, Scaling::kTensor, m, n);
      const OwnedCast cast(format, Scaling::kTensor, m, n);
      Array amax(DType::kFloat32, {1});
      Fp8Cast wanted = expected.view();
      Fp8Cast made = cast.view();
      wanted.amax = Tensor(amax);
      amax.fill(0);
      const Array result = op({}, amax);
      quantize({.cast = wanted, .x = result}, stream_);
      Array own(DType::kFloat32, {1});
      own.fill(0);
      made.amax = Tensor(own);
      op(made, own);
      EXPECT_EQ(own.bits(), amax.bits());
      EXPECT_EQ(cast.rows.bits(), expected.rows.bits());
      EXPECT_EQ(cast.columns.bits(), expected.columns.bits());
      EXPECT_EQ(cast.columns_scale_inv.bits(), expected.columns_scale_inv.bits());
    }
  }
};
INSTANTIATE_COMPUTE_DTYPES(Fp8CastTest);

TEST_P(Fp8CastTest, Swiglu) {
  for (const auto& [tokens, width] : kSizes) {
    const Array gate_up = varied(tokens, 2 * width);
    const Array d_out = varied(tokens, width);
    const auto forward = [&, m = tokens, n = width](const Fp8Cast& cast, const Tensor& amax) {
      Array out(dtype(), {m, n});
      swiglu_forward({.out = out, .gate_up = gate_up, .amax = amax, .cast = cast}, stream_);
      return out;
    };
    const auto backward = [&](const Fp8Cast& cast, const Tensor& amax) {
      Array in_place = gate_up;
      swiglu_backward({.d_gate_up = in_place, .d_out = d_out, .gate_up = in_place, .amax = amax, .cast = cast},
                      stream_);
      return in_place;
    };
    for (const Scaling scaling : {Scaling::kTensor, Scaling::kBlock1x128}) {
      expect_bits_of_quantize(tokens, width, CastOf::kActivation, scaling, forward);
      if (scaling == Scaling::kTensor || width % 128 == 0) {
        expect_bits_of_quantize(tokens, 2 * width, CastOf::kGradient, scaling, backward);
      }
    }
  }
}

TEST_P(Fp8CastTest, SwigluBackwardCastsTheResultOfForward) {
  for (const auto& [tokens, width] : kSizes) {
    const Array gate_up = varied(tokens, 2 * width);
    const Array d_out = varied(tokens, width);
    for (const Scaling scaling : {Scaling::kTensor, Scaling::kBlock1x128}) {
      const OwnedCast expected(DType::kFloat8E4M3, scaling, tokens, width);
      const OwnedCast again(DType::kFloat8E4M3, scaling, tokens, width);
      const auto columns = [](const OwnedCast& cast) {
        const Fp8Cast both = cast.view();
        return Fp8Cast{.rows = {}, .columns = both.columns, .amax = both.amax};
      };
      const Array out(dtype(), {tokens, width});
      swiglu_forward({.out = out, .gate_up = gate_up, .amax = {}, .cast = columns(expected)}, stream_);
      const Array plain = gate_up;
      swiglu_backward({.d_gate_up = plain, .d_out = d_out, .gate_up = plain}, stream_);
      const Array in_place = gate_up;
      const Array scratch = d_out;
      swiglu_backward(
          {.d_gate_up = in_place, .d_out = scratch, .gate_up = in_place, .out = scratch, .out_cast = columns(again)},
          stream_);
      EXPECT_EQ(again.columns.bits(), expected.columns.bits());
      EXPECT_EQ(again.columns_scale_inv.bits(), expected.columns_scale_inv.bits());
      EXPECT_EQ(in_place.bits(), plain.bits());
    }
  }
}

TEST_P(Fp8CastTest, RmsNorm) {
  for (const auto& [tokens, hidden] : kSizes) {
    const Array x = varied(tokens, hidden);
    const Array residual = varied(tokens, hidden);
    const Array weight = random({hidden}, 0.2, 1.0);
    const auto forward = [&, m = tokens, n = hidden](const Fp8Cast& cast, const Tensor& amax) {
      Array out(dtype(), {m, n});
      const Array rstd(DType::kFloat32, {m});
      const Array sum(dtype(), {m, n});
      rms_norm_forward({.out = out,
                        .rstd = rstd,
                        .residual_out = sum,
                        .x = x,
                        .residual = residual,
                        .weight = weight,
                        .amax = amax,
                        .cast = cast},
                       stream_);
      return out;
    };
    for (const Scaling scaling : {Scaling::kTensor, Scaling::kBlock1x128}) {
      expect_bits_of_quantize(tokens, hidden, CastOf::kActivation, scaling, forward);
    }
    expect_bits_of_own_scale(tokens, hidden, CastOf::kActivation, forward);
  }
}

TEST_P(Fp8CastTest, Rope) {
  for (const int64_t head_dim : {2, 20, 64}) {
    const int64_t width = (4 + 2 * 2) * head_dim;
    const Array qkv = varied(74, width);
    const Array table(DType::kFloat32, {37, head_dim});
    rope_table(table, 500000.0, std::nullopt);
    const auto backward = [&](const Fp8Cast& cast, const Tensor& amax) {
      Array in_place = qkv;
      rope({.qkv = in_place,
            .table = table,
            .num_heads = 4,
            .num_kv_heads = 2,
            .inverse = true,
            .amax = amax,
            .cast = cast},
           stream_);
      return in_place;
    };
    for (const Scaling scaling : {Scaling::kTensor, Scaling::kBlock1x128}) {
      expect_bits_of_quantize(74, width, CastOf::kGradient, scaling, backward);
    }
    expect_bits_of_own_scale(74, width, CastOf::kGradient, backward);
  }
}

TEST_P(Fp8CastTest, QkNormRope) {
  for (const int64_t head_dim : {2, 20, 64}) {
    const int64_t width = (4 + 2 * 2) * head_dim;
    const Array d_out = varied(74, width);
    const Array qkv = random({74, width});
    const Array weight = random({head_dim}, 0.3, 1.0);
    const Array d_weight = random(DType::kFloat32, {head_dim});
    const Array table(DType::kFloat32, {37, head_dim});
    rope_table(table, 500000.0, std::nullopt);
    reserve(qk_norm_rope_backward_workspace_bytes(head_dim, stream_));
    const auto backward = [&](const Fp8Cast& cast, const Tensor& amax) {
      Array in_place = d_out;
      qk_norm_rope_backward({.d_qkv = in_place,
                             .d_q_weight = d_weight,
                             .d_k_weight = d_weight,
                             .qkv = qkv,
                             .table = table,
                             .q_weight = weight,
                             .k_weight = weight,
                             .num_heads = 4,
                             .num_kv_heads = 2,
                             .amax = amax,
                             .cast = cast},
                            stream_);
      return in_place;
    };
    for (const Scaling scaling : {Scaling::kTensor, Scaling::kBlock1x128}) {
      expect_bits_of_quantize(74, width, CastOf::kGradient, scaling, backward);
    }
    expect_bits_of_own_scale(74, width, CastOf::kGradient, backward);
  }
}

TEST_P(Fp8CastTest, WrongArgumentsThrow) {
  const Array gate_up = random({3, 10});
  const Array d_out = random({3, 5});
  const Array out(dtype(), {3, 5});
  const auto forward = [&](const Fp8Cast& cast) {
    swiglu_forward({.out = out, .gate_up = gate_up, .amax = {}, .cast = cast}, stream_);
  };
  const auto scaled = [&](Scaling scaling, int64_t n) { return OwnedCast(DType::kFloat8E4M3, scaling, 3, n); };
  const OwnedCast by_row = scaled(Scaling::kRow, 5);
  expect_error([&] { forward(by_row.view()); }, "known only after the result");
  const OwnedCast wide = scaled(Scaling::kTensor, 6);
  expect_error([&] { forward(wide.view()); }, "swiglu_forward cast rows");
  const OwnedCast blocks = scaled(Scaling::kBlock1x128, 10);
  expect_error(
      [&] {
        swiglu_backward({.d_gate_up = gate_up, .d_out = d_out, .gate_up = gate_up, .amax = {}, .cast = blocks.view()},
                        stream_);
      },
      "5 is no multiple of 128");
}

}  // namespace
}  // namespace octavo::fp8_cast_test
