// OpRecord: a record of everything that was queued on dry-run streams (Stream::planned) instead of running it. It has
// the ops with their FLOPs and bytes, the collectives, and the events by which the streams wait for each other, in the
// order of the calls. So a step of the model can be analysed without a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

namespace octavo {

// The resource that limits the speed of an op.
enum class OpBound : uint8_t {
  kMemory,             // Memory bandwidth.
  kMatmul,             // FLOPs at the rate of matrix multiplication in the compute dtype.
  kFp8Matmul,          // FLOPs at the rate of matrix multiplication in FP8.
  kAttentionForward,   // FLOPs at the rate of attention's forward.
  kAttentionBackward,  // FLOPs at the rate of attention's backward.
  kCommunication,      // Links between ranks.
};

struct Op {
  const char* name = "";  // Name of the op. String literal.
  double flops = 0;       // Number of floating-point operations.
  double bytes = 0;  // Least number of bytes that the op must move. For a collective, the bytes of the whole tensor.
  OpBound bound = OpBound::kMemory;
  bool casts = false;  // Whether the op also casts its result to FP8.

  // Sizes of a matrix multiplication with result [m, n] and contracted size k.
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const char* precision = "";  // Name of the precision in machine files. String literal.
  bool fast_accumulation = false;

  const char* axis = "";  // Name of the communicator of a collective. The string must outlive the record.

  // Kind of this entry. kNone is an op. kBegin begins a range of ops, and kEnd ends the range that began last.
  enum class Mark : uint8_t { kNone, kBegin, kEnd };
  Mark mark = Mark::kNone;

  bool operator==(const Op&) const = default;  // Compares strings by address, not by content.
};

class OpRecord {
 public:
  enum class Action : uint8_t {
    kOp,
    kSignal,  // An event is recorded.
    kWait,    // The stream waits for an event.
    kBegin,   // A range begins (ProfilerRange).
    kEnd,     // The range that began last ends.
  };
  struct Entry {
    Action action = Action::kOp;
    int stream = 0;  // Number of the stream in order of creation, from 0.
    // Index of the op in ops() or of the range in ranges(). For kSignal and kWait the number of the event, from 1.
    size_t index = 0;
  };

  const std::vector<Entry>& entries() const { return entries_; }
  // Returns the distinct ops. Equal ops share one element.
  const std::vector<Op>& ops() const { return ops_; }
  // Names of the ranges in the order in which they began.
  const std::vector<std::string>& ranges() const { return ranges_; }
  size_t streams() const { return streams_; }
  size_t signals() const { return signals_; }
  // Deletes the entries. Streams, ops and ranges stay.
  void clear() { entries_.clear(); }

 private:
  friend class Stream;
  friend class Event;
  friend class OpTimer;
  void add(int stream, const Op& op) {
    if (op.mark == Op::Mark::kEnd) return entries_.push_back({.action = Action::kEnd, .stream = stream});
    if (op.mark == Op::Mark::kBegin) {
      entries_.push_back({.action = Action::kBegin, .stream = stream, .index = ranges_.size()});
      ranges_.emplace_back(op.name);
      return;
    }
    const auto [found, is_new] = known_.try_emplace(op, ops_.size());
    if (is_new) ops_.push_back(op);
    entries_.push_back({.stream = stream, .index = found->second});
  }
  size_t signal(int stream) {
    entries_.push_back({.action = Action::kSignal, .stream = stream, .index = ++signals_});
    return signals_;
  }
  void wait(int stream, size_t signal) {
    entries_.push_back({.action = Action::kWait, .stream = stream, .index = signal});
  }

  struct Hash {
    size_t operator()(const Op& op) const {
      size_t hash = std::hash<const char*>()(op.name);
      for (const int64_t part : {static_cast<int64_t>(op.bytes), op.m, op.n}) {
        hash = hash * 0x9E3779B97F4A7C15u + static_cast<size_t>(part);
      }
      return hash;
    }
  };

  std::vector<Entry> entries_;
  std::vector<Op> ops_;
  std::vector<std::string> ranges_;
  std::unordered_map<Op, size_t, Hash> known_;
  size_t streams_ = 0;
  size_t signals_ = 0;
};

}  // namespace octavo
