// Observer that explains the first step of a run that is skipped because its loss or gradient norm is not finite: its
// batch is computed once more, and the log names the first result that is not finite
// (app/observers/nonfinite_search.h). Does nothing if training.locate_nonfinite is false.
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/observers/nonfinite_search.h"
#include "app/observers/step_observer.h"
#include "app/process/events.h"
#include "core/log.h"

namespace octavo {

namespace {

class NonfiniteWatch : public StepObserver {
 public:
  explicit NonfiniteWatch(const ObserverContext& context)
      : context_(context), is_done_(!context.config.training.locate_nonfinite) {}

  void on_result(Step& step) override {
    if (step_ && !step.skipped) weights_after_ = step.number;
    // All ranks know the same loss and norm, as far as being finite is concerned.
    if (is_done_ || !step.skipped || (std::isfinite(step.loss()) && std::isfinite(step.grad_norm))) return;
    is_done_ = true;
    step_ = {.number = step.number, .targets = step.num_targets()};
    samples_ = step.samples;
  }

  bool wants_result(int64_t /*step*/) const override { return step_.has_value(); }

  // The batch is still on the device: it is that of `last_step`, the last step that was queued, or of the one before.
  void while_idle(int64_t last_step) override {
    if (!step_) return;
    TrainingState& state = context_.state;
    const bool is_previous = step_->number < last_step;
    if (is_previous) state.batch.swap();
    const std::optional<NonfiniteResult> found = find_nonfinite(state, *step_);
    if (is_previous) state.batch.swap();
    tell(found);
    step_.reset();
  }

 private:
  // Logs the first of the results of all ranks. A collective.
  void tell(const std::optional<NonfiniteResult>& found) const {
    nlohmann::json mine;
    if (found) mine = {found->order, found->text, samples(*found), host_name()};
    nlohmann::json first;
    int first_rank = 0;
    const std::vector<std::string> all = context_.runtime.group().gather(mine.dump());
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const nlohmann::json result = nlohmann::json::parse(all[rank]);
      if (result.is_null() || (!first.is_null() && first[0] <= result[0])) continue;
      first = result;
      first_rank = static_cast<int>(rank);
    }
    if (!context_.runtime.group().is_root()) return;
    const std::string again =
        fmt::format("step {} was computed again with {}", step_->number,
                    weights_after_ ? fmt::format("the weights after step {}", *weights_after_) : "the same weights");
    if (first.is_null()) {
      log_event(EventKind::kWarning, step_->number,
                "{}, and every result is finite, so the error was not reproduced; octavo doctor checks the hardware",
                again);
      return;
    }
    const std::string where =
        all.size() > 1 ? fmt::format(" (rank {} on {})", first_rank, first[3].get<std::string>()) : "";
    log_event(EventKind::kWarning, step_->number,
              "{}, and the first result that is not finite is that of {}{}; octavo inspect CONFIG.yaml --samples {}:{} "
              "--text "
              "prints the samples",
              again, first[1].get<std::string>(), where, first[2][0].get<int64_t>(), first[2][1].get<int64_t>());
  }

  std::array<int64_t, 2> samples(const NonfiniteResult& found) const {
    if (!found.micro_batch) return {samples_.begin, samples_.end};
    const Config& config = context_.config;
    const SampleRange range = samples_of({.step = samples_,
                                          .batch_size = config.training.batch_schedule().batch_size(step_->number),
                                          .data_rank = context_.runtime.mesh().data_rank(),
                                          .data_ranks = context_.runtime.mesh().shape().data(),
                                          .micro_batch = *found.micro_batch,
                                          .micro_batch_size = config.training.micro_batch_size});
    return {range.begin, range.end};
  }

  const ObserverContext context_;
  bool is_done_;
  std::optional<TrainingStep> step_;      // Step to compute again.
  SampleRange samples_;                   // Samples of the step.
  std::optional<int64_t> weights_after_;  // Step that changed the weights since.
};

}  // namespace

std::unique_ptr<StepObserver> make_nonfinite_watch(const ObserverContext& context) {
  return std::make_unique<NonfiniteWatch>(context);
}

}  // namespace octavo
