// Tests of ops on the GPU that write FP8 operands instead of their result. The bits must equal those of the op followed
// by quantize on the GPU. The bytes of the CPU may differ, because functions like exp differ in the last bits.
// parity_fp8_test.cpp compares quantize itself with the CPU.
#include <functional>

#include "core/error.h"
#include "kernels/attention/qk_norm_rope.h"
#include "kernels/attention/rope.h"
#include "kernels/fp8/fp8_cast.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/layers/swiglu.h"
#include "tests/kernels/parity.h"

namespace octavo::parity_fp8_cast_test {
namespace {

// The tensors that a cast of a matrix [m, n] writes, on both sides.
struct TwinCast {
  Twin rows, rows_scale_inv, columns, columns_scale_inv, amax_out;
  Scaling scaling;

  TwinCast(DType format, Scaling scaling_, int64_t m, int64_t n, int64_t offset)
      : rows(format, {m, n}, offset),
        rows_scale_inv(DType::kFloat32, {fp8_scale_count(scaling_, m, n)}),
        columns(format, {n, m}, offset),
        columns_scale_inv(DType::kFloat32, {fp8_scale_count(scaling_, n, m)}),
        amax_out(DType::kFloat32, {1}),
        scaling(scaling_) {}

  Fp8Cast gpu(bool with_rows, bool with_columns, const Twin& amax) const {
    Fp8Cast cast{.rows = {}, .columns = {}, .amax = amax.gpu()};
    if (with_rows) cast.rows = {rows.gpu(), rows_scale_inv.gpu(), scaling};
    if (with_columns) cast.columns = {columns.gpu(), columns_scale_inv.gpu(), scaling};
    return cast;
  }
};

class Fp8CastParity : public ComputeDtypeParity {
 protected:
  // Fills x with normal values scaled by various powers of two, some zeros, and an infinity and a NaN in large
  // matrices.
  void fill_varied(Twin& x) {
    const int64_t n = x.cpu().dim(1);
    fill(x);
    for (int64_t i = 0; i < x.cpu().numel(); ++i) {
      x.set(i, x.at(i) * std::ldexp(1.0f, static_cast<int>((i / n * 3 + i % n * 5) % 13 - 6)));
    }
    for (int64_t i = 0; i < x.cpu().numel(); i += 97) x.set(i, 0.0f);
    if (x.cpu().numel() > 1000) {
      x.set(300, std::numeric_limits<float>::infinity());
      x.set(x.cpu().numel() - 5, std::numeric_limits<float>::quiet_NaN());
    }
    upload(x);
  }

  // A function op(cast, amax) that writes `result` on the GPU, or the cast if `cast` is given.
  using Op = std::function<void(const Fp8Cast&, const Tensor&)>;
  void expect_bits_of_quantize(const Twin& result, CastOf what, Scaling scaling, const Op& op, int64_t offset = 0) {
    for (const DType format : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      if (what == CastOf::kActivation && format != DType::kFloat8E4M3) continue;
      for (const auto& [with_rows, with_columns] : {std::pair{true, true}, {true, false}, {false, true}}) {
        compare(result, TwinCastKind{format, scaling, with_rows, with_columns, false, offset}, op);
      }
    }
  }

  // Expects the bits of quantize if the tensor is scaled by the amax of the result itself.
  void expect_bits_of_own_scale(const Twin& result, CastOf what, const Op& op, int64_t offset = 0) {
    for (const DType format : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      if (what == CastOf::kActivation && format != DType::kFloat8E4M3) continue;
      for (const auto& [with_rows, with_columns] : {std::pair{true, true}, {true, false}, {false, true}}) {
        compare(result, TwinCastKind{format, Scaling::kTensor, with_rows, with_columns, true, offset}, op);
      }
    }
  }

 private:
  struct TwinCastKind {
    DType format;
    Scaling scaling;
    bool with_rows, with_columns;
    bool own_scale;
    int64_t offset;
  };

