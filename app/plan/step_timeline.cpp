#include "app/plan/step_timeline.h"

#include <algorithm>
#include <string_view>

#include "app/plan/recorded_step.h"
#include "app/plan/step_clock.h"
#include "core/error.h"

namespace octavo {

namespace {

// A block has a norm before each of its halves, and the head one before its product: they tell where blocks begin and,
// backward, end.
constexpr size_t kNormsOfBlock = 2;

MicroBatchTimes times_of(const std::vector<StepClock::TimedOp>& ops, size_t blocks) {
  std::vector<double> forward;   // where a norm begins, up to the head's; what recomputes them is behind it
  std::vector<double> backward;  // where its backward ends
  for (const StepClock::TimedOp& op : ops) {
    const std::string_view name = op.name;
    if (name == "rms_norm_forward" && forward.size() <= kNormsOfBlock * blocks) forward.push_back(op.begin_s);
    if (name == "rms_norm_backward") backward.push_back(op.end_s);
  }
  CHECK(forward.size() == kNormsOfBlock * blocks + 1 && backward.size() == forward.size(),
        "a micro-batch of {} blocks has {} norms and {} backward", blocks, forward.size(), backward.size());
  MicroBatchTimes times{.forward = std::vector<TimeSpan>(blocks),
                        .backward = std::vector<TimeSpan>(blocks),
                        .head = {forward.back(), backward.front()},
                        .whole = {ops.front().begin_s, ops.back().end_s}};
  for (size_t i = 0; i < blocks; ++i) {
    times.forward[i] = {forward[kNormsOfBlock * i], forward[kNormsOfBlock * (i + 1)]};
    times.backward[blocks - 1 - i] = {backward[kNormsOfBlock * i], backward[kNormsOfBlock * (i + 1)]};
  }
  return times;
}

bool begins_micro_batch(std::string_view name) {
  return name == "embedding_forward" || name == "embedding_part_forward";
}
// The embedding's backward behind those of all norms: where the gradients of tokens are exchanged, the copies of them.
bool ends_micro_batch(std::string_view name, size_t norms_left) {
  return norms_left == 0 && (name == "embedding_backward" || name == "embedding_part_backward" || name == "copy");
}

}  // namespace

StepTimeline step_timeline(const PredictedRun& run, const MachineRates& machine, const Cluster& cluster) {
  const StepClock clock(record_step(run, static_cast<int>(machine.multiprocessors), cluster.gpus_per_node), machine,
                        cluster);
  StepTimeline timeline;
  std::vector<StepClock::TimedOp> of_micro_batch;
  const auto blocks = static_cast<size_t>(run.config.model.num_layers);
  size_t norms_left = 0;  // of the backward
  for (const StepClock::TimedOp& op : clock.timeline(run.mesh)) {
    if (of_micro_batch.empty() && begins_micro_batch(op.name)) norms_left = kNormsOfBlock * blocks + 1;
    if (!of_micro_batch.empty() || begins_micro_batch(op.name)) of_micro_batch.push_back(op);
    if (std::string_view(op.name) == "rms_norm_backward" && norms_left > 0) --norms_left;
    if (!of_micro_batch.empty() && ends_micro_batch(op.name, norms_left)) {
      timeline.micro_batches.push_back(times_of(of_micro_batch, blocks));
      of_micro_batch.clear();
    }
    timeline.end_s = std::max(timeline.end_s, op.end_s);
  }
  timeline.left_out = micro_batches_of(run) - static_cast<int64_t>(timeline.micro_batches.size());
  return timeline;
}

}  // namespace octavo
