// Profiler: the time of each op by name, and a timeline. If the Stream has no profiler, timing an op costs one
// comparison.
//
// The public function of every op opens an OpTimer. On a GPU the timer records two events around the launches of the
// op, and on the CPU it reads the clock. Code that encloses ops (a block, the optimizer) opens a ProfilerRange.
// totals() and spans() return the times after the stream was synchronized. On a dry-run stream the op is recorded
// (core/op_record.h) and does not run.
//
// In a CUDA build ops and ranges are also NVTX ranges for Nsight Systems. Without a profiler attached each costs a
// comparison.
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
    double flops = 0;      // Floating-point operations, if the op states them.
    double fp8_flops = 0;  // Part of `flops` that FP8 matmuls execute.
    double bytes = 0;      // Least number of bytes that the op must move, if the op states it.
    bool communication = false;
  };

  enum class Kind : uint8_t { kOp, kRange, kHostRange };
  // One entry of a timeline. begin_ms and end_ms are times on the stream since the `origin` of spans(). host_begin_ms
  // and host_end_ms are times of host_clock_ms() at which the host queued both. A host range has host times only.
  struct Span {
    Kind kind = Kind::kOp;
    Op op;                  // The op. Only the name is set for a range.
    const char* what = "";  // Name of the tensor that a collective sends.
    double begin_ms = 0;
    double end_ms = 0;
    double host_begin_ms = 0;
    double host_end_ms = 0;
  };

  // Amount of detail to record. kOps is enough for totals(), kTimeline also supports spans(), and kCollectives records
  // collectives only.
  enum class Detail : uint8_t { kOps, kTimeline, kCollectives };
  explicit Profiler(Device device, Detail detail = Detail::kOps) : device_(device), detail_(detail) {}

  // Returns the sums by op name since the last clear(). Call it after Stream::synchronize(). If recording the end of an
  // op has thrown an exception, totals() and spans() throw it again.
  std::map<std::string, Total> totals() const;
  // Returns all spans in the order in which they began. Spans of one stream nest. `origin` is a timing event that was
  // recorded earlier on a stream of the device.
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
  // Recorded ops and ranges. Their events are reused after clear().
  std::vector<Record> records_;
  size_t used_ = 0;
  std::exception_ptr failure_;
};

// Returns the host's clock in milliseconds. It is also the clock of CPU streams.
double host_clock_ms();

// Sets the least amount of work for which a CPU op uses several threads. Smaller ops run on the calling thread, because
// waking other threads would take longer. Work is bytes moved plus half the FLOPs. 0, the initial value, lets every op
// use all threads. Applies to the whole process, like omp_set_num_threads().
void set_least_shared_work(double work);

// Times the enclosing scope on `stream` as `op`, and chooses the number of its CPU threads. On a dry-run stream it
// records the op instead, and throws if the stream has no record.
class OpTimer {
 public:
  // `what` names the tensor that a collective sends (Profiler::Span::what).
  OpTimer(const Stream& stream, const Op& op, const char* what = "");
  template <typename Bytes>
  OpTimer(const Stream& stream, const char* name, Bytes bytes)
      : OpTimer(stream, Op{.name = name, .bytes = static_cast<double>(bytes)}) {}
  ~OpTimer();
  OpTimer(const OpTimer&) = delete;
  OpTimer& operator=(const OpTimer&) = delete;

  // Returns whether the op was recorded on a dry-run stream and must not run.
  bool planned() const { return stream_.is_planned(); }

 private:
  const Stream& stream_;
  Profiler* profiler_;
  size_t index_ = 0;
  int threads_ = 0;  // Number of OpenMP threads to restore at the end of the scope. 0 means unchanged.
};

// Names the work that is queued on `stream` in the enclosing scope. With kHostRange it names what the host does, such
// as waiting.
// Requires: `name` outlives the timeline.
class ProfilerRange {
 public:
  ProfilerRange(const Stream& stream, const char* name, Profiler::Kind kind = Profiler::Kind::kRange);
  ~ProfilerRange();
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  const Stream& stream_;
  Profiler* profiler_;  // Profiler that records a timeline, or null.
  size_t index_ = 0;
};

}  // namespace octavo
