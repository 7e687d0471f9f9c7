// Messages of errors in tests. A test checks the parts of a message that name the key, what was found and what was
// expected, not its wording.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <vector>

#include "core/error.h"

namespace octavo {

// Runs `action` and returns the message of the exception that it must throw. The exception must be an InputError if E
// is one, and must not be one otherwise.
template <typename E, typename Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const E& error) {
    constexpr bool kIsInputError = std::is_base_of_v<InputError, E>;
    EXPECT_EQ(dynamic_cast<const InputError*>(&error) != nullptr, kIsInputError) << error.what();
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return {};
  }
  ADD_FAILURE() << "no exception";
  return {};
}

// Runs `action` and returns the message of the InputError that it throws, or an empty string.
template <typename Action>
std::string input_error_of(Action action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

inline void expect_mentions(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
  }
}

}  // namespace octavo
