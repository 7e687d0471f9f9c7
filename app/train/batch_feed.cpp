#include "app/train/batch_feed.h"

#include <utility>

namespace octavo {

BatchFeed::BatchFeed(std::unique_ptr<Loader> loader)
    : loader_(std::move(loader)), next_sample_(loader_->state().next_sample) {
  current_.loader_state = loader_->state_json();
}

const FedBatch& BatchFeed::next(ProcessGroup& group, const StepResults& results) {
  if (next_recorded_ < recorded_.size()) {
    Recorded& again = recorded_[next_recorded_++];
    current_ = again.fed;
    current_.batch = &again.batch;
    return current_;
  }
  if (!recording_) {
    recorded_.clear();
    next_recorded_ = 0;
  }
  const Batch* batch = nullptr;
  group.agree([&] { batch = &loader_->next(); });
  const double data_ms = loader_->data_ms();
  current_ = {.batch = batch,
              .samples = {next_sample_, batch->state_after.next_sample},
              .loader_state = loader_->state_json(),
              .data_ms = data_ms,
              .data_lost_ms = results.is_idle() ? data_ms : 0};  // else the device had work meanwhile
  next_sample_ = current_.samples.end;
  if (recording_) {
    recorded_.push_back({*batch, current_});
    recorded_.back().fed.data_ms = recorded_.back().fed.data_lost_ms = 0;
    ++next_recorded_;
  }
  return current_;
}

// What is still to be had again stays the first of what is recorded.
void BatchFeed::record() {
  recording_ = true;
  recorded_.erase(recorded_.begin(), recorded_.begin() + static_cast<std::ptrdiff_t>(next_recorded_));
  next_recorded_ = 0;
}

void BatchFeed::forget() { recording_ = false; }

}  // namespace octavo
