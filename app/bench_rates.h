// How fast this very device multiplies and moves memory, measured: the floors of `octavo bench --ops` are made of it.
#pragma once

#include "kernels/core/profiler.h"
#include "model/precision.h"

namespace octavo {

struct DeviceRates {
  double product = 0;      // FLOP/s of a large product in the compute dtype
  double fp8_product = 0;  // FLOP/s of a large FP8 product under the config's recipe; 0 without FP8
  double bandwidth = 0;    // bytes/s, read and written together, of a large copy
};

// Medians over runs of random data long enough for the clock to settle; well under a second on a GPU. Takes a few GiB
// of a GPU's memory meanwhile, and the stream's workspace away.
DeviceRates measure_rates(const PrecisionConfig& precision, Stream& stream);

// The least milliseconds that an op's FLOPs and bytes take at these rates; 0 for communication, which they do not
// bound.
double floor_ms(const Profiler::Total& total, const DeviceRates& rates);

}  // namespace octavo
