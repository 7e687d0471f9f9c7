#include "checkpoint/tensor_slice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/error.h"

namespace octavo {
namespace {

const std::vector<int64_t> kShape{4, 5};

// Returns the indices of the elements of the slice in the flattened whole tensor.
std::vector<int64_t> places(const TensorSlice& slice) {
  std::vector<int64_t> all;
  for (int64_t row = 0; row < 4; ++row) {
    for (int64_t column = slice.columns.begin; column < slice.columns.end; ++column) all.push_back(5 * row + column);
  }
  return {all.begin() + slice.begin, all.begin() + slice.end};
}

// Returns, for each element of the target, the index in the whole tensor that it is copied from, or -1.
std::vector<int64_t> copied_places(const TensorSlice& source, const TensorSlice& target, int64_t& copies) {
  const std::vector<int64_t> from_places = places(source);
  std::vector<int64_t> copied(places(target).size(), -1);
  copies = 0;
  for_each_run(source, target, [&](int64_t from, int64_t to, int64_t count) {
    ++copies;
    for (int64_t i = 0; i < count; ++i) {
      EXPECT_EQ(copied.at(static_cast<size_t>(to + i)), -1);
      copied.at(static_cast<size_t>(to + i)) = from_places.at(static_cast<size_t>(from + i));
    }
  });
  return copied;
}

// Returns slices of all begins and ends that the loops visit. Large begins and lengths are only sampled.
std::vector<TensorSlice> all_slices() {
  std::vector<TensorSlice> slices;
  for (const ColumnRange columns : std::vector<ColumnRange>{{}, {0, 1}, {0, 3}, {1, 3}, {2, 5}, {3, 4}, {4, 5}}) {
    const int64_t numel = slice_numel(kShape, columns);
    for (int64_t begin = 0; begin <= numel; begin += begin < 4 ? 1 : 3) {
      for (int64_t end = begin; end <= numel; end += end < begin + 7 ? 1 : 2) {
        slices.push_back(checked_slice("tensor", kShape, columns, begin, end));
      }
    }
  }
  return slices;
}

TEST(TensorSlice, StretchesAreWhatBothHave) {
  const std::vector<TensorSlice> slices = all_slices();
  for (const TensorSlice& source : slices) {
    const std::vector<int64_t> have = places(source);
    for (const TensorSlice& target : slices) {
      std::vector<int64_t> expected = places(target);
      for (int64_t& place : expected) {
        if (!std::binary_search(have.begin(), have.end(), place)) place = -1;
      }
      int64_t copies = 0;
      ASSERT_EQ(copied_places(source, target, copies), expected)
          << source.columns.begin << " " << source.begin << " " << target.columns.begin << " " << target.begin;
      EXPECT_LE(copies, source.columns == target.columns ? 1 : 4);
    }
  }
}

TEST(TensorSlice, WholeTensorsOfAnyShapeAreOneStretch) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{20}, {4, 5}, {2, 2, 5}}) {
    int64_t copies = 0;
    for_each_run(checked_slice("tensor", shape, {}, 3, 18), checked_slice("tensor", shape, {}, 7, 20),
                 [&](int64_t from, int64_t to, int64_t count) {
                   ++copies;
                   EXPECT_EQ(from, 4);
                   EXPECT_EQ(to, 0);
                   EXPECT_EQ(count, 11);
                 });
    EXPECT_EQ(copies, 1);
  }
  const std::vector<int64_t> scalar, empty{0, 5};
  EXPECT_EQ(checked_slice("tensor", scalar, {}, 0, 1).columns.end, 1);
  EXPECT_EQ(slice_numel(empty, {1, 3}), 0);
}

TEST(TensorSlice, RefusesElementsOutsideTheTensor) {
  const std::vector<int64_t> vector{20};
  for (const ColumnRange columns : std::vector<ColumnRange>{{-1, 2}, {3, 6}, {2, 2}, {5, 5}, {3, 1}, {0, -1}}) {
    EXPECT_THROW(checked_slice("tensor", kShape, columns, 0, 0), Error) << columns.begin << " " << columns.end;
  }
  EXPECT_THROW(checked_slice("tensor", vector, {0, 5}, 0, 5), Error);
  EXPECT_THROW(checked_slice("tensor", kShape, {1, 3}, 0, 9), Error);
  EXPECT_THROW(checked_slice("tensor", kShape, {1, 3}, 5, 4), Error);
  EXPECT_THROW(checked_slice("tensor", kShape, {}, -1, 4), Error);
  EXPECT_THROW(checked_slice("tensor", kShape, {}, 0, 21), Error);
}

TEST(TensorSlice, AllColumnsAreNone) {
  const std::vector<int64_t> vector{5};
  EXPECT_TRUE(normalized_columns(kShape, {0, 5}).none());
  EXPECT_TRUE(normalized_columns(kShape, {}).none());
  EXPECT_EQ(normalized_columns(kShape, {0, 4}), (ColumnRange{0, 4}));
  EXPECT_EQ(normalized_columns(vector, {0, 5}), (ColumnRange{0, 5}));
  EXPECT_EQ(describe_slice(kShape, {}), "[4, 5]");
  EXPECT_EQ(describe_slice(kShape, {1, 3}), "[4, 5] columns 1 to 3");
}

}  // namespace
}  // namespace octavo
