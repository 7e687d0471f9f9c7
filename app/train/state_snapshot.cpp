#include "app/train/state_snapshot.h"

#include <numeric>

#include "core/error.h"

namespace octavo {

namespace {

// Returns the tensors that the states of all precision recipes have.
std::vector<Tensor> common_tensors(const TrainingState& state) {
  std::vector<Tensor> tensors{state.parameters.master()};
  for (const OptimizerState& kept : state.optimizer.states()) tensors.push_back(kept.shards);
  return tensors;
}

}  // namespace

int64_t StateSnapshot::bytes(TrainingState& state) {
  int64_t bytes = 0;
  for (const Tensor& tensor : common_tensors(state)) bytes += tensor.bytes();
  const Tensor history = amax_history(state);
  return history.defined() ? bytes + history.bytes() : bytes;
}

void StateSnapshot::take(TrainingState& state, Stream& stream) {
  std::vector<Tensor> tensors = common_tensors(state);
  const Tensor history = amax_history(state);
  if (history.defined()) tensors.push_back(history);
  sizes_.clear();
  for (const Tensor& tensor : tensors) sizes_.push_back(tensor.bytes());
  memory_.reserve(std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0}));
  data_ = static_cast<char*>(memory_.data());
  char* next = data_;
  for (const Tensor& tensor : tensors) {
    memory_.copy(stream, next, tensor.raw(), tensor.bytes());
    next += tensor.bytes();
  }
  stream.synchronize();
}

void StateSnapshot::restore(TrainingState& state, int64_t steps_done, Stream& stream) const {
  std::vector<Tensor> tensors = common_tensors(state);
  const Tensor history = amax_history(state);
  const bool with_history = history.defined() && sizes_.size() > tensors.size();
  if (with_history) tensors.push_back(history);
  const char* next = data_;
  for (size_t i = 0; i < tensors.size(); ++i) {
    CHECK(i < sizes_.size() && tensors[i].bytes() == sizes_[i],
          "a snapshot of {} tensors, of which number {} does not "
          "have the {} bytes of this state",
          sizes_.size(), i, tensors[i].bytes());
    memory_.copy(stream, tensors[i].raw(), next, sizes_[i]);
    next += sizes_[i];
  }
  if (history.defined()) {
    if (!with_history) stream.zero(history);
    state.model.amaxes()->set_steps_done(steps_done);
    state.model.amaxes()->restore(stream);
  }
  stream.synchronize();  // The memory of the snapshot may be reused after this.
}

}  // namespace octavo