  void compare(const Twin& result, const TwinCastKind& kind, const Op& op) {
    const auto& [format, scaling, with_rows, with_columns, own_scale, offset] = kind;
    const int64_t m = result.cpu().dim(0);
    const int64_t n = result.cpu().dim(1);
    SCOPED_TRACE(fmt::format("[{}, {}] to {}, scaling {}{}, rows {}, columns {}, offset {}", m, n, dtype_name(format),
                             static_cast<int>(scaling), own_scale ? " of its own" : "", with_rows, with_columns,
                             offset));
    Twin amax(DType::kFloat32, {1});
    amax.set(0, 2.5f);
    upload(amax);
    const TwinCast expected(format, scaling, m, n, offset);
    const TwinCast cast(format, scaling, m, n, offset);
    for (const TwinCast* c : {&expected, &cast}) {
      for (const Twin* twin : {&c->rows, &c->rows_scale_inv, &c->columns, &c->columns_scale_inv}) poison(*twin);
    }
    poison(result);
    op({}, expected.amax_out.gpu());
    const Fp8Cast wanted = expected.gpu(with_rows, with_columns, own_scale ? expected.amax_out : amax);
    quantize({.cast = wanted, .x = result.gpu()}, gpu());
    op(cast.gpu(with_rows, with_columns, own_scale ? cast.amax_out : amax), cast.amax_out.gpu());
    EXPECT_TRUE(gpu_bytes(cast.rows) == gpu_bytes(expected.rows)) << "rows";
    EXPECT_TRUE(gpu_bytes(cast.rows_scale_inv) == gpu_bytes(expected.rows_scale_inv)) << "scales of rows";
    EXPECT_TRUE(gpu_bytes(cast.columns) == gpu_bytes(expected.columns)) << "columns";
    EXPECT_TRUE(gpu_bytes(cast.columns_scale_inv) == gpu_bytes(expected.columns_scale_inv)) << "scales of columns";
    EXPECT_EQ(gpu_bytes(cast.amax_out), gpu_bytes(expected.amax_out)) << "amax";
  }
};
INSTANTIATE_TEST_SUITE_P(Ops, Fp8CastParity, ::testing::Values(DType::kBFloat16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

struct Size {
  int64_t m, n;
};

constexpr Size kSwigluSizes[] = {{1, 1}, {7, 13}, {131, 257}, {128, 128}, {272, 144}, {300, 384}, {48, 1536}};

struct SwigluTwins {
  SwigluTwins(DType dtype, int64_t tokens, int64_t width, int64_t offset)
      : gate_up(dtype, {tokens, 2 * width}, offset),
        d_out(dtype, {tokens, width}),
        out(dtype, {tokens, width}),
        d_gate_up(dtype, {tokens, 2 * width}) {}

  Twin gate_up, d_out, out, d_gate_up;
};

TEST_P(Fp8CastParity, Swiglu) {
  for (const auto& [tokens, width] : kSwigluSizes) {
    for (const int64_t offset : {0, 1}) {
      SwigluTwins twins(dtype(), tokens, width, offset);
      const Tensor gate_up = twins.gate_up.gpu();
      const Tensor d_out = twins.d_out.gpu();
      const Tensor out = twins.out.gpu();
      const Tensor d_gate_up = twins.d_gate_up.gpu();
      fill_varied(twins.gate_up);
      fill_varied(twins.d_out);
      const auto forward = [&](const Fp8Cast& cast, const Tensor& amax) {
        swiglu_forward({out, gate_up, amax, cast}, gpu());
      };
      const auto backward = [&](const Fp8Cast& cast, const Tensor& amax) {
        swiglu_backward({d_gate_up, d_out, gate_up, amax, cast}, gpu());
      };
      for (const Scaling scaling : {Scaling::kTensor, Scaling::kBlock1x128}) {
        expect_bits_of_quantize(twins.out, CastOf::kActivation, scaling, forward, offset);
        if (scaling == Scaling::kBlock1x128 && width % 128 != 0) continue;
        expect_bits_of_quantize(twins.d_gate_up, CastOf::kGradient, scaling, backward, offset);
      }
    }
  }
}

// Backward also casts the recomputed result of forward. The gradient is cast in some cases and not in others.
TEST_P(Fp8CastParity, SwigluBackwardCastsTheResultOfForward) {
  for (const auto& [tokens, width] : kSwigluSizes) {
    for (const int64_t offset : {0, 1}) {
      SwigluTwins twins(dtype(), tokens, width, offset);
      const Tensor gate_up = twins.gate_up.gpu();
      const Tensor d_out = twins.d_out.gpu();
      const Tensor out = twins.out.gpu();
      const Tensor d_gate_up = twins.d_gate_up.gpu();
      fill_varied(twins.gate_up);
      fill_varied(twins.d_out);
      Twin amax(DType::kFloat32, {1});
      amax.set(0, 2.5f);
      upload(amax);
      for (const Scaling scaling : {Scaling::kTensor, Scaling::kBlock1x128}) {
        const TwinCast expected(DType::kFloat8E4M3, scaling, tokens, width, offset);
        swiglu_forward({out, gate_up, {}, expected.gpu(false, true, amax)}, gpu());
        const TwinCast again(DType::kFloat8E4M3, scaling, tokens, width, offset);
        const auto backward = [&](const Fp8Cast& cast, const Tensor& amax_out) {
          poison(again.columns);
          poison(again.columns_scale_inv);
          swiglu_backward({.d_gate_up = d_gate_up,
                           .d_out = d_out,
                           .gate_up = gate_up,
                           .amax = amax_out,
                           .cast = cast,
                           .out = out,
                           .out_cast = again.gpu(false, true, amax)},
                          gpu());
          EXPECT_TRUE(gpu_bytes(again.columns) == gpu_bytes(expected.columns));
          EXPECT_TRUE(gpu_bytes(again.columns_scale_inv) == gpu_bytes(expected.columns_scale_inv));
        };
        swiglu_backward({d_gate_up, d_out, gate_up}, gpu());
        const auto plain = gpu_bytes(twins.d_gate_up);
        poison(twins.d_gate_up);
        backward({}, {});
        EXPECT_TRUE(gpu_bytes(twins.d_gate_up) == plain);
        if (scaling == Scaling::kBlock1x128 && width % 128 != 0) continue;
        expect_bits_of_quantize(twins.d_gate_up, CastOf::kGradient, scaling, backward, offset);
      }
    }
  }
}

TEST_P(Fp8CastParity, RmsNorm) {
  for (const auto& [tokens, hidden] :
       {Size{1, 1}, {7, 13}, {131, 257}, {128, 128}, {272, 144}, {300, 384}, {48, 4096}}) {
    for (const bool with_residual : {false, true}) {
      Twin x(dtype(), {tokens, hidden});
      Twin residual(dtype(), {tokens, hidden});
      Twin weight(dtype(), {hidden});
      const Twin sum(dtype(), {tokens, hidden});
      const Twin rstd(DType::kFloat32, {tokens});
      const Twin out(dtype(), {tokens, hidden});
      fill_varied(x);
      fill_varied(residual);
      fill(weight, 0.2f, 1.0f);
      const auto forward = [&](const Fp8Cast& cast, const Tensor& amax) {
        rms_norm_forward({.out = out.gpu(),
                          .rstd = rstd.gpu(),
                          .residual_out = with_residual ? sum.gpu() : Tensor(),
                          .x = x.gpu(),
                          .residual = with_residual ? residual.gpu() : Tensor(),
                          .weight = weight.gpu(),
                          .amax = amax,
                          .cast = cast},
                         gpu());
      };
      for (const Scaling scaling : {Scaling::kTensor, Scaling::kBlock1x128}) {
        expect_bits_of_quantize(out, CastOf::kActivation, scaling, forward);
      }
      expect_bits_of_own_scale(out, CastOf::kActivation, forward);
      fill(x);  // Finite inputs give a finite amax.
      fill(residual);
      expect_bits_of_own_scale(out, CastOf::kActivation, forward);
    }
  }
}

TEST_P(Fp8CastParity, Rope) {
  for (const int64_t head_dim : {2, 20, 32, 64, 128, 192}) {
    for (const int64_t tokens : {1, 74, 192}) {
      for (const bool inverse : {false, true}) {
        const int64_t width = (5 + 2 * 3) * head_dim;
        const int64_t offset = head_dim == 32 ? 1 : 0;
        Twin input(dtype(), {tokens, width}, offset);
        const Twin qkv(dtype(), {tokens, width}, offset);
        Twin table(DType::kFloat32, {tokens == 1 ? 1 : tokens / 2, head_dim});
        rope_table(table.cpu(), 500000.0, RopeScaling{});
        upload(table);
        fill_varied(input);
        const auto op = [&](const Fp8Cast& cast, const Tensor& amax) {
          gpu().copy(qkv.gpu(), input.gpu());
          rope({.qkv = qkv.gpu(),
                .table = table.gpu(),
                .num_heads = 5,
                .num_kv_heads = 3,
                .inverse = inverse,
                .amax = amax,
                .cast = cast},
               gpu());
        };
        for (const Scaling scaling : {Scaling::kTensor, Scaling::kBlock1x128}) {
          expect_bits_of_quantize(qkv, CastOf::kGradient, scaling, op, offset);
        }
        expect_bits_of_own_scale(qkv, CastOf::kGradient, op, offset);
        fill(input);  // Finite inputs give a finite amax.
        expect_bits_of_own_scale(qkv, CastOf::kGradient, op, offset);
      }
    }
  }
}

TEST_P(Fp8CastParity, QkNormRope) {
  for (const int64_t head_dim : {32, 64, 128}) {
    for (const int64_t tokens : {1, 74, 192}) {
      const int64_t width = (5 + 2 * 3) * head_dim;
      reserve(0, qk_norm_rope_backward_workspace_bytes(head_dim, gpu()));
      Twin d_out(dtype(), {tokens, width});
      const Twin d_qkv(dtype(), {tokens, width});
      Twin qkv(dtype(), {tokens, width});
      Twin weight(dtype(), {head_dim});
      const Twin d_weight(DType::kFloat32, {head_dim});
      Twin table(DType::kFloat32, {tokens == 1 ? 1 : tokens / 2, head_dim});
      rope_table(table.cpu(), 500000.0, RopeScaling{});
      upload(table);
      fill_varied(d_out);
      fill(qkv);
      fill(weight, 0.2f, 1.0f);
      const auto op = [&](const Fp8Cast& cast, const Tensor& amax) {
        gpu().copy(d_qkv.gpu(), d_out.gpu());
        qk_norm_rope_backward({.d_qkv = d_qkv.gpu(),
                               .d_q_weight = d_weight.gpu(),
                               .d_k_weight = d_weight.gpu(),
                               .qkv = qkv.gpu(),
                               .table = table.gpu(),
                               .q_weight = weight.gpu(),
                               .k_weight = weight.gpu(),
                               .num_heads = 5,
                               .num_kv_heads = 3,
                               .amax = amax,
                               .cast = cast},
                              gpu());
      };
      for (const Scaling scaling : {Scaling::kTensor, Scaling::kBlock1x128}) {
        expect_bits_of_quantize(d_qkv, CastOf::kGradient, scaling, op);
      }
      expect_bits_of_own_scale(d_qkv, CastOf::kGradient, op);
      fill(d_out);  // Finite inputs give a finite amax.
      expect_bits_of_own_scale(d_qkv, CastOf::kGradient, op);
    }
  }
}

}  // namespace
}  // namespace octavo::parity_fp8_cast_test
