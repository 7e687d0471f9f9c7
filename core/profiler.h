// Profiler: the time each op takes, by name, and a timeline of them. Off (null in the Stream) it costs one comparison
// an op.
//
// Every op's front function opens an OpTimer; on a GPU it records two events around the op's launches, on the CPU it
// reads the clock. What encloses ops (a block, the optimizer) opens a ProfilerRange. Times are collected with totals()
// and spans() after the stream was synchronized. On a planned stream the op is recorded (core/op_record.h), and does
// not run.
//
// In a CUDA build ops and ranges are NVTX ranges of the host too, for Nsight Systems; without that, nothing listens,
// and each costs a comparison.
#pragma once

#include <cstdint>
#include <exception>
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

  enum class Kind : uint8_t { kOp, kRange, kHostRange };
  // From `begin_ms` to `end_ms` of the stream, as far behind an event; on a GPU the host queued it meanwhile or
  // earlier, from `host_begin_ms` to `host_end_ms` of host_clock_ms(). Of a host range the latter alone.
  struct Span {
    Kind kind = Kind::kOp;
    Op op;                  // of a range the name alone
    const char* what = "";  // of a collective: what it sends
    double begin_ms = 0;
    double end_ms = 0;
    double host_begin_ms = 0;
    double host_end_ms = 0;
  };

  // kOps: for totals() alone. kCollectives: nothing but the collectives.
  enum class Detail : uint8_t { kOps, kTimeline, kCollectives };
  explicit Profiler(Device device, Detail detail = Detail::kOps) : device_(device), detail_(detail) {}

  // Sums by op name of everything recorded since the last clear(). Call after Stream::synchronize(). Throws what the
  // end of an op threw; spans() does too.
  std::map<std::string, Total> totals() const;
  // All of it in the order of its beginnings, those of one stream nested in each other. Names are those
  // that ops and ranges gave, and valid as long. `origin`: recorded before, with timing, on a stream of the device.
  std::vector<Span> spans(const Event& origin) const;
  void clear() { used_ = 0; }

 private:
  friend class OpTimer;
  friend class ProfilerRange;
  struct Record {
    Event begin;
    Event end;
    Span span;
  };

  bool records(const Op& op) const { return detail_ != Detail::kCollectives || op.bound == OpBound::kCommunication; }
  size_t begin(const Stream& stream, Kind kind, const Op& op, const char* what);
  void end(const Stream& stream, size_t index) noexcept;
  void rethrow_failure() const;

  Device device_;
  Detail detail_;
  std::vector<Record> records_;  // events are reused after clear()
  size_t used_ = 0;
  std::exception_ptr failure_;
};

// The clock of a timeline's host times, in milliseconds; also that of a CPU's streams.
double host_clock_ms();

// From now on CPU ops whose work is less than this run on the calling thread alone, as waking the other threads and
// waiting for them would take longer. Work is bytes moved plus half the FLOPs. 0, with which a process starts, shares
// every op among OpenMP's threads. For the whole process, like omp_set_num_threads().
void set_least_shared_work(double work);

// Times the enclosing scope on `stream` as `op`, and chooses the number of its threads on the CPU. On a planned stream
// it records the op instead, and throws where that has no record.
class OpTimer {
 public:
  // `what`: see Profiler::Span.
  OpTimer(const Stream& stream, const Op& op, const char* what = "");
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
  int threads_ = 0;  // number of OpenMP's threads to restore at the end of the scope; 0 where it was not changed
};

// Names what is queued on `stream` in the enclosing scope, in timelines; or with kHostRange what the host does in it,
// as waiting. `name` is borrowed, as long as the timeline.
class ProfilerRange {
 public:
  ProfilerRange(const Stream& stream, const char* name, Profiler::Kind kind = Profiler::Kind::kRange);
  ~ProfilerRange();
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  const Stream& stream_;
  Profiler* profiler_;  // of a timeline
  size_t index_ = 0;
};

}  // namespace octavo
