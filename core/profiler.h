// Profiler: the time each op takes, by name. Off (null in the Stream) it costs one comparison an op.
//
// Every op's front function opens an OpTimer; on a GPU it records two events around the op's launches, on the CPU it
// reads the clock. Times are collected with totals() after the stream was synchronized. On a planned stream the op is
// recorded (core/op_record.h), and does not run.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/op_record.h"
#include "core/stream.h"

namespace octavo {

class Profiler {
 public:
  struct Total {
    int64_t calls = 0;
    double milliseconds = 0;
    double flops = 0;      // floating-point operations asked for, where the op says
    double fp8_flops = 0;  // of those, in FP8 products
    double bytes = 0;      // bytes the op must move at least, where the op says
    bool communication = false;
  };

  explicit Profiler(Device device) : device_(device) {}

  // Sums by op name of everything recorded since the last clear(). Call after Stream::synchronize().
  std::map<std::string, Total> totals() const;
  void clear() { used_ = 0; }

 private:
  friend class OpTimer;
  struct Record {
    Event begin;
    Event end;
    Op op;
  };

  Device device_;
  std::vector<Record> records_;  // events are reused after clear()
  size_t used_ = 0;
};

// Times the enclosing scope on `stream` as `op`. On a planned stream it records the op instead, and throws where that
// has no record.
class OpTimer {
 public:
  OpTimer(const Stream& stream, const Op& op);
  OpTimer(const Stream& stream, const char* name, double flops = 0, double bytes = 0)
      : OpTimer(stream, Op{.name = name, .flops = flops, .bytes = bytes}) {}
  ~OpTimer();
  OpTimer(const OpTimer&) = delete;
  OpTimer& operator=(const OpTimer&) = delete;

  // The op was recorded, and there is nothing to run it on.
  bool planned() const { return stream_.is_planned(); }

 private:
  const Stream& stream_;
  Profiler* profiler_;
  size_t index_ = 0;
};

}  // namespace octavo
