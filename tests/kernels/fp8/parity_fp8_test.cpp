// FP8 on the GPU compared with the CPU: quantized bytes, scales and amaxes have equal bits, and matmuls agree except
// for rounding.
#include "core/error.h"
#include "kernels/fp8/fp8.h"
#include "tests/kernels/parity.h"

namespace octavo::parity_fp8_test {
namespace {

constexpr Scaling kScalings[] = {Scaling::kTensor, Scaling::kRow, Scaling::kBlock1x128, Scaling::kBlock128x128};
constexpr DType kFormats[] = {DType::kFloat8E4M3, DType::kFloat8E5M2};

struct TwinOperand {
  Twin data;
  Twin scale_inv;
  Scaling scaling;
  TwinOperand(DType format, Scaling scaling_, int64_t rows, int64_t k, int64_t offset = 0)
      : data(format, {rows, k}, offset),
        scale_inv(DType::kFloat32, {fp8_scale_count(scaling_, rows, k)}),
        scaling(scaling_) {}
  Fp8Operand on(const Stream& s) const { return {data.on(s), scale_inv.on(s), scaling}; }
};

class Fp8Parity : public ComputeDtypeParity {
 protected:
  void set_one(Twin& twin, float value) {
    twin.set(0, value);
    upload(twin);
  }

  // Fills x with normal values that span many powers of two.
  void fill_varied(Twin& x) {
    const int64_t n = x.cpu().dim(1);
    fill(x);
    for (int64_t i = 0; i < x.cpu().numel(); ++i) {
      x.set(i, x.at(i) * std::ldexp(1.0f, static_cast<int>((i / n * 3 + i % n * 5) % 23 - 11)));
    }
    upload(x);
  }

