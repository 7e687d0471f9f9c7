// Where the lines for people go: standard output, which may be a terminal or a pipe that nobody reads. A run must not
// stand still for that (mpirun stops reading its ranks' output as soon as it is told to end, before the ranks are), so
// a line that is not taken within kPatienceMs is cut, and those after it until the reader is back. Nor must it end for
// that: mpirun gives up after ten writes to a pipe that nobody reads (`| head -1`), so it is given no lines for one.
// metrics.jsonl has all there is in them.
//
// On a terminal one line can stand below all others and be replaced as often as wanted: the progress of a run.
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

  // Writes to `descriptor`, which stays open; through a second, non-blocking opening of what it is where that can
  // block.
  explicit Console(int descriptor);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // A line of text without control characters, above the progress; a warning is yellow where there are colors.
  void print(std::string_view line, bool warning = false);

  // The columns of the terminal now; 0 where it is none, or none that can go back in a line, and under mpirun, which
  // copies what it is given to something else.
  int columns() const;
  // The line below all others, no longer than the terminal is wide, in place of the one before; empty for none. Only on
  // a terminal.
  void show_progress(std::string line);

  void use_color(LogColor color);
  bool has_colors() const;

 private:
  void write_line(std::string_view line);
  // The bytes that were taken.
  size_t write(std::string_view bytes);

  int descriptor_;
  int launcher_output_;  // see open_launcher_output()
  bool terminal_ = false;
  bool owned_ = false;  // a second opening
  mutable std::mutex mutex_;
  bool colors_ = false;
  bool stalled_ = false;   // the last line was not taken whole
  bool cut_line_ = false;  // what was taken last is the beginning of a line
  std::string progress_;
};

}  // namespace octavo
