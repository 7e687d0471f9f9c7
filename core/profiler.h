// Profiler: the time each op takes, by name. Off (null in the Stream) it costs one comparison an op.
//
// Every op's front function opens an OpTimer; on a GPU it records two events around the op's launches, on the CPU it
// reads the clock. Times are collected with totals() after the stream was synchronized.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/stream.h"

namespace octavo {

// What an op cannot be faster than.
enum class OpBound : uint8_t {
  kMemory,         // moving its bytes
  kProduct,        // its FLOPs at the rate of products in the compute dtype; attention as well
  kFp8Product,     // its FLOPs at the rate of FP8 products
  kCommunication,  // the links between ranks
};

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
    const char* name;
    double flops;
    double bytes;
    OpBound bound;
  };

  Device device_;
  std::vector<Record> records_;  // events are reused after clear()
  size_t used_ = 0;
};

// Times the enclosing scope on `stream` under `name` (a string literal).
class OpTimer {
 public:
  OpTimer(const Stream& stream, const char* name, double flops = 0, double bytes = 0, OpBound bound = OpBound::kMemory);
  ~OpTimer();
  OpTimer(const OpTimer&) = delete;
  OpTimer& operator=(const OpTimer&) = delete;

 private:
  const Stream& stream_;
  Profiler* profiler_;
  size_t index_ = 0;
};

}  // namespace octavo
