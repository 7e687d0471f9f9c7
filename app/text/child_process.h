// A program that serves: it reads lines from its standard input and answers on its standard output. Its standard error
// goes nowhere.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo {

class ChildProcess {
 public:
  // `command`: the program, found in PATH, and its arguments. One that cannot be started is one that says nothing.
  explicit ChildProcess(const std::vector<std::string>& command);
  // Closes its standard input and waits for it to end.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Gives it all of `text`, unless it has ended.
  void write(std::string_view text);
  // The next line it writes, without the newline; nothing when it has ended. Of a longer line the first `max_bytes`.
  std::optional<std::string> read_line(int64_t max_bytes);

 private:
  pid_t pid_ = -1;
  int socket_ = -1;  // its standard input and output
  std::string received_;
};

}  // namespace octavo
