// How fast this very device multiplies and moves memory, measured: the floors of `octavo bench --ops` are made of it,
// and the report of `octavo doctor`.
#pragma once

#include <functional>
#include <vector>

#include "app/plan/machine_rates.h"
#include "core/profiler.h"
#include "model/precision.h"

namespace octavo {

struct DeviceRates {
  double product = 0;      // FLOP/s of a large matrix multiplication in the compute dtype
  double fp8_product = 0;  // FLOP/s of a large FP8 matrix multiplication by the config's recipe; 0 without FP8
  double bandwidth = 0;    // bytes/s, read and written together, of a large copy
};

// Medians over runs of random data long enough for the clock to settle; well under a second on a GPU. Takes a few GiB
// of a GPU's memory meanwhile, and the stream's workspace away.
DeviceRates measure_rates(const PrecisionConfig& precision, Stream& stream);

// FLOP/s of d = a b^T, a [m, k], b [n, k], in the compute dtype (linear: bfloat16) or of the FP8 recipe's quantized
// operands, with fast accumulation unless the config or the recipe has none. m, n and k multiples of 128. Takes the
// stream's workspace away.
double measure_product(const ProductSize& size, const PrecisionConfig& precision, Stream& stream);
// FLOP/s of this process's threads that multiply and add in registers; on the CPU.
double measure_multiply_adds(Stream& stream);
// Bytes/s, read and written together, of a large copy.
double measure_bandwidth(Stream& stream);

// Seconds of each of `runs` runs.
std::vector<double> time_each(int64_t runs, const std::function<void()>& work, Stream& stream);
// Median seconds of the second half of `runs` runs; the first half brings the clock to where it stays.
double time_runs(int64_t runs, const std::function<void()>& work, Stream& stream);
// matrix [rows, columns] float32 or bfloat16 = normal random values, some of the rows over and over; rows a multiple of
// 64. Zeros would multiply faster than real data do.
void fill_random(const Tensor& matrix, uint64_t seed, Stream& stream);

// The least milliseconds that an op's FLOPs and bytes take at these rates; 0 for communication, which they do not
// bound.
double floor_ms(const Profiler::Total& total, const DeviceRates& rates);

}  // namespace octavo
