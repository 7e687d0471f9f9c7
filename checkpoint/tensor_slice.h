// Parts of tensors as checkpoints store them and ranks hold them: the columns [b, e) of a tensor [rows, columns] (or
// the whole of a tensor of any shape), flattened row by row, and of those elements a range. Tensor parallelism makes
// the first cut, FSDP the second, which may fall within a row.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "core/tensor.h"
#include "model/column_range.h"

namespace octavo {

struct TensorSlice {
  ColumnRange columns;  // a whole tensor that has no columns counts as a single row
  int64_t begin = 0;    // elements of the flattened columns: e - b of each row
  int64_t end = 0;
};

// Error naming the tensor (`where`) and its shape unless `columns` are none, or some of a 2-dimensional one.
void check_columns(const std::string& where, std::span<const int64_t> shape, ColumnRange columns);
// None where they are all of them, so that equal slices compare equal.
ColumnRange normalized_columns(std::span<const int64_t> shape, ColumnRange columns);
int64_t slice_numel(std::span<const int64_t> shape, ColumnRange columns);
// "[7, 5]" or "[7, 5] columns 1 to 3", for messages.
std::string describe_slice(std::span<const int64_t> shape, ColumnRange columns);

// Error naming the tensor when it has no such columns, or they no such elements.
TensorSlice checked_slice(const std::string& where, std::span<const int64_t> shape, ColumnRange columns, int64_t begin,
                          int64_t end);

// Whether two slices of one tensor have an element in common.
bool overlap(const TensorSlice& a, const TensorSlice& b);

// InputError naming the tensor (`where`) and the place of the first NaN or infinity among `values`, elements from
// number `begin` of the tensor's columns. Of dtypes other than float32 and bfloat16 nothing is looked at.
void check_finite(const std::string& where, std::span<const int64_t> shape, ColumnRange columns, int64_t begin,
                  const Tensor& values);

// Calls visit(from, to, count) for each stretch of elements in both slices of one tensor: `count` elements that are
// consecutive in either, the first being number `from` of the source and `to` of the target. One stretch where both are
// of the same columns, else at most one for each row that both reach.
void for_each_stretch(const TensorSlice& source, const TensorSlice& target,
                      const std::function<void(int64_t from, int64_t to, int64_t count)>& visit);

}  // namespace octavo
