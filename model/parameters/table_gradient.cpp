#include "model/parameters/table_gradient.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/layers/embedding.h"
#include "kernels/math/sum_terms.h"

namespace octavo {

namespace {

constexpr int64_t kColumnMultiple = 8;   // width() is a multiple of this, so that kernels read 16 bytes at a time.
constexpr int64_t kByteMultiple = 1024;  // Alignment in bytes of the tensors in ReducedUnit::gradient.
constexpr int kMostRanks = 64;           // Limit for is_better(), because each rank's tokens need a kernel launch.

// Offsets of the tensors in the memory, in bytes:
//
//   column slices, tokens | sums | positions | all positions
//
// The parts share memory with column slices and tokens, which are not needed after the tokens have been added to the
// sums.
struct Offsets {
  explicit Offsets(const TableSpec& s) {
    const auto bytes = [](int64_t elements, DType dtype) {
      return (elements * dtype_bytes(dtype) + kByteMultiple - 1) / kByteMultiple * kByteMultiple;
    };
    const int64_t token_bytes = bytes(s.ranks * s.tokens * s.width(), s.dtype);
    const int64_t table_bytes = bytes(s.padded_rows() * s.width(), DType::kFloat32);
    tokens = token_bytes;
    sums = std::max(2 * token_bytes, table_bytes);
    positions = sums + table_bytes;
    all_positions = positions + bytes(2 * s.tokens, DType::kInt32);
    end = all_positions + bytes(s.ranks * 2 * s.tokens, DType::kInt32);
  }
  int64_t column_slices = 0;
  int64_t parts = 0;
  int64_t tokens, sums, positions, all_positions, end;
};

Tensor at(const Tensor& memory, int64_t offset, DType dtype, int64_t elements) {
  char* const begin = static_cast<char*>(memory.raw());
  return Tensor(begin == nullptr ? nullptr : begin + offset, dtype, {elements});
}

}  // namespace

int64_t TableSpec::width() const {
  const int64_t multiples = ranks * kColumnMultiple;
  return (columns + multiples - 1) / multiples * kColumnMultiple;
}

int64_t TableSpec::moved_bytes() const {
  return ranks * tokens * (width() * dtype_bytes(dtype) + 2 * dtype_bytes(DType::kInt32)) +
         padded_rows() * width() * dtype_bytes(DType::kFloat32);
}

int64_t TableSpec::memory_bytes() const { return Offsets(*this).end; }

bool TableSpec::is_better(int64_t all_to_all_load) const {
  return ranks > 1 && ranks <= kMostRanks && moved_bytes() * all_to_all_load < whole_bytes() &&
         Offsets(*this).positions <= padded_rows() * ranks * width() * dtype_bytes(DType::kFloat32);
}

TokenUnit token_unit(const TableSpec& spec) {
  return {.bytes = spec.memory_bytes(),
          .make_reduction = [spec](const ReducedUnit& unit) { return std::make_unique<TableGradient>(spec, unit); }};
}

TableGradient::TableGradient(const TableSpec& spec, const ReducedUnit& unit) : spec_(spec), unit_(unit) {
  const Tensor& memory = unit.gradient;
  CHECK(spec.rows <= spec.padded_rows(), "a table of {} rows does not fit into {} slices of {} rows", spec.rows,
        spec.ranks, spec.slice_rows);
  CHECK(memory.bytes() >= spec.memory_bytes(),
        "the memory for the gradient of a table has {} bytes, expected at least {}", memory.bytes(),
        spec.memory_bytes());
  expect_tensor(unit.shard, "the slice of a table", DType::kFloat32, {spec.slice_rows * spec.columns});
  const Offsets offsets(spec);
  const int64_t elements = spec.ranks * spec.tokens * spec.width();
  column_slices_ = at(memory, offsets.column_slices, spec.dtype, elements);
  tokens_ = at(memory, offsets.tokens, spec.dtype, elements);
  parts_ = at(memory, offsets.parts, DType::kFloat32, spec.padded_rows() * spec.width());
  sums_ = at(memory, offsets.sums, DType::kFloat32, spec.padded_rows() * spec.width());
  positions_ = at(memory, offsets.positions, DType::kInt32, 2 * spec.tokens);
  all_positions_ = at(memory, offsets.all_positions, DType::kInt32, spec.ranks * 2 * spec.tokens);
}

int64_t TableGradient::columns_of(int rank) const {
  return std::clamp<int64_t>(spec_.columns - rank * spec_.width(), 0, spec_.width());
}

void TableGradient::slice_columns(const TokenRows& rows, Stream& stream) {
  expect_tensor(rows.gradients, "gradients of tokens", spec_.dtype, {spec_.tokens, spec_.columns});
  expect_tensor(rows.ids, "ids of tokens", DType::kInt32, {spec_.tokens});
  expect_tensor(rows.order, "order of tokens", DType::kInt32, {spec_.tokens});
  first_row_ = rows.first_row;
  const int64_t bytes = dtype_bytes(spec_.dtype);
  if (spec_.ranks * spec_.width() > spec_.columns) stream.zero(column_slices_);
  for (int rank = 0; rank < spec_.ranks; ++rank) {
    if (columns_of(rank) == 0) break;
    stream.copy_rows({.dst = static_cast<char*>(column_slices_.raw()) + rank * spec_.tokens * spec_.width() * bytes,
                      .dst_stride = spec_.width() * bytes,
                      .src = static_cast<const char*>(rows.gradients.raw()) + rank * spec_.width() * bytes,
                      .src_stride = spec_.columns * bytes,
                      .row_bytes = columns_of(rank) * bytes,
                      .count = spec_.tokens});
  }
  stream.copy(positions_.rows(0, spec_.tokens), rows.ids);
  stream.copy(positions_.rows(spec_.tokens, 2 * spec_.tokens), rows.order);
}

void TableGradient::run(const MicroBatchPosition& position, Stream& stream) {
  add_tokens(position.first || !unit_.keeps, stream);
  if (position.last || !unit_.keeps) finish(!unit_.keeps && !position.first, stream);
}

void TableGradient::add_tokens(bool first, Stream& stream) {
  unit_.ranks->all_gather(all_positions_, positions_, stream, unit_.name);
  unit_.ranks->all_to_all(tokens_, column_slices_, 0, stream, unit_.name);
  if (first) stream.zero(sums_);
  const int64_t rank_elements = spec_.tokens * spec_.width();
  const Tensor table = sums_.rows(0, spec_.rows * spec_.width()).view({spec_.rows, spec_.width()});
  for (int64_t rank = 0; rank < spec_.ranks; ++rank) {
    const Tensor positions = all_positions_.rows(rank * 2 * spec_.tokens, (rank + 1) * 2 * spec_.tokens);
    embedding_backward(
        {.d_table = table,
         .d_out = tokens_.rows(rank * rank_elements, (rank + 1) * rank_elements).view({spec_.tokens, spec_.width()}),
         .ids = positions.rows(0, spec_.tokens),
         .order = positions.rows(spec_.tokens, 2 * spec_.tokens),
         .vocab_begin = first_row_},
        stream);
  }
}

void TableGradient::finish(bool adds, Stream& stream) {
  unit_.ranks->all_to_all(parts_, sums_, 0, stream, unit_.name);
  if (!adds) return join(unit_.shard, stream);
  const Tensor joined = sums_.rows(0, unit_.shard.numel());
  join(joined, stream);
  sum_terms({.out = unit_.shard, .terms = joined, .accumulate = true}, stream);
}

void TableGradient::join(const Tensor& slice, Stream& stream) const {
  for (int rank = 0; rank < spec_.ranks; ++rank) {
    if (columns_of(rank) == 0) break;
    stream.copy_rows({.dst = slice.data<float>() + rank * spec_.width(),
                      .dst_stride = spec_.columns * dtype_bytes(DType::kFloat32),
                      .src = parts_.data<float>() + rank * spec_.slice_rows * spec_.width(),
                      .src_stride = spec_.width() * dtype_bytes(DType::kFloat32),
                      .row_bytes = columns_of(rank) * dtype_bytes(DType::kFloat32),
                      .count = spec_.slice_rows});
  }
}

}  // namespace octavo
