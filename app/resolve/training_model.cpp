#include "app/resolve/training_model.h"

#include "core/error.h"

namespace octavo {

TrainingModel::TrainingModel(const Job& job, bool validating, Runtime& runtime)
    : memory_(runtime.allocate([&] { return validating ? job.memory.arena_bytes : job.memory.state_bytes; })) {
  state_memory_ = memory_.arena.allocate("training state", DType::kUInt8, {job.memory.state_bytes});
  lay_out(job, runtime);
}

void TrainingModel::lay_out_again(const Job& job, Runtime& runtime) {
  CHECK(job.memory.state_bytes == state_memory_.bytes(), "the memory has another size than the job plans");
  // Transfers in progress refer to names that the state owns.
  for (const TrainingStream& used : training_streams(*state_)) used.stream->synchronize();
  state_.reset();
  runtime.stream().zero(state_memory_);
  runtime.stream().synchronize();  // Other streams will use this memory.
  lay_out(job, runtime);
}

void TrainingModel::lay_out(const Job& job, Runtime& runtime) {
  Arena arena(runtime.stream().device(), Buffer::adopt(state_memory_.raw(), state_memory_.bytes(), [](void*) {}));
  state_.emplace(job, runtime.mesh(), arena);
}

}  // namespace octavo
