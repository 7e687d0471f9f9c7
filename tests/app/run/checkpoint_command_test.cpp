#include "app/run/checkpoint_command.h"

#include <gtest/gtest.h>

namespace octavo {
namespace {

using Numbers = std::vector<std::pair<std::string, double>>;

TEST(CheckpointCommandTest, NumbersAreThoseOfTheLastObject) {
  EXPECT_EQ(numbers_in(""), Numbers());
  EXPECT_EQ(numbers_in("no numbers\n[1, 2]\n3\n"), Numbers());
  EXPECT_EQ(numbers_in("{\"a\": 1}\ntext {\"b\": 2}\n"), (Numbers{{"a", 1}}));
  EXPECT_EQ(numbers_in("{\"a\": 1}\n{\"b\": {\"c\": -2.5, \"d\": {\"e\": 3}}, \"f\": \"text\", \"g\": true}\nend"),
            (Numbers{{"b/c", -2.5}, {"b/d/e", 3}}));
  EXPECT_EQ(numbers_in("{\"a\": 1}\n{\"a\": tru"), (Numbers{{"a", 1}})) << "a line that was cut short";
  EXPECT_EQ(numbers_in("{\"a\": 1e999}"), Numbers()) << "not a number of JSON";
}

}  // namespace
}  // namespace octavo
