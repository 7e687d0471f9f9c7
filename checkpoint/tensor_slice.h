// Slices of tensors, as checkpoints store them and ranks hold them: a range of elements of the columns [b, e) of a
// tensor [rows, columns] (or of a whole tensor of any shape), flattened row by row. Tensor parallelism divides columns.
// FSDP divides elements, possibly within a row.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "core/tensor.h"
#include "model/architecture/tensor_parallel.h"

namespace octavo {

struct TensorSlice {
  ColumnRange columns;  // Columns [b, e). A tensor that is not 2-dimensional counts as a single row.
  int64_t begin = 0;    // First element of the flattened columns. Each row has e - b elements.
  int64_t end = 0;
};

// Throws an Error that names the tensor (`where`) and its shape unless `columns` are empty, or columns of a
// 2-dimensional tensor.
void check_columns(const std::string& where, std::span<const int64_t> shape, ColumnRange columns);
// Returns empty columns if they are all columns, so that equal slices compare equal.
ColumnRange normalized_columns(std::span<const int64_t> shape, ColumnRange columns);
int64_t slice_numel(std::span<const int64_t> shape, ColumnRange columns);
// Returns "[7, 5]" or "[7, 5] columns 1 to 3", for messages.
std::string describe_slice(std::span<const int64_t> shape, ColumnRange columns);

// Returns the slice. Throws an Error that names the tensor (`where`) if it does not have these columns or elements.
TensorSlice checked_slice(const std::string& where, std::span<const int64_t> shape, ColumnRange columns, int64_t begin,
                          int64_t end);

// Returns whether two slices of one tensor have an element in common.
bool overlap(const TensorSlice& a, const TensorSlice& b);

// Throws an InputError that names the tensor (`where`) and the place of the first NaN or infinity among `values`, which
// start at element `begin` of the tensor's columns. Checks float32 and bfloat16 only.
void check_finite(const std::string& where, std::span<const int64_t> shape, ColumnRange columns, int64_t begin,
                  const Tensor& values);

// Calls visit(from, to, count) for each run of `count` elements that is in both slices and consecutive in both. `from`
// and `to` are the indices of its first element in the source and in the target. There is one run if both slices have
// the same columns, and otherwise at most one for each row that both reach.
void for_each_run(const TensorSlice& source, const TensorSlice& target,
                  const std::function<void(int64_t from, int64_t to, int64_t count)>& visit);

}  // namespace octavo
