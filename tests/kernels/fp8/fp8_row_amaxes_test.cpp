// Scaling per row in two passes (QuantizePasses), each in a call of its own.
#include <algorithm>
#include <limits>

#include "kernels/fp8/fp8.h"
#include "tests/kernels/op_fixture.h"

namespace octavo::fp8_row_amaxes_test {
namespace {

// Owns the row and column operands of a matrix x [m, n] that is scaled per row.
struct Operands {
  Array rows;
  Array rows_scale_inv;
  Array columns;
  Array columns_scale_inv;
  Operands(int64_t m, int64_t n)
      : rows(DType::kFloat8E4M3, {m, n}),
        rows_scale_inv(DType::kFloat32, {m}),
        columns(DType::kFloat8E4M3, {n, m}),
        columns_scale_inv(DType::kFloat32, {n}) {}
  Fp8Operand rows_view() const { return {rows, rows_scale_inv, Scaling::kRow}; }
  Fp8Operand columns_view() const { return {columns, columns_scale_inv, Scaling::kRow}; }
  Quantize quantize(const Array& x, QuantizePasses passes) const {
    return {.cast = {.rows = rows_view(), .columns = columns_view()}, .x = x, .passes = passes};
  }
};

class Fp8RowAmaxesTest : public OpTest {
 protected:
  // Returns values that span many powers of two, so that the scales of rows differ.
  Array varied(int64_t m, int64_t n) {
    Array x = random({m, n});
    for (int64_t i = 0; i < x.size(); ++i) x.set(i, x.at(i) * std::pow(2.0, (i / n * 3 + i % n * 5) % 23 - 11));
    return x;
  }
};
INSTANTIATE_COMPUTE_DTYPES(Fp8RowAmaxesTest);

TEST_P(Fp8RowAmaxesTest, ByDefinition) {
  Array x = varied(37, 150);
  x.set(5 * 150 + 7, std::numeric_limits<double>::infinity());
  const Operands operands(37, 150);
  const Operands untouched = operands;
  quantize(operands.quantize(x, QuantizePasses::kMeasure), stream_);
  Values of_rows(37, 0.0);
  Values of_columns(150, 0.0);
  for (int64_t i = 0; i < x.size(); ++i) {
    double& of_row = of_rows[static_cast<size_t>(i / 150)];
    double& of_column = of_columns[static_cast<size_t>(i % 150)];
    of_row = std::max(of_row, std::abs(x.at(i)));
    of_column = std::max(of_column, std::abs(x.at(i)));
  }
  EXPECT_EQ(operands.rows_scale_inv.values(), of_rows);
  EXPECT_EQ(operands.columns_scale_inv.values(), of_columns);
  EXPECT_EQ(operands.rows.bits(), untouched.rows.bits());
  EXPECT_EQ(operands.columns.bits(), untouched.columns.bits());
}

TEST_P(Fp8RowAmaxesTest, TwoHalvesAreQuantize) {
  struct Size {
    int64_t m, n;
  };
  for (const auto& [m, n] : {Size{1, 1}, {1, 300}, {259, 1}, {7, 131}, {129, 257}}) {
    const Array x = varied(m, n);
    for (const auto& [with_rows, with_columns] : {std::pair{true, true}, {true, false}, {false, true}}) {
      const Operands whole(m, n);
      const Operands halves(m, n);
      const auto run = [&, rows = with_rows, columns = with_columns](const Operands& operands, QuantizePasses passes) {
        Quantize args = operands.quantize(x, passes);
        if (!rows) args.cast.rows = {};
        if (!columns) args.cast.columns = {};
        quantize(args, stream_);
      };
      run(whole, QuantizePasses::kAll);
      run(halves, QuantizePasses::kMeasure);
      run(halves, QuantizePasses::kCast);
      EXPECT_EQ(halves.rows.bits(), whole.rows.bits());
      EXPECT_EQ(halves.rows_scale_inv.bits(), whole.rows_scale_inv.bits());
      EXPECT_EQ(halves.columns.bits(), whole.columns.bits());
      EXPECT_EQ(halves.columns_scale_inv.bits(), whole.columns_scale_inv.bits());
    }
  }
}

// Each rank has kWidth columns, and the ranks take the maximum of their row amaxes.
TEST_P(Fp8RowAmaxesTest, PartsOfTheColumnsEqualTheWhole) {
  constexpr int64_t kRows = 131;
  constexpr int64_t kColumns = 300;
  constexpr int64_t kWidth = 100;
  const Array x = varied(kRows, kColumns);
  const Operands whole(kRows, kColumns);
  quantize(whole.quantize(x, QuantizePasses::kAll), stream_);
  const auto in_whole = [](int64_t begin, int64_t i) { return i / kWidth * kColumns + begin + i % kWidth; };
  std::vector<Array> parts;
  std::vector<Operands> ranks;
  Array amaxes(DType::kFloat32, {kRows});
  amaxes.fill(0);
  for (int64_t begin = 0; begin < kColumns; begin += kWidth) {
    Array part(dtype(), {kRows, kWidth});
    for (int64_t i = 0; i < part.size(); ++i) part.set(i, x.at(in_whole(begin, i)));
    const Operands operands(kRows, kWidth);
    quantize(operands.quantize(part, QuantizePasses::kMeasure), stream_);
    for (int64_t r = 0; r < kRows; ++r) amaxes.set(r, std::max(amaxes.at(r), operands.rows_scale_inv.at(r)));
    parts.push_back(part);
    ranks.push_back(operands);
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    Operands& operands = ranks[rank];
    operands.rows_scale_inv = amaxes;
    quantize(operands.quantize(parts[rank], QuantizePasses::kCast), stream_);
    EXPECT_EQ(operands.rows_scale_inv.bits(), whole.rows_scale_inv.bits());
    const auto begin = static_cast<int64_t>(rank) * kWidth;
    for (int64_t i = 0; i < kRows * kWidth; ++i) {
      ASSERT_EQ(operands.rows.bits()[static_cast<size_t>(i)],
                whole.rows.bits()[static_cast<size_t>(in_whole(begin, i))]);
      ASSERT_EQ(operands.columns.bits()[static_cast<size_t>(i)],
                whole.columns.bits()[static_cast<size_t>(begin * kRows + i)]);
    }
    for (int64_t c = 0; c < kWidth; ++c) {
      ASSERT_EQ(operands.columns_scale_inv.at(c), whole.columns_scale_inv.at(begin + c)) << c;
    }
  }
}

TEST_P(Fp8RowAmaxesTest, WrongArgumentsThrow) {
  const Array x = random({3, 5});
  const Operands operands(3, 5);
  const Array amax = random(DType::kFloat32, {1});
  const Fp8Operand tensor{operands.rows, amax, Scaling::kTensor};
  const auto run = [&](const Fp8Cast& cast, QuantizePasses passes) {
    quantize({.cast = cast, .x = x, .passes = passes}, stream_);
  };
  expect_error([&] { run({}, QuantizePasses::kMeasure); }, "row_amaxes: neither rows nor columns");
  expect_error([&] { run({.rows = operands.columns_view()}, QuantizePasses::kMeasure); },
               "row_amaxes rows is float8_e4m3 [5, 3], expected");
  for (const QuantizePasses passes : {QuantizePasses::kMeasure, QuantizePasses::kCast}) {
    expect_error([&] { run({.rows = tensor, .amax = amax}, passes); }, "one of two passes with scaling tensor");
  }
}

}  // namespace
}  // namespace octavo::fp8_row_amaxes_test
