#include "parallel/table_gradient.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/layers/embedding.h"
#include "kernels/math/sum_terms.h"

namespace octavo {

namespace {

constexpr int64_t kColumnMultiple = 8;   // so that kernels read 16 bytes at a time
constexpr int64_t kByteMultiple = 1024;  // between the tensors in the memory
constexpr int kMostRanks = 64;           // each is a pass over the tokens' rows

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Where the tensors lie in the memory.
struct Places {
  explicit Places(const TableSpec& s) {
    const int64_t token_bytes = round_up(s.ranks * s.tokens * s.width() * dtype_bytes(s.dtype), kByteMultiple);
    const int64_t sum_bytes = round_up(s.padded_rows() * s.width() * dtype_bytes(DType::kFloat32), kByteMultiple);
    const int64_t position_bytes = round_up(2 * s.tokens * dtype_bytes(DType::kInt32), kByteMultiple);
    tokens = token_bytes;
    sums = std::max(2 * token_bytes, sum_bytes);
    positions = sums + sum_bytes;
    all_positions = positions + position_bytes;
    end = all_positions + round_up(s.ranks * 2 * s.tokens * dtype_bytes(DType::kInt32), kByteMultiple);
  }
  int64_t tokens, sums, positions, all_positions, end;  // the first place is that of what is cut, and of the parts
};

Tensor at(const Tensor& memory, int64_t place, DType dtype, int64_t elements) {
  char* const begin = static_cast<char*>(memory.raw());
  return Tensor(begin == nullptr ? nullptr : begin + place, dtype, {elements});
}

}  // namespace

int64_t TableSpec::width() const { return round_up((columns + ranks - 1) / ranks, kColumnMultiple); }

int64_t TableSpec::moved_bytes() const {
  return ranks * tokens * (width() * dtype_bytes(dtype) + 2 * dtype_bytes(DType::kInt32)) +
         padded_rows() * width() * dtype_bytes(DType::kFloat32);
}

int64_t TableSpec::memory_bytes() const { return Places(*this).end; }

bool TableSpec::is_better(int64_t all_to_all_load) const {
  return ranks > 1 && ranks <= kMostRanks && moved_bytes() * all_to_all_load < whole_bytes() &&
         Places(*this).positions <= padded_rows() * ranks * width() * dtype_bytes(DType::kFloat32);
}

TableGradient::TableGradient(const TableSpec& spec, const Tensor& memory) : spec_(spec) {
  CHECK(spec.rows <= spec.padded_rows(), "a table of {} rows in {} slices of {}", spec.rows, spec.ranks,
        spec.slice_rows);
  CHECK(memory.bytes() >= spec.memory_bytes(), "{} bytes for the gradient of a table, expected {}", memory.bytes(),
        spec.memory_bytes());
  const Places places(spec);
  const int64_t cut = spec.ranks * spec.tokens * spec.width();
  cut_ = at(memory, 0, spec.dtype, cut);
  tokens_ = at(memory, places.tokens, spec.dtype, cut);
  parts_ = at(memory, 0, DType::kFloat32, spec.padded_rows() * spec.width());
  sums_ = at(memory, places.sums, DType::kFloat32, spec.padded_rows() * spec.width());
  positions_ = at(memory, places.positions, DType::kInt32, 2 * spec.tokens);
  all_positions_ = at(memory, places.all_positions, DType::kInt32, spec.ranks * 2 * spec.tokens);
}

int64_t TableGradient::columns_of(int rank) const {
  return std::clamp<int64_t>(spec_.columns - rank * spec_.width(), 0, spec_.width());
}

void TableGradient::cut(const TokenRows& rows, Stream& stream) {
  expect_tensor(rows.gradients, "gradients of tokens", spec_.dtype, {spec_.tokens, spec_.columns});
  expect_tensor(rows.ids, "ids of tokens", DType::kInt32, {spec_.tokens});
  expect_tensor(rows.order, "order of tokens", DType::kInt32, {spec_.tokens});
  first_row_ = rows.first_row;
  const int64_t bytes = dtype_bytes(spec_.dtype);
  if (spec_.ranks * spec_.width() > spec_.columns) stream.zero(cut_);
  for (int rank = 0; rank < spec_.ranks; ++rank) {
    if (columns_of(rank) == 0) break;
    stream.copy_rows({.dst = static_cast<char*>(cut_.raw()) + rank * spec_.tokens * spec_.width() * bytes,
                      .dst_stride = spec_.width() * bytes,
                      .src = static_cast<const char*>(rows.gradients.raw()) + rank * spec_.width() * bytes,
                      .src_stride = spec_.columns * bytes,
                      .row_bytes = columns_of(rank) * bytes,
                      .count = spec_.tokens});
  }
  stream.copy(positions_.rows(0, spec_.tokens), rows.ids);
  stream.copy(positions_.rows(spec_.tokens, 2 * spec_.tokens), rows.order);
}

void TableGradient::add_tokens(bool first, Communicator& ranks, Stream& stream, const char* what) {
  ranks.all_gather(all_positions_, positions_, stream, what);
  ranks.all_to_all(tokens_, cut_, 0, stream, what);
  if (first) stream.zero(sums_);
  const int64_t stretch = spec_.tokens * spec_.width();
  const Tensor table = sums_.rows(0, spec_.rows * spec_.width()).view({spec_.rows, spec_.width()});
  for (int64_t rank = 0; rank < spec_.ranks; ++rank) {
    const Tensor positions = all_positions_.rows(rank * 2 * spec_.tokens, (rank + 1) * 2 * spec_.tokens);
    embedding_backward({.d_table = table,
                        .d_out = tokens_.rows(rank * stretch, (rank + 1) * stretch).view({spec_.tokens, spec_.width()}),
                        .ids = positions.rows(0, spec_.tokens),
                        .order = positions.rows(spec_.tokens, 2 * spec_.tokens),
                        .vocab_begin = first_row_},
                       stream);
  }
}

void TableGradient::finish(const Tensor& slice, bool adds, Communicator& ranks, Stream& stream, const char* what) {
  expect_tensor(slice, "the slice of a table", DType::kFloat32, {spec_.slice_rows * spec_.columns});
  ranks.all_to_all(parts_, sums_, 0, stream, what);
  if (!adds) return join(slice, stream);
  const Tensor joined = sums_.rows(0, slice.numel());
  join(joined, stream);
  sum_terms({.out = slice, .terms = joined, .accumulate = true}, stream);
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
