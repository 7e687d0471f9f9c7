// MetricsCourse: which lines of a run's metrics.jsonl (app/records/metrics.h) count. The file is only ever appended to:
// a run that goes on from a checkpoint does steps again, and leaves out lines that are there already; the first step
// after a start always has one.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>

namespace octavo {

class MetricsCourse {
 public:
  // Takes the line of a step, in the order of the file. True where it parts from the one that was there of this step
  // (another loss, gradient norm or number of tokens): the run was set back and went another way, and nothing counts
  // that was written before of this step and those behind it. Otherwise what was written of this step is written again,
  // or is new between others.
  bool parts(int64_t step, const nlohmann::json& line);

  // Returns the last step whose line counts, or 0 if there is none.
  int64_t last_step() const { return lines_.empty() ? 0 : lines_.rbegin()->first; }

 private:
  using Distinction = std::array<double, 3>;  // NaN where there is none

  std::map<int64_t, Distinction> lines_;
};

}  // namespace octavo
