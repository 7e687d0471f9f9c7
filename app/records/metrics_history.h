// MetricsHistory decides which lines of a run's metrics.jsonl count (app/records/metrics.h). Lines are only ever
// appended. A run that resumes a checkpoint repeats steps and omits lines that the file already has, except that the
// first step after a start always has a line.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>

namespace octavo {

class MetricsHistory {
 public:
  // Adds the line of a step, in the order of the file. Returns true if the line differs from the earlier line of the
  // same step (another loss, gradient norm or number of tokens). In that case the run has rolled back and computed
  // something else, so all earlier lines of this step and of later steps no longer count. Returns false if the line is
  // new or repeats the earlier one.
  bool diverges(int64_t step, const nlohmann::json& line);

  // Returns the last step whose line counts, or 0 if there is none.
  int64_t last_step() const { return lines_.empty() ? 0 : lines_.rbegin()->first; }

 private:
  using Distinction = std::array<double, 3>;  // Values that distinguish two lines of a step. NaN if a value is absent.

  std::map<int64_t, Distinction> lines_;
};

}  // namespace octavo
