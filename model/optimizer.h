// AdamW over all parameters, with the moments it keeps: one fused update per stretch of parameters with the same weight
// decay, the global gradient norm and the clipping on the device.
#pragma once

#include <vector>

#include "model/parameters.h"
#include "model/schedule.h"

namespace octavo {

class Optimizer {
 public:
  // `parameters` must outlive the optimizer. Moments start at zero.
  Optimizer(const OptimizerConfig& config, const ParameterLayout& layout, const ParameterBuffers& parameters,
            Arena& arena);

  // One step, from 1, at learning rate `lr`; the gradients must be summed over all ranks. Queued on `stream`: computes
  // grad_sum_of_squares(), clips, updates master weights and moments, and casts the compute weights.
  void step(int64_t step, double lr, Stream& stream);

  const Tensor& exp_avg() const { return exp_avg_; }        // [total_elements], state_dtype
  const Tensor& exp_avg_sq() const { return exp_avg_sq_; }  // [total_elements], state_dtype
  // [1] float32 on the device: of the last step's gradients, before clipping.
  const Tensor& grad_sum_of_squares() const { return grad_sum_of_squares_; }

 private:
  struct Segment {
    int64_t begin;
    int64_t end;
    bool decayed;
  };

  OptimizerConfig config_;
  const ParameterBuffers* parameters_;
  std::vector<Segment> segments_;
  Tensor exp_avg_;
  Tensor exp_avg_sq_;
  Tensor grad_sum_of_squares_;
};

}  // namespace octavo
