// What a run does about silent corruption: when it is checked (app/observers/corruption_check.h), what a difference
// leads to (training.on_corruption), and that no state is saved whose copies are known to differ. Does nothing where
// training.check_every is 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/observers/corruption_check.h"
#include "app/observers/step_observer.h"

namespace octavo {

// on_result() and allows_save() throw AgreedError, with the rank, its machine and GPU, what differs and the last
// checkpoint, if something differs and the run is to end.
class CorruptionWatch : public StepObserver {
 public:
  explicit CorruptionWatch(const ObserverContext& context);

  void before_step(const TrainingStep& step) override;
  void after_step(int64_t step) override;
  // Compares if the step was due.
  void on_result(Step& step) override;
  // Compares the replicas, unless on_result() just has. Logs a refusal.
  bool allows_save(int64_t step) override;
  void on_new_state() override;

 private:
  bool due(int64_t step) const { return check_ && check_->due(step); }
  void take(int64_t step, const CorruptionVerdict& verdict);
  // Writes the machines of these ranks, with the reason, where the launchers find them. Returns what came of it.
  std::string exclude(const std::vector<int>& ranks, const std::string& why);

  const ObserverContext context_;
  std::optional<CorruptionCheck> check_;
  bool copies_differ_ = false;  // as the last comparison says
};

}  // namespace octavo
