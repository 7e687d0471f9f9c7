// Every failure is an exception with one clear sentence. main() prints the sentence once and chooses the exit code.
//
//   Error       something failed while running (a full disk, a CUDA call, a broken invariant): exit code 1.
//   InputError  the config, command line, data or checkpoint is wrong, found before training: exit code 2.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <new>
#include <stdexcept>
#include <string>

namespace octavo {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class InputError : public Error {
 public:
  using Error::Error;
};

// Separates the sentences of an error that reports several problems. main() prints each on its own line.
inline constexpr char kErrorSeparator = '\x1e';

// Returns the message of the exception. For std::bad_alloc, whose what() is only a name, returns a sentence.
inline std::string failure_text(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of host memory" : error.what();
}

}  // namespace octavo

// Throws an error of the given type, which callers can distinguish, with a fmt-formatted message if `condition` is
// false: CHECK_AS(DamagedCheckpoint, condition, "..."). The condition is always evaluated.
#define CHECK_AS(ErrorType, condition, ...)        \
  do {                                             \
    if (!(condition)) [[unlikely]]                 \
      throw ErrorType(::fmt::format(__VA_ARGS__)); \
  } while (false)

// Throws octavo::Error if `condition` is false.
#define CHECK(condition, ...) CHECK_AS(::octavo::Error, condition, __VA_ARGS__)

// Throws octavo::InputError for a mistake of the user. The message names the file or key, what was found and what was
// expected.
#define CHECK_INPUT(condition, ...) CHECK_AS(::octavo::InputError, condition, __VA_ARGS__)
