// Observer that reports the statistics of a step's FP8 casts (app/run/fp8_report.h) every logging.fp8_stats_every
// steps.
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/observers/step_observer.h"
#include "app/process/events.h"
#include "app/run/fp8_report.h"
#include "core/error.h"
#include "model/architecture/block_spec.h"

namespace octavo {

namespace {

constexpr int64_t kSlots = 2;  // Maximum number of steps whose statistics are pending, as in StepResults.

// Names of the tensors of a linear, in the order of the report.
constexpr std::pair<AmaxTable::Kind, const char*> kTensors[] = {
    {AmaxTable::kInput, "input"}, {AmaxTable::kWeight, "weight"}, {AmaxTable::kOutputGradient, "output_gradient"}};

class Fp8Watch : public StepObserver {
 public:
  explicit Fp8Watch(const ObserverContext& context) : context_(context), linears_(block_linears(context.config.model)) {
    const Config& config = context.config;
    if (!is_fp8(config.precision.linear) && config.logging.fp8_stats_every > 0 && context.runtime.group().is_root()) {
      log_warning("logging.fp8_stats_every is {}, but no linear is in FP8, so there is nothing to measure",
                  config.logging.fp8_stats_every);
    }
    on_new_state();
  }

  void before_step(const TrainingStep& step) override {
    if (due(step.number)) table_->begin(context_.runtime.stream());
  }

  // Queues the sums over the ranks and the copy to the host. The copy precedes that of the step's results, so it is
  // complete when they arrive.
  void after_step(int64_t step) override {
    if (!due(step)) return;
    CHECK(pushed_ - popped_ < kSlots, "{} steps' FP8 statistics are pending", pushed_ - popped_);
    Stream& stream = context_.runtime.stream();
    table_->end(context_.runtime.mesh().world(), stream);
    const int64_t slot = pushed_++ % kSlots;
    stream.copy(static_cast<float*>(host_.data()) + slot * table_->values().numel(), table_->values().raw(),
                table_->values().bytes());
  }

  void on_result(Step& step) override {
    if (!due(step.number)) return;
    step.row.fp8 = pop();
    const std::optional<std::string> warning = fp8_warning(step.number, step.row.fp8);
    if (warning && context_.runtime.group().is_root()) log_event(EventKind::kWarning, step.number, *warning);
  }

  void on_new_state() override {
    pushed_ = popped_ = 0;
    table_ = context_.state.model.fp8_stats();
    if (table_ != nullptr) host_ = Buffer::host(context_.runtime.stream().device(), kSlots * table_->values().bytes());
  }

 private:
  bool due(int64_t step) const { return table_ != nullptr && step % context_.config.logging.fp8_stats_every == 0; }

  // Returns the statistics of the oldest pending step, ordered by layer, linear and tensor.
  std::vector<Fp8TensorReport> pop() {
    CHECK(popped_ < pushed_, "no FP8 statistics are pending");
    const int64_t slot = popped_++ % kSlots;
    const int64_t count = table_->values().numel();
    const std::span<const float> values(static_cast<const float*>(host_.data()) + slot * count,
                                        static_cast<size_t>(count));
    const auto per_block = static_cast<int64_t>(linears_.size());
    std::vector<Fp8TensorReport> reports;
    for (int64_t linear = 0; linear < table_->linears(); ++linear) {
      for (const auto& [kind, name] : kTensors) {
        const Fp8TensorStats stats = table_->tensor(values, linear, kind);
        if (stats.elements == 0) continue;
        reports.push_back({.layer = linear / per_block,
                           .linear = linears_[static_cast<size_t>(linear % per_block)].names.forward,
                           .tensor = name,
                           .per_tensor = needs_amax(context_.config.precision.linear),
                           .stats = stats});
      }
    }
    return reports;
  }

  const ObserverContext context_;
  const std::vector<LinearSpec> linears_;  // FP8 linears of a block.
  Fp8StatsTable* table_ = nullptr;         // Null if the model takes no statistics.
  Buffer host_;                            // [kSlots, the table's values] float32
  int64_t pushed_ = 0;
  int64_t popped_ = 0;
};

}  // namespace

std::unique_ptr<StepObserver> make_fp8_watch(const ObserverContext& context) {
  return std::make_unique<Fp8Watch>(context);
}

}  // namespace octavo
