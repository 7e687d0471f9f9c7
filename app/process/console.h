// Writes lines for people to standard output, which may be a terminal or a pipe that nobody reads. A run must not block
// on the output: mpirun stops reading its ranks' output as soon as it is told to end, before the ranks are. So a line
// that is not taken within kPatienceMs is cut, and so are later lines until the reader returns. The output must not end
// the run either: mpirun gives up after ten writes to a pipe that nobody reads (`| head -1`), so it is given no lines
// then. metrics.jsonl has all numbers.
//
// On a terminal one line can stay below all others and be replaced: the progress of a run.
#pragma once

#include <mutex>
#include <string>
#include <string_view>

#include "app/config/config.h"

namespace octavo {

// Safe to use from several threads. Errors of writing are ignored.
class Console {
 public:
  static constexpr int kPatienceMs = 200;

  // Writes to `descriptor`, which stays open. If it can block, the console opens the same file a second time without
  // blocking.
  explicit Console(int descriptor);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // Prints a line of text without control characters, above the progress. A warning is yellow if there are colors.
  void print(std::string_view line, bool warning = false);

  // Returns the columns of the terminal. 0 if there is no terminal, if it cannot move the cursor within a line, and
  // under mpirun, which copies the output.
  int columns() const;
  // Shows a line below all others, cut to the width of the terminal, instead of the previous one. An empty line removes
  // it. Does nothing without a terminal.
  void show_progress(std::string line);

  void use_color(LogColor color);
  bool has_colors() const;

 private:
  void write_line(std::string_view line);
  // Returns the number of bytes that were taken.
  size_t write(std::string_view bytes);

  int descriptor_;
  int launcher_output_;  // Result of open_launcher_output().
  bool terminal_ = false;
  bool owned_ = false;  // Whether descriptor_ is a second opening.
  mutable std::mutex mutex_;
  bool colors_ = false;
  bool stalled_ = false;   // Whether the last line was not taken completely.
  bool cut_line_ = false;  // Whether the last bytes taken are the beginning of a line.
  std::string progress_;
};

}  // namespace octavo
