#include "core/profiler.h"

#include <omp.h>

#include <chrono>

#include "build_config.h"
#include "core/cuda_backend.h"

namespace octavo {

namespace {

double least_shared_work = 0;  // Value of set_least_shared_work().

}  // namespace

double host_clock_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::map<std::string, Profiler::Total> Profiler::totals() const {
  rethrow_failure();
  std::map<std::string, Total> totals;
  for (size_t i = 0; i < used_; ++i) {
    const Record& record = records_[i];
    if (record.span.kind != Kind::kOp) continue;
    const Op& op = record.span.op;
    Total& total = totals[op.name];
    total.calls += 1;
    total.milliseconds += record.end.milliseconds_since(record.begin);
    total.flops += op.flops;
    if (op.bound == OpBound::kFp8Matmul) total.fp8_flops += op.flops;
    total.bytes += op.bytes;
    total.communication = op.bound == OpBound::kCommunication;
  }
  return totals;
}

std::vector<Profiler::Span> Profiler::spans(const Event& origin) const {
  rethrow_failure();
  std::vector<Span> spans;
  spans.reserve(used_);
  for (size_t i = 0; i < used_; ++i) {
    Span& span = spans.emplace_back(records_[i].span);
    if (span.kind == Kind::kHostRange) continue;
    span.begin_ms = records_[i].begin.milliseconds_since(origin);
    span.end_ms = records_[i].end.milliseconds_since(origin);
  }
  return spans;
}

size_t Profiler::begin(const Stream& stream, Kind kind, const Op& op, const char* what) {
  const size_t index = used_++;
  if (index == records_.size()) records_.push_back({Event(device_, true), Event(device_, true), {}});
  Record& record = records_[index];
  record.span = {.kind = kind, .op = op, .what = what};
  if (detail_ == Detail::kTimeline) record.span.host_begin_ms = host_clock_ms();
  if (kind != Kind::kHostRange) record.begin.record(stream);
  return index;
}

// Called by destructors, so it must not throw.
void Profiler::end(const Stream& stream, size_t index) noexcept {
  try {
    Record& record = records_[index];
    if (record.span.kind != Kind::kHostRange) record.end.record(stream);
    if (detail_ == Detail::kTimeline) record.span.host_end_ms = host_clock_ms();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void Profiler::rethrow_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

void set_least_shared_work(double work) { least_shared_work = work; }

OpTimer::OpTimer(const Stream& stream, const Op& op, const char* what) : stream_(stream), profiler_(stream.profiler()) {
  if (stream.is_planned()) {
    stream.record(op);
    return;
  }
  if constexpr (kHasCuda) cuda::push_range(op.name);
  if (!stream.is_cuda() && op.bytes + op.flops / 2 < least_shared_work && omp_get_max_threads() > 1) {
    threads_ = omp_get_max_threads();
    omp_set_num_threads(1);
  }
  if (profiler_ != nullptr && !profiler_->records(op)) profiler_ = nullptr;
  if (profiler_ != nullptr) index_ = profiler_->begin(stream, Profiler::Kind::kOp, op, what);
}

OpTimer::~OpTimer() {
  if (stream_.is_planned()) return;
  if (profiler_ != nullptr) profiler_->end(stream_, index_);
  if (threads_ > 0) omp_set_num_threads(threads_);
  if constexpr (kHasCuda) cuda::pop_range();
}

ProfilerRange::ProfilerRange(const Stream& stream, const char* name, Profiler::Kind kind)
    : stream_(stream), profiler_(stream.profiler()) {
  if (profiler_ != nullptr && profiler_->detail_ != Profiler::Detail::kTimeline) profiler_ = nullptr;
  if (stream.is_planned()) {
    stream.record({.name = name, .mark = Op::Mark::kBegin});
    return;
  }
  if constexpr (kHasCuda) cuda::push_range(name);
  if (profiler_ != nullptr) index_ = profiler_->begin(stream, kind, Op{.name = name}, "");
}

ProfilerRange::~ProfilerRange() {
  if (stream_.is_planned()) {
    stream_.record({.mark = Op::Mark::kEnd});
    return;
  }
  if (profiler_ != nullptr) profiler_->end(stream_, index_);
  if constexpr (kHasCuda) cuda::pop_range();
}

}  // namespace octavo
