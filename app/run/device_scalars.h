// DeviceScalars: what a step sums over its targets besides the loss, and reports as means. All sums are one tensor, so
// that a step zeroes, reduces and copies them at once.
#pragma once

#include <vector>

#include "app/run/metric_table.h"
#include "core/arena.h"
#include "parallel/communicator.h"

namespace octavo {

struct DeviceScalar {
  MetricKey metric;
  Tensor values;  // [tokens] float32: what a micro-batch adds. Undefined if the run does not compute it.
};

class DeviceScalars {
 public:
  // Leaves out scalars whose values are undefined.
  DeviceScalars(std::vector<DeviceScalar> scalars, Arena& arena);

  const std::vector<DeviceScalar>& all() const { return scalars_; }
  // [scalars] float32. Undefined if there are none.
  const Tensor& sums() const { return sums_; }

  void zero(Stream& stream) const;
  // sums += the sums of the values.
  void add_micro_batch(Stream& stream) const;
  // Sums over the ranks that work on different tokens.
  void reduce(Communicator& tokens, Stream& stream) const;

 private:
  std::vector<DeviceScalar> scalars_;
  Tensor sums_;
};

}  // namespace octavo
