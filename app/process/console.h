// Writes lines for people to standard output, which may be a terminal or a pipe that nobody reads.
//
// Output must not block a run: when mpirun is told to end, it stops reading its ranks' output before the ranks end. If
// a line is not accepted within kPatienceMs, it is cut off, and later lines are dropped until the reader continues.
// Output must not end a run either: mpirun aborts after ten failed writes to a pipe that nobody reads (`| head -1`), so
// nothing is written once mpirun's own output has no reader. metrics.jsonl has all numbers.
//
// On a terminal, a line with the progress of the run can stay below all other lines and is replaced in place.
#pragma once

#include <mutex>
#include <string>
#include <string_view>

#include "app/config/config.h"

namespace octavo {

// Thread-safe. Errors of writing are ignored.
class Console {
 public:
  static constexpr int kPatienceMs = 200;

  explicit Console(int descriptor);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // Writes to `descriptor` from now on and leaves it open. If writing to it can block, the console opens the same file
  // a second time in non-blocking mode.
  void write_to(int descriptor);

  // Prints a line above the progress line. `line` has no control characters. Warnings are yellow if colors are enabled.
  void print(std::string_view line, bool warning = false);

  // Returns the width of the terminal in columns. Returns 0 if there is no terminal, if the terminal cannot move its
  // cursor within a line, or under mpirun, which forwards the output.
  int columns() const;
  // Replaces the progress line, cut to the width of the terminal. An empty line removes it. Does nothing without a
  // terminal.
  void show_progress(std::string line);

  void use_color(LogColor color);
  bool has_colors() const;

 private:
  void write_line(std::string_view line);
  // Returns the number of bytes that were accepted.
  size_t write(std::string_view bytes);

  int descriptor_ = -1;
  const int launcher_output_;  // Result of open_launcher_output().
  bool terminal_ = false;
  bool owned_ = false;  // Whether descriptor_ was opened by the console.
  mutable std::mutex mutex_;
  bool colors_ = false;
  bool stalled_ = false;   // Whether the last line was not accepted completely.
  bool cut_line_ = false;  // Whether the last accepted bytes are an incomplete line.
  std::string progress_;
};

}  // namespace octavo
