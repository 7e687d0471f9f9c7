// Fp8StatsTable: statistics of how well the FP8 casts of one step fit their tensors (kernels/fp8/fp8_stats.h). Each
// linear has statistics of its input, the gradient of its output and its weight, over all micro-batches and ranks.
//
//   begin                Clears the statistics of the last measured step.
//   add, for each cast   Queued after the cast. Does nothing outside begin and end.
//   end                  Reduces sums and maxima over the ranks.
//
// Linears that are not in FP8 add nothing, so their number of elements is 0.
#pragma once

#include <span>

#include "core/arena.h"
#include "core/stream.h"
#include "model/linear/amax_table.h"
#include "parallel/communicator.h"

namespace octavo {

// Statistics of one tensor in one step, on the host. Counts are sums of float32 numbers (kernels/fp8/fp8_stats.h).
struct Fp8TensorStats {
  double elements = 0;  // Number of elements that were cast. If it is 0, the other members have no meaning.
  double non_zero = 0;
  double saturated = 0;
  double flushed = 0;
  double amax = 0;
  double smallest_scale = 0;
  double largest_scale = 0;
};

class Fp8StatsTable {
 public:
  Fp8StatsTable(int64_t linears, Arena& arena);

  void begin(Stream& stream);
  bool measuring() const { return measuring_; }
  // Returns how often begin() was called. A caller that adds a tensor once per step sees a new step by this number.
  int64_t steps_begun() const { return steps_begun_; }
  // Ends measuring. Collective: values() cover all ranks when the work queued on the stream is done.
  void end(Communicator& communicator, Stream& stream);

  // A cast of x into `rows`. `amax` is the amax of which a scale per tensor was made.
  struct Cast {
    int64_t linear = 0;
    AmaxTable::Kind kind = AmaxTable::kInput;
    Fp8Operand rows;
    Tensor x;
    Tensor amax;
  };
  void add(const Cast& cast, Stream& stream);

  // Returns the statistics of all tensors, float32. The caller copies them to the host, where tensor() reads them.
  const Tensor& values() const { return values_; }
  Fp8TensorStats tensor(std::span<const float> host_values, int64_t linear, AmaxTable::Kind kind) const;
  int64_t linears() const { return linears_; }

 private:
  Tensor sums() const;    // [slots, Fp8Sum::kCount], flat
  Tensor maxima() const;  // [slots, Fp8Maximum::kCount], flat

  int64_t linears_;
  Tensor values_;  // All sums, followed by all maxima, so that two collectives suffice.
  bool measuring_ = false;
  int64_t steps_begun_ = 0;
};

}  // namespace octavo
