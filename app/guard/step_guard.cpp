#include "app/guard/step_guard.h"

#include <limits>

namespace octavo {

float StepGuard::loss_limit(int64_t step) const {
  if (config_.on_loss_spike != OnLossSpike::kSkip) return std::numeric_limits<float>::infinity();
  return static_cast<float>(spikes_.limit(step));
}

StepVerdict StepGuard::judge(int64_t step, double loss, bool skipped) {
  if (skipped) {
    ++skipped_;
    ++in_a_row_;
    return StepVerdict::kSkipped;
  }
  in_a_row_ = 0;
  const bool spike = spikes_.is_spike(step, loss);
  // A run that goes on with it gets used to it; one that goes back never had it.
  if (!spike || config_.on_loss_spike == OnLossSpike::kWarn) spikes_.add(step, loss);
  return spike ? StepVerdict::kSpike : StepVerdict::kGood;
}

nlohmann::json StepGuard::to_json() const { return {{"losses", spikes_.to_json()}, {"skipped_steps", skipped_}}; }

void StepGuard::from_json(const nlohmann::json& json) {
  in_a_row_ = 0;
  if (!json.is_object()) return;
  spikes_.from_json(json.value("losses", nlohmann::json()));
  const auto skipped = json.find("skipped_steps");
  if (skipped != json.end() && skipped->is_number_integer()) skipped_ = skipped->get<int64_t>();
}

}  // namespace octavo