  void compare(const Twin& x, const Twin& amax, DType format, Scaling scaling, int64_t offset = 0) {
    const int64_t m = x.cpu().dim(0);
    const int64_t n = x.cpu().dim(1);
    SCOPED_TRACE(x.cpu().describe() + " to " + dtype_name(format) + ", scaling " +
                 std::to_string(static_cast<int>(scaling)) + ", offset " + std::to_string(offset));
    for (const bool with_rows : {true, false}) {
      for (const bool with_columns : {true, false}) {
        if (!with_rows && !with_columns) continue;
        const TwinOperand rows(format, scaling, m, n, offset);
        const TwinOperand columns(format, scaling, n, m, offset);
        for (const Twin* twin : {&rows.data, &rows.scale_inv, &columns.data, &columns.scale_inv}) poison(*twin);
        Twin amax_out(DType::kFloat32, {1});
        set_one(amax_out, 1.5f);
        on_both([&](Stream& s) {
          quantize({.cast = {.rows = with_rows ? rows.on(s) : Fp8Operand{},
                             .columns = with_columns ? columns.on(s) : Fp8Operand{},
                             .amax = amax.on(s)},
                    .x = x.on(s),
                    .amax_out = with_rows ? amax_out.on(s) : Tensor()},
                   s);
        });
        expect_equal_bytes(rows.data, "rows");
        expect_equal_bytes(rows.scale_inv, "scales of rows");
        expect_equal_bytes(columns.data, "columns");
        expect_equal_bytes(columns.scale_inv, "scales of columns");
        expect_equal_bytes(amax_out, "amax_out");
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Ops, Fp8Parity, ::testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

struct Size {
  int64_t m, n;
};

TEST_P(Fp8Parity, Quantize) {
  for (const auto& [m, n] : {Size{1, 1},
                             {1, 1009},
                             {1009, 1},
                             {7, 13},
                             {131, 257},
                             {128, 128},
                             {16, 2048},
                             {300, 1040},
                             {272, 144},
                             {1040, 1296},
                             {144, 1000}}) {
    Twin x(dtype(), {m, n});
    Twin amax_of_x(DType::kFloat32, {1});
    fill_varied(x);
    on_both([&](Stream& s) { amax({amax_of_x.on(s), x.on(s)}, s); });
    expect_equal_bytes(amax_of_x, "amax");
    for (const DType format : kFormats) {
      for (const Scaling scaling : kScalings) compare(x, amax_of_x, format, scaling);
    }
  }
}

// The scale comes from a bound that the host knows, not from an amax on the device.
TEST_P(Fp8Parity, QuantizeByABound) {
  for (const auto& [m, n] : {Size{7, 13}, {144, 272}, {1040, 1296}}) {
    Twin x(dtype(), {m, n});
    fill(x);
    for (const DType format : kFormats) {
      for (const float bound : {0.0f, 0.25f, 3.7f}) {
        const TwinOperand rows(format, Scaling::kTensor, m, n);
        const TwinOperand columns(format, Scaling::kTensor, n, m);
        for (const Twin* twin : {&rows.data, &rows.scale_inv, &columns.data, &columns.scale_inv}) poison(*twin);
        on_both([&](Stream& s) {
          quantize({.cast = {.rows = rows.on(s), .columns = columns.on(s), .bound = bound}, .x = x.on(s)}, s);
        });
        expect_equal_bytes(rows.data, "rows");
        expect_equal_bytes(rows.scale_inv, "scale of rows");
        expect_equal_bytes(columns.data, "columns");
        expect_equal_bytes(columns.scale_inv, "scale of columns");
      }
    }
  }
}

// Neither x nor the outputs start at a multiple of 16 bytes.
TEST_P(Fp8Parity, QuantizeUnaligned) {
  Twin x(dtype(), {144, 272}, 1);
  Twin aligned(dtype(), {144, 272});
  Twin amax_of_x(DType::kFloat32, {1});
  fill_varied(x);
  fill_varied(aligned);
  on_both([&](Stream& s) { amax({amax_of_x.on(s), x.on(s)}, s); });
  expect_equal_bytes(amax_of_x, "amax");
  for (const Scaling scaling : kScalings) {
    compare(x, amax_of_x, DType::kFloat8E4M3, scaling);
    compare(aligned, amax_of_x, DType::kFloat8E4M3, scaling, 1);
  }
}

// Scaling per row in two passes: kMeasure, then kCast with row amaxes that other ranks have increased.
TEST_P(Fp8Parity, RowAmaxes) {
  struct Case {
    int64_t m, n, offset;
  };
  for (const auto& [m, n, offset] :
       {Case{1, 1, 0}, {1, 1009, 0}, {1009, 1, 0}, {131, 257, 0}, {300, 1040, 0}, {144, 272, 1}}) {
    Twin x(dtype(), {m, n}, offset);
    fill_varied(x);
    TwinOperand rows(kFormats[0], Scaling::kRow, m, n);
    TwinOperand columns(kFormats[0], Scaling::kRow, n, m);
    const auto run = [&](Stream& s, QuantizePasses passes) {
      quantize({.cast = {.rows = rows.on(s), .columns = columns.on(s)}, .x = x.on(s), .passes = passes}, s);
    };
    for (const Twin* twin : {&rows.scale_inv, &columns.scale_inv}) poison(*twin);
    on_both([&](Stream& s) { run(s, QuantizePasses::kMeasure); });
    expect_equal_bytes(rows.scale_inv, "amaxes of rows");
    expect_equal_bytes(columns.scale_inv, "amaxes of columns");
    for (Twin* amaxes : {&rows.scale_inv, &columns.scale_inv}) {
      for (int64_t i = 0; i < amaxes->cpu().numel(); ++i) amaxes->set(i, amaxes->at(i) * static_cast<float>(1 + i % 3));
      upload(*amaxes);
    }
    for (const Twin* twin : {&rows.data, &columns.data}) poison(*twin);
    on_both([&](Stream& s) { run(s, QuantizePasses::kCast); });
    for (const Twin* twin : {&rows.data, &rows.scale_inv, &columns.data, &columns.scale_inv}) {
      expect_equal_bytes(*twin, "operands by larger amaxes");
    }
    on_both([&](Stream& s) {
      run(s, QuantizePasses::kMeasure);
      run(s, QuantizePasses::kCast);
    });
    const std::vector<char> halves = gpu_bytes(rows.data);
    on_both([&](Stream& s) { run(s, QuantizePasses::kAll); });
    EXPECT_EQ(gpu_bytes(rows.data), halves) << "two passes differ from quantize, " << x.cpu().describe();
  }
}

// The amaxes are too small, too large, zero, infinite and NaN.
TEST_P(Fp8Parity, QuantizeWithAnyAmax) {
  Twin x(dtype(), {48, 160});
  Twin any(DType::kFloat32, {1});
  fill_varied(x);
  for (const float amax : {0.0f, 1e-20f, 0.01f, 448.0f, 57344.0f, 123.456f, 3e38f, 1e-38f,
                           std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    set_one(any, amax);
    for (const DType format : kFormats) compare(x, any, format, Scaling::kTensor);
  }
}

// Row r holds the 256 bit patterns whose upper byte is r. NaN and infinity occur in two of the rows and in half of the
// columns.
TEST_P(Fp8Parity, EveryBfloat16Pattern) {
  Twin x(dtype(), {256, 256});
  for (int64_t i = 0; i < x.cpu().numel(); ++i) {
    const auto bits = static_cast<uint16_t>(i);
    if (dtype() == DType::kBFloat16) x.cpu().data<BFloat16>()[i].bits = bits;
    if (dtype() == DType::kFloat32) x.cpu().data<float>()[i] = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
  upload(x);
  Twin any(DType::kFloat32, {1});
  for (const float amax : {448.0f, 57344.0f, 1.0f, 3e-5f, 7e20f}) {
    set_one(any, amax);
    for (const DType format : kFormats) {
      for (const Scaling scaling : kScalings) compare(x, any, format, scaling);
    }
  }
  on_both([&](Stream& s) { amax({any.on(s), x.on(s)}, s); });
  expect_equal_bytes(any, "amax");
}

TEST_P(Fp8Parity, ZerosAndOneHugeValue) {
  Twin x(dtype(), {200, 336});
  Twin any(DType::kFloat32, {1});
  for (const float value : {0.0f, 1e30f}) {
    x.set(77 * 336 + 131, value);
    upload(x);
    set_one(any, value);
    for (const DType format : kFormats) {
      for (const Scaling scaling : kScalings) compare(x, any, format, scaling);
    }
  }
}

TEST_P(Fp8Parity, AmaxOfFlatTensors) {
  // The largest size makes every thread iterate.
  for (const int64_t n : {1, 7, 8, 4097, 1000003, 20000003}) {
    for (const int64_t offset : {0, 1}) {
      Twin x(dtype(), {n}, offset);
      Twin out(DType::kFloat32, {1});
      fill(x);
      on_both([&](Stream& s) { amax({out.on(s), x.on(s)}, s); });
      expect_equal_bytes(out, "amax");
      set_one(out, 100.0f);
      on_both([&](Stream& s) { amax({out.on(s), x.on(s)}, s); });
      EXPECT_EQ(gpu_values(out)[0], 100.0f) << "an amax became smaller";
      for (const float value : {0.0f, 1.1f}) {
        Twin factor(DType::kFloat32, {1});
        set_one(factor, value);
        set_one(out, 0.0f);
        on_both([&](Stream& s) { amax({out.on(s), x.on(s), factor.on(s)}, s); });
        expect_equal_bytes(out, "amax with a factor");
      }
    }
  }
}

// The amax is correct wherever the largest element is.
TEST_P(Fp8Parity, AmaxSeesEveryElement) {
  for (const int64_t n : {3, 1000, 2200007}) {
    Twin x(dtype(), {n}, 3);
    Twin out(DType::kFloat32, {1});
    for (int64_t at = 0; at < n; at += 1 + (n - at) / 3) {
      x.set(at, -2.5f - static_cast<float>(at % 7));
      upload(x);
      set_one(out, 0.0f);
      amax({out.gpu(), x.gpu()}, gpu());
      EXPECT_EQ(gpu_values(out)[0], std::abs(x.at(at))) << "element " << at << " of " << n;
      x.set(at, 0.0f);
    }
  }
}

// ---- FP8 matrix multiplication. The operands come from quantize, so both sides multiply the same bytes.

struct Kinds {
  DType a_format, b_format;
  Scaling a_scaling, b_scaling;
};
struct ProductSize {
  int64_t m, n, k;
};
constexpr DType kE4 = DType::kFloat8E4M3;
constexpr DType kE5 = DType::kFloat8E5M2;

class Fp8MatmulParity : public Fp8Parity {
 protected:
  TwinOperand operand(DType format, Scaling scaling, int64_t rows, int64_t k) {
    TwinOperand out(format, scaling, rows, k);
    Twin x(DType::kBFloat16, {rows, k});
    Twin amax(DType::kFloat32, {1});
    fill(x);
    for (int64_t i = 0; i < x.cpu().numel(); ++i) x.set(i, x.at(i) * static_cast<float>(1 + i / k % 3 + i % k / 128));
    upload(x);
    set_one(amax, 5.0f);
    on_both([&](Stream& s) { quantize({.cast = {.rows = out.on(s), .amax = amax.on(s)}, .x = x.on(s)}, s); });
    return out;
  }

  void compare_product(const ProductSize& size, const Kinds& kinds) {
    const auto& [m, n, k] = size;
    SCOPED_TRACE(fmt::format("{} x {}, scalings {} and {}, {} x {} x {}", dtype_name(kinds.a_format),
                             dtype_name(kinds.b_format), static_cast<int>(kinds.a_scaling),
                             static_cast<int>(kinds.b_scaling), m, n, k));
    reserve(fp8_matmul_workspace_bytes(m, n, k, cpu()), fp8_matmul_workspace_bytes(m, n, k, gpu()));
    const TwinOperand a = operand(kinds.a_format, kinds.a_scaling, m, k);
    const TwinOperand b = operand(kinds.b_format, kinds.b_scaling, n, k);
    const bool blockwise = kinds.a_scaling == Scaling::kBlock1x128;
    for (const bool fast : {false, true}) {
      if (fast && blockwise) continue;
      Twin d(dtype(), {m, n});
      poison(d);
      for (const bool accumulate : {false, true}) {
        const auto arguments = [&](const Stream& s) {
          return Fp8Matmul{
              .d = d.on(s), .a = a.on(s), .b = b.on(s), .accumulate = accumulate, .fast_accumulation = fast};
        };
        const Exact exact = exact_fp8_matmul(arguments(cpu()));
        on_both([&](Stream& s) { fp8_matmul(arguments(s), s); });
        // The tensor cores keep about 14 bits of a partial sum. With fast accumulation the whole sum over k stays that
        // imprecise.
        const double tolerance = dtype() == DType::kBFloat16 || fast ? 5e-3 : 5e-4;
        expect_close(d, accumulate ? "d accumulated" : "d", tolerance);
        expect_exact(d, fmt::format("fp8_matmul{}{}", fast ? ", fast" : "", blockwise ? ", blockwise" : ""), exact);
        upload(d);  // The GPU continues from the CPU's result, so that errors do not accumulate.
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Ops, Fp8MatmulParity, ::testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST_P(Fp8MatmulParity, TensorAndRow) {
  for (const ProductSize& size :
       {ProductSize{1, 16, 16}, {17, 32, 48}, {127, 144, 272}, {333, 256, 384}, {512, 768, 1024}}) {
    for (const Scaling scaling : {Scaling::kTensor, Scaling::kRow}) {
      for (const auto& [a, b] : {std::pair{kE4, kE4}, {kE5, kE4}, {kE4, kE5}}) {
        compare_product(size, {a, b, scaling, scaling});
      }
    }
  }
}

TEST_P(Fp8MatmulParity, Blockwise) {
  for (const ProductSize& size : {ProductSize{128, 128, 128}, {256, 384, 512}, {100, 128, 256}, {512, 768, 1152}}) {
    for (const Scaling b_scaling : {Scaling::kBlock1x128, Scaling::kBlock128x128}) {
      for (const auto& [a, b] : {std::pair{kE4, kE4}, {kE5, kE4}, {kE4, kE5}}) {
        compare_product(size, {a, b, Scaling::kBlock1x128, b_scaling});
      }
    }
  }
}

TEST_P(Fp8MatmulParity, Deterministic) {
  gpu().set_deterministic(true);
  // The first size has few results with long sums, for which cuBLASLt prefers split-K. The second one is nearly square.
  for (const auto& [m, n, k] : {ProductSize{64, 80, 8192}, {512, 768, 1024}}) {
    for (const Scaling scaling : {Scaling::kTensor, Scaling::kRow, Scaling::kBlock1x128}) {
      reserve(0, fp8_matmul_workspace_bytes(m, n, k, gpu()));
      const TwinOperand a = operand(kE5, scaling, m, k);
      const TwinOperand b = operand(kE4, scaling, n, k);
      const Twin d(dtype(), {m, n});
      const auto product = [&] {
        poison(d);
        fp8_matmul({.d = d.gpu(), .a = a.on(gpu()), .b = b.on(gpu())}, gpu());
        return gpu_bytes(d);
      };
      const auto once = product();
      for (int i = 0; i < 5; ++i) EXPECT_EQ(product(), once) << m << " x " << n << " x " << k;
    }
  }
}

}  // namespace
}  // namespace octavo::parity_fp8_test
