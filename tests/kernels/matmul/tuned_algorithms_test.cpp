// Tests of measured algorithm choices that are written as text and read again.
#include "kernels/matmul/tuned_algorithms.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace octavo::tuned_algorithms_test {
namespace {

TEST(TunedAlgorithms, ComesBackFromItsText) {
  TunedAlgorithms tuned;
  tuned.keep("a product", "12 ab");
  tuned.keep("attention \"quoted\"", "plan 3");
  EXPECT_EQ(tuned.num_timed(), 2);
  TunedAlgorithms again;
  again.add(tuned.text("a GPU"), "a GPU");
  ASSERT_NE(again.find("a product"), nullptr);
  EXPECT_EQ(*again.find("a product"), "12 ab");
  EXPECT_EQ(*again.find("attention \"quoted\""), "plan 3");
  EXPECT_EQ(again.find("another"), nullptr);
  EXPECT_EQ(again.num_timed(), 0);
  EXPECT_EQ(again.text("a GPU"), tuned.text("a GPU"));
}

TEST(TunedAlgorithms, LeavesOutThoseOfAnotherGpu) {
  TunedAlgorithms tuned;
  tuned.keep("a product", "12 ab");
  TunedAlgorithms other;
  other.add(tuned.text("a GPU"), "another GPU");
  EXPECT_EQ(other.size(), 0);
}

TEST(TunedAlgorithms, RefusesInvalidText) {
  for (const char* text : {"", "[]", "{", "{\"on\": 1, \"algorithms\": {}}", "{\"on\": \"a GPU\"}",
                           "{\"on\": \"a GPU\", \"algorithms\": {\"a product\": 3}}"}) {
    TunedAlgorithms tuned;
    EXPECT_THROW(tuned.add(text, "a GPU"), InputError) << text;
    EXPECT_EQ(tuned.size(), 0) << text;
  }
}

}  // namespace
}  // namespace octavo::tuned_algorithms_test
