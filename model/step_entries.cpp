#include "model/step_entries.h"

#include <algorithm>

#include "core/error.h"

namespace octavo {

std::vector<StepEntry> step_entries(int64_t micro_batches, int64_t in_flight) {
  CHECK(in_flight > 0, "in_flight is {}, expected at least 1", in_flight);
  std::vector<StepEntry> entries;
  int64_t forwards = 0;
  for (int64_t backwards = 0; backwards < micro_batches; ++backwards) {
    for (const int64_t end = std::min(backwards + in_flight, micro_batches); forwards < end; ++forwards) {
      entries.push_back({StepEntry::Kind::kForward, forwards});
    }
    entries.push_back({StepEntry::Kind::kBackward, backwards});
  }
  return entries;
}

}  // namespace octavo
