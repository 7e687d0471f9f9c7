// Fixture of the tests of ops that read or write FP8 operands.
#pragma once

#include "kernels/fp8/fp8.h"
#include "tests/kernels/law.h"

namespace octavo {

constexpr DType kE4M3 = DType::kFloat8E4M3;
constexpr DType kE5M2 = DType::kFloat8E5M2;
constexpr DType kFloat8Formats[] = {kE4M3, kE5M2};
constexpr Scaling kEveryScaling[] = {Scaling::kTensor, Scaling::kRow, Scaling::kBlock1x128, Scaling::kBlock128x128};

class Fp8Law : public LawTest {
 protected:
  // Owns the tensors of an FP8 operand.
  struct Operand {
    Array data, scale_inv;
    Scaling scaling;
    Fp8Operand view() const { return {data, scale_inv, scaling}; }
    Fp8Operand host() const { return {data.host(), scale_inv.host(), scaling}; }
    bool operator==(const Operand& other) const {
      return data.bits() == other.data.bits() && scale_inv.bits() == other.scale_inv.bits();
    }
  };
  Operand operand(DType format, Scaling scaling, int64_t rows, int64_t k, int64_t offset = 0) {
    return {array(format, {rows, k}, offset), array(DType::kFloat32, {fp8_scale_count(scaling, rows, k)}), scaling};
  }

  // Returns normal values that span `range` powers of two, so that the scales of groups differ.
  Array varied(int64_t m, int64_t n, int64_t range = 23, int64_t offset = 0) {
    Array x = OpTest::random(dtype(), {m, n});
    for (int64_t i = 0; i < x.size(); ++i) {
      x.set(i, x.at(i) * std::exp2(static_cast<double>((i / n * 3 + i % n * 5) % range - range / 2)));
    }
    return on_device(x, offset);
  }
  // Returns a matrix [256, 256] with every bit pattern of bfloat16. Row r holds the patterns whose upper byte is r, so
  // NaN and infinity occur in two rows and in half of the columns.
  Array every_bfloat16() {
    Array x = array({256, 256});
    std::vector<unsigned char> bytes;
    for (int i = 0; i < 0x10000; ++i) {
      if (dtype() == DType::kFloat32) bytes.insert(bytes.end(), {0, 0});
      bytes.insert(bytes.end(), {static_cast<unsigned char>(i), static_cast<unsigned char>(i >> 8)});
    }
    x.set_bits(bytes);
    return x;
  }
};

}  // namespace octavo
