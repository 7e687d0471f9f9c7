#include "core/profiler.h"

namespace octavo {

std::map<std::string, Profiler::Total> Profiler::totals() const {
  std::map<std::string, Total> totals;
  for (size_t i = 0; i < used_; ++i) {
    const Record& record = records_[i];
    Total& total = totals[record.op.name];
    total.calls += 1;
    total.milliseconds += record.end.milliseconds_since(record.begin);
    total.flops += record.op.flops;
    if (record.op.bound == OpBound::kFp8Product) total.fp8_flops += record.op.flops;
    total.bytes += record.op.bytes;
    total.communication = record.op.bound == OpBound::kCommunication;
  }
  return totals;
}

OpTimer::OpTimer(const Stream& stream, const Op& op) : stream_(stream), profiler_(stream.profiler()) {
  if (stream.is_planned()) stream.record(op);
  if (profiler_ == nullptr) return;
  index_ = profiler_->used_++;
  if (index_ == profiler_->records_.size()) {
    profiler_->records_.push_back({Event(profiler_->device_, true), Event(profiler_->device_, true), op});
  }
  auto& record = profiler_->records_[index_];
  record.op = op;
  record.begin.record(stream_);
}

OpTimer::~OpTimer() {
  if (profiler_ != nullptr) profiler_->records_[index_].end.record(stream_);
}

}  // namespace octavo
