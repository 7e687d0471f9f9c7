// Fp8StatsTable: how well the FP8 casts of one step fit their tensors (kernels/fp8/fp8_stats.h), for each linear its
// input, the gradient of its output and its weight, over all micro-batches and ranks.
//
//   begin                      forgets the numbers of the last measured step
//   add, for each cast         queued behind the cast; nothing happens outside begin ... end
//   end                        sums and maxima over the ranks
//
// Linears that are not in FP8 add nothing and keep zero elements.
#pragma once

#include <span>

#include "core/arena.h"
#include "core/stream.h"
#include "model/linear/amax_table.h"
#include "parallel/communicator.h"

namespace octavo {

// One tensor's numbers of a step, on the host. Counts are sums of float32 numbers, see kernels/fp8/fp8_stats.h.
struct Fp8TensorStats {
  double elements = 0;  // that were cast; 0: none, and the rest means nothing
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
  // A collective. Ends measuring; values() of all ranks are there when the stream gets there.
  void end(Communicator& communicator, Stream& stream);

  // A cast of x into `rows`; `amax` is what a per-tensor scale was made of.
  struct Cast {
    int64_t linear = 0;
    AmaxTable::Kind kind = AmaxTable::kInput;
    Fp8Operand rows;
    Tensor x;
    Tensor amax;
  };
  void add(const Cast& cast, Stream& stream);

  // All numbers, float32, to be copied to the host; tensor() finds one tensor's in the copy.
  const Tensor& values() const { return values_; }
  Fp8TensorStats tensor(std::span<const float> host_values, int64_t linear, AmaxTable::Kind kind) const;
  int64_t linears() const { return linears_; }

 private:
  Tensor sums() const;    // [slots, Fp8Sum::kCount], flat
  Tensor maxima() const;  // [slots, Fp8Maximum::kCount], flat

  int64_t linears_;
  Tensor values_;  // sums, then maxima, so that each is one collective
  bool measuring_ = false;
};

}  // namespace octavo
