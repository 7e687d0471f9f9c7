// Measures the rates of this device at matmuls and memory. `octavo bench --ops` and `octavo doctor` use them.
#pragma once

#include <functional>
#include <vector>

#include "app/plan/machine_rates.h"
#include "core/profiler.h"
#include "model/architecture/precision.h"

namespace octavo {

struct DeviceRates {
  double product = 0;      // FLOP/s of a large matrix multiplication in the compute dtype
  double fp8_product = 0;  // FLOP/s of a large FP8 matrix multiplication by the config's recipe; 0 without FP8
  double bandwidth = 0;    // bytes/s, read and written together, of a large copy
};

// Returns medians over runs with random data, long enough for the clock to settle; well under a second on a GPU.
// Temporarily takes a few GiB of a GPU's memory, and removes the stream's workspace.
DeviceRates measure_rates(const PrecisionConfig& precision, Stream& stream);

// Returns the FLOP/s of d = a b^T with a [m, k] and b [n, k], in the compute dtype (linear: bfloat16) or with quantized
// operands of the FP8 recipe, with fast accumulation unless the config or the recipe has none. m, n and k must be
// multiples of 128. Removes the stream's workspace.
double measure_product(const ProductSize& size, const PrecisionConfig& precision, Stream& stream);
// Returns the FLOP/s of multiply-adds in registers on this process's threads. CPU only.
double measure_multiply_adds(Stream& stream);
// Returns the bytes/s of a large copy, counting bytes read and written.
double measure_bandwidth(Stream& stream);

// Returns the seconds of each of `runs` runs.
std::vector<double> time_each(int64_t runs, const std::function<void()>& work, Stream& stream);
// Returns the median seconds of the second half of `runs` runs. The first half lets the clock settle.
double time_runs(int64_t runs, const std::function<void()>& work, Stream& stream);
// Fills a matrix [rows, columns] in float32 or bfloat16 with normal random values, some of the rows repeatedly. rows
// must be a multiple of 64. Zeros would multiply faster than real data.
void fill_random(const Tensor& matrix, uint64_t seed, Stream& stream);

// Returns the least time that an op's FLOPs and bytes take at these rates, in milliseconds. Returns 0 for
// communication, which they do not bound.
double floor_ms(const Profiler::Total& total, const DeviceRates& rates);

}  // namespace octavo
