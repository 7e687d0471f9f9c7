// Errors. Every failure is an exception carrying one clear sentence; main() prints it once and picks the exit code.
//
//   Error       something failed while running (a full disk, a CUDA call, a broken invariant): exit code 1.
//   InputError  the config, command line, data or checkpoint is wrong, found before training: exit code 2.
#pragma once

#include <fmt/format.h>

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

// Separates the sentences in the message of an error that stands for several; main() prints each on a line.
inline constexpr char kErrorSeparator = '\x1e';

}  // namespace octavo

// Throws octavo::Error with a fmt-formatted message when `condition` is false. Always evaluated.
#define CHECK(condition, ...)                            \
  do {                                                   \
    if (!(condition)) [[unlikely]]                       \
      throw ::octavo::Error(::fmt::format(__VA_ARGS__)); \
  } while (false)

// The same for what a user got wrong; names the file or key, what was found and what was expected.
#define CHECK_INPUT(condition, ...)                           \
  do {                                                        \
    if (!(condition)) [[unlikely]]                            \
      throw ::octavo::InputError(::fmt::format(__VA_ARGS__)); \
  } while (false)

// The same with an error of its own, one that a caller tells from the others: CHECK_AS(DamagedCheckpoint, condition,
// "...").
#define CHECK_AS(ErrorType, condition, ...)        \
  do {                                             \
    if (!(condition)) [[unlikely]]                 \
      throw ErrorType(::fmt::format(__VA_ARGS__)); \
  } while (false)
