// Where the lines for people go: standard output, which may be a terminal or a pipe that nobody reads. A run must not
// stand still for that (mpirun stops reading its ranks' output as soon as it is told to end, before the ranks are), so
// a line that is not taken within kPatienceMs is cut, and those after it until the reader is back. Nor must it end for
// that: mpirun gives up after ten writes to a pipe that nobody reads (`| head -1`), so it is given no lines for one.
// metrics.jsonl has all there is in them.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <mutex>
#include <string_view>

namespace octavo {

// Safe to use from several threads, as every sink. Errors of writing are ignored.
class ConsoleSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  static constexpr int kPatienceMs = 200;

  // Writes to `descriptor`, which stays open; through a second, non-blocking opening of what it is where that can
  // block.
  explicit ConsoleSink(int descriptor);
  ~ConsoleSink() override;
  ConsoleSink(const ConsoleSink&) = delete;
  ConsoleSink& operator=(const ConsoleSink&) = delete;

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

 private:
  // The bytes that were taken.
  size_t write(std::string_view bytes);

  int descriptor_;
  int launcher_output_;    // see open_launcher_output()
  bool owned_ = false;     // a second opening
  bool stalled_ = false;   // the last line was not taken whole
  bool cut_line_ = false;  // what was taken last is the beginning of a line
};

}  // namespace octavo
