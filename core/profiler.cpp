#include "core/profiler.h"

namespace octavo {

std::map<std::string, Profiler::Total> Profiler::totals() const {
  std::map<std::string, Total> totals;
  for (size_t i = 0; i < used_; ++i) {
    const Record& record = records_[i];
    Total& total = totals[record.name];
    total.calls += 1;
    total.milliseconds += record.end.milliseconds_since(record.begin);
    total.flops += record.flops;
    if (record.bound == OpBound::kFp8Product) total.fp8_flops += record.flops;
    total.bytes += record.bytes;
    total.communication = record.bound == OpBound::kCommunication;
  }
  return totals;
}

OpTimer::OpTimer(const Stream& stream, const char* name, double flops, double bytes, OpBound bound)
    : stream_(stream), profiler_(stream.profiler()) {
  if (profiler_ == nullptr) return;
  index_ = profiler_->used_++;
  if (index_ == profiler_->records_.size()) {
    profiler_->records_.push_back(
        {Event(profiler_->device_, true), Event(profiler_->device_, true), name, flops, bytes, bound});
  }
  auto& record = profiler_->records_[index_];
  record.name = name;
  record.flops = flops;
  record.bytes = bytes;
  record.bound = bound;
  record.begin.record(stream_);
}

OpTimer::~OpTimer() {
  if (profiler_ != nullptr) profiler_->records_[index_].end.record(stream_);
}

}  // namespace octavo
