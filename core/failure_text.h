// Text of an exception for messages.
#pragma once

#include <exception>
#include <new>
#include <string>

namespace octavo {

// Returns the message of the exception. For std::bad_alloc, whose what() is only a name, returns a sentence.
inline std::string failure_text(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of host memory" : error.what();
}

}  // namespace octavo
