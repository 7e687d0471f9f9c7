#include "app/records/metrics_history.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace octavo {

bool MetricsHistory::diverges(int64_t step, const nlohmann::json& line) {
  Distinction distinction;
  size_t next = 0;
  for (const char* key : {"loss", "grad_norm", "tokens"}) {
    const auto found = line.find(key);
    const bool is_number = found != line.end() && found->is_number();
    distinction[next++] = is_number ? found->get<double>() : std::numeric_limits<double>::quiet_NaN();
  }
  const auto before = lines_.lower_bound(step);
  bool differs = false;
  if (before != lines_.end() && before->first == step) {
    for (size_t i = 0; i < distinction.size(); ++i) {
      const double was = before->second[i];
      differs = differs || (distinction[i] != was && !(std::isnan(distinction[i]) && std::isnan(was)));
    }
  }
  if (differs) lines_.erase(before, lines_.end());
  lines_.insert_or_assign(step, distinction);
  return differs;
}

}  // namespace octavo
