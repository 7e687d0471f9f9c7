// DeviceScalars sums further values over the targets of a step, besides the loss, and reports their means. All sums are
// in one tensor, so that a step can zero, reduce and copy all of them at once.
#pragma once

#include <vector>

#include "app/run/metric_table.h"
#include "core/arena.h"
#include "parallel/communicator.h"

namespace octavo {

struct DeviceScalar {
  MetricKey metric;
  // [tokens] float32: values of the targets of a micro-batch. Undefined if this rank does not compute this scalar.
  Tensor values;
  bool is_used = true;  // Whether a rank of the run computes this scalar.
};

class DeviceScalars {
 public:
  // Keeps only the scalars that are used.
  DeviceScalars(std::vector<DeviceScalar> scalars, Arena& arena);

  const std::vector<DeviceScalar>& all() const { return scalars_; }
  // Returns the sums: [scalars] float32. Undefined if there are no scalars.
  const Tensor& sums() const { return sums_; }

  void zero(Stream& stream) const;
  // Adds each scalar's values to its sum.
  void add_micro_batch(Stream& stream) const;
  // All-reduces the sums over the ranks that work on different tokens.
  void reduce(Communicator& tokens, Stream& stream) const;

 private:
  std::vector<DeviceScalar> scalars_;
  Tensor sums_;
};

}  // namespace octavo
