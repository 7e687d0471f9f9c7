// Runs a program that reads lines from its standard input and answers on its standard output. Its standard error is
// discarded.
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
  // Starts `command`: a program, which is searched for in PATH, and its arguments. A program that cannot be started
  // behaves like one that prints nothing.
  explicit ChildProcess(const std::vector<std::string>& command);
  // Closes the program's standard input and waits for its end.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Writes all of `text` to the program. Does nothing if the program has ended.
  void write(std::string_view text);
  // Returns the program's next line without the newline, cut to `max_bytes`. Returns nothing if the program has ended.
  std::optional<std::string> read_line(int64_t max_bytes);

 private:
  pid_t pid_ = -1;
  int socket_ = -1;  // Socket that is the program's standard input and output.
  std::string received_;
};

}  // namespace octavo
