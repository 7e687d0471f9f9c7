// Collects the errors of a config, so that all of them are reported together.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace octavo {

// Calls visit(sentence) for each sentence in the message of an InputError.
template <typename Visit>
void for_each_sentence(std::string_view message, const Visit& visit) {
  for (size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1) {
    end = message.find(kErrorSeparator, begin);
    visit(std::string(message.substr(begin, end - begin)));
  }
}

class ErrorList {
 public:
  // Runs `check` and adds the message of the InputError that it throws, if any.
  template <typename Check>
  void collect(const Check& check) {
    try {
      check();
    } catch (const InputError& error) {
      add(error.what());
    }
  }

  // Adds a message unless the list already contains it.
  void add(const std::string& message) {
    if (std::ranges::find(messages_, message) == messages_.end()) messages_.push_back(message);
  }

  // Throws one InputError with all messages, separated by kErrorSeparator. Does nothing if the list is empty.
  void raise() const {
    if (messages_.empty()) return;
    constexpr size_t kMost = 20;
    std::string text;
    for (size_t i = 0; i < std::min(messages_.size(), kMost); ++i) {
      if (i > 0) text += kErrorSeparator;
      text += messages_[i];
    }
    if (messages_.size() > kMost) text += fmt::format("{}{} more errors", kErrorSeparator, messages_.size() - kMost);
    throw InputError(text);
  }

 private:
  std::vector<std::string> messages_;
};

}  // namespace octavo
