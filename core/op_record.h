// OpRecord: what was queued on planned streams (Stream::planned), in the order of the calls, in place of running it:
// the ops with what they do and move, as they report it when they are timed, the collectives, and the events by which
// the streams wait for each other. So the program itself says what a step is made of, without a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

namespace octavo {

// What an op cannot be faster than.
enum class OpBound : uint8_t {
  kMemory,             // moving its bytes
  kProduct,            // its FLOPs at the rate of products in the compute dtype
  kFp8Product,         // its FLOPs at the rate of FP8 products
  kAttentionForward,   // its FLOPs at the rate of attention
  kAttentionBackward,  // the same, of the backward
  kCommunication,      // the links between ranks
};

struct Op {
  const char* name = "";  // a string literal
  double flops = 0;       // floating-point operations asked for
  double bytes = 0;       // it must move at least; of a collective, of the whole tensor
  OpBound bound = OpBound::kMemory;
  bool casts = false;  // it writes its result in FP8, in place of the values or with them

  // Of a product d [m, n] over k.
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const char* precision = "";  // as machine files name it; a string literal
  bool fast_accumulation = false;

  const char* axis = "";  // of a collective: the communicator's name, valid as long as that

  // What stands in place of an op: the beginning of a range of that name, or the end of the last one that began.
  enum class Mark : uint8_t { kNone, kBegin, kEnd };
  Mark mark = Mark::kNone;

  bool operator==(const Op&) const = default;  // of texts the address
};

class OpRecord {
 public:
  enum class Action : uint8_t {
    kOp,
    kSignal,  // an event is recorded
    kWait,    // the stream waits for one
    kBegin,   // a range begins (ProfilerRange)
    kEnd,     // the last range that began ends
  };
  struct Entry {
    Action action = Action::kOp;
    int stream = 0;  // in the order in which they were made, from 0
    size_t index =
        0;  // of the op in ops(), or of the range in ranges(); of kSignal and kWait, the number of the event, from 1
  };

  const std::vector<Entry>& entries() const { return entries_; }
  // Those that state the same are one.
  const std::vector<Op>& ops() const { return ops_; }
  // Names of ranges, one for each that began.
  const std::vector<std::string>& ranges() const { return ranges_; }
  size_t streams() const { return streams_; }
  size_t signals() const { return signals_; }
  // Forgets the entries, not the streams, ops and ranges.
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
