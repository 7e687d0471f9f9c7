// The sentence of a failure, for messages.
#pragma once

#include <exception>
#include <new>
#include <string>

namespace octavo {

// What an exception says, in words also where its type says nothing more than its name.
inline std::string failure_text(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of host memory" : error.what();
}

}  // namespace octavo
