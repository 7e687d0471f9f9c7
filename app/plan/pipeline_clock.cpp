#include "app/plan/pipeline_clock.h"

#include <algorithm>

#include "core/error.h"

namespace octavo {

namespace {

// Transfers from one stage to a neighbour. Both stages list them in the same order.
struct Link {
  std::vector<double> sent_s;    // Times at which the sender has the data.
  std::vector<double> posted_s;  // Times from which the receiver accepts them.
  std::vector<double> ends_s;
  size_t taken = 0;  // Number of transfers whose data the receiver has taken.

  // Computes when the transfers end that both sides have begun.
  void advance(double transfer_s) {
    while (ends_s.size() < std::min(sent_s.size(), posted_s.size())) {
      const size_t i = ends_s.size();
      const double begin_s = std::max({sent_s[i], posted_s[i], ends_s.empty() ? 0 : ends_s.back()});
      ends_s.push_back(begin_s + transfer_s);
    }
  }
};

class Pipeline {
 public:
  explicit Pipeline(const PipelineStep& step)
      : step_(step),
        activations_(static_cast<size_t>(step.stages)),
        gradients_(activations_.size()),
        stages_(activations_.size()) {
    for (size_t s = 0; s < stages_.size(); ++s) {
      const PipelinePlace place{.stages = step.stages, .stage = static_cast<int64_t>(s), .chunks = step.chunks};
      stages_[s].entries = pipeline_entries(step.schedule, place, step.micro_batches);
      post(s, 0);
    }
  }

  PipelineTimes run() {
    for (bool moves = true; moves;) {
      moves = false;
      for (size_t s = 0; s < stages_.size(); ++s) {
        while (begin(s) && end(s)) moves = true;
      }
    }
    PipelineTimes times;
    for (const Stage& stage : stages_) {
      CHECK(stage.next == stage.entries.size(), "a pipeline stage waits forever at entry {} of {}", stage.next,
            stage.entries.size());
      times.end_s = std::max(times.end_s, stage.now_s);
      times.busy_s.push_back(stage.busy_s);
    }
    return times;
  }

 private:
  using Kind = StepEntry::Kind;
  struct Stage {
    std::vector<StepEntry> entries;
    size_t next = 0;    // Index of the entry that runs or comes next.
    bool runs = false;  // Whether the entry has begun, so that now_s is the time at which it has computed its output.
    double now_s = 0;
    double busy_s = 0;
  };

  // Return whether an entry runs the first part of the model, which has no part before it, or the last one.
  static bool is_first(size_t stage, const StepEntry& entry) { return stage == 0 && entry.chunk == 0; }
  bool is_last(size_t stage, const StepEntry& entry) const {
    return stage + 1 == stages_.size() && entry.chunk + 1 == step_.chunks;
  }
  // Return the link that an entry receives from or sends to, or null. Element i of activations_ and of gradients_ has
  // what stage i sends.
  Link* input(size_t stage, const StepEntry& entry) {
    const size_t stages = stages_.size();
    if (entry.kind == Kind::kBackwardWeights) return nullptr;
    if (entry.kind == Kind::kForward)
      return is_first(stage, entry) ? nullptr : &activations_[(stage + stages - 1) % stages];
    return is_last(stage, entry) ? nullptr : &gradients_[(stage + 1) % stages];
  }
  Link* output(size_t stage, const StepEntry& entry) {
    if (entry.kind == Kind::kBackwardWeights) return nullptr;
    if (entry.kind == Kind::kForward) return is_last(stage, entry) ? nullptr : &activations_[stage];
    return is_first(stage, entry) ? nullptr : &gradients_[stage];
  }

  // Lets the transfer of an entry's input begin.
  void post(size_t s, size_t entry) {
    const Stage& stage = stages_[s];
    if (entry == stage.entries.size()) return;
    if (Link* link = input(s, stage.entries[entry])) link->posted_s.push_back(stage.now_s);
  }

  // Begins the next entry. Returns false if its input has not arrived, or if there is none.
  bool begin(size_t s) {
    Stage& stage = stages_[s];
    if (stage.next == stage.entries.size()) return false;
    if (stage.runs) return true;
    const StepEntry& entry = stage.entries[stage.next];
    if (Link* link = input(s, entry)) {
      link->advance(step_.transfer_s);
      if (link->ends_s.size() == link->taken) return false;
      stage.now_s = std::max(stage.now_s, link->ends_s[link->taken++]);
    }
    post(s, stage.next + 1);
    const double seconds = step_.seconds(static_cast<int64_t>(s), entry);
    stage.now_s += seconds;
    stage.busy_s += seconds;
    stage.runs = true;
    return true;
  }

  // Ends the entry that runs. Returns false if the buffer of its output is still in use.
  bool end(size_t s) {
    Stage& stage = stages_[s];
    const StepEntry& entry = stage.entries[stage.next];
    if (Link* link = output(s, entry)) {
      link->advance(step_.transfer_s);
      if (link->ends_s.size() < link->sent_s.size()) return false;
      if (!link->ends_s.empty()) stage.now_s = std::max(stage.now_s, link->ends_s.back());
      link->sent_s.push_back(stage.now_s);
    }
    stage.runs = false;
    ++stage.next;
    return true;
  }

  const PipelineStep& step_;
  std::vector<Link> activations_, gradients_;
  std::vector<Stage> stages_;
};

}  // namespace

PipelineTimes pipeline_times(const PipelineStep& step) { return Pipeline(step).run(); }

}  // namespace octavo
