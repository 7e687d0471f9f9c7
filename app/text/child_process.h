// A program that reads lines from its standard input and answers on its standard output. Its standard error is
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
  // `command` is the program, found in PATH, and its arguments. A program that cannot be started behaves like one that
  // prints nothing.
  explicit ChildProcess(const std::vector<std::string>& command);
  // Closes the program's standard input and waits for its end.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Writes all of `text` to the program, unless it has ended.
  void write(std::string_view text);
  // Returns the next line that the program writes, without the newline, cut to `max_bytes`. Returns nothing if it has
  // ended.
  std::optional<std::string> read_line(int64_t max_bytes);

 private:
  pid_t pid_ = -1;
  int socket_ = -1;  // Standard input and output of the program.
  std::string received_;
};

}  // namespace octavo
