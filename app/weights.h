// Sets parameters and moments on the device from wherever they come, through a small staging buffer.
#pragma once

#include <functional>
#include <string>

#include "app/checkpoint.h"
#include "app/config.h"
#include "app/training_state.h"

namespace octavo {

// Writes elements [begin, end) of a parameter (or of its moment) to `out`, host memory of flat's dtype.
using ParameterReader = std::function<void(const ParameterSpec& spec, int64_t begin, int64_t end, const Tensor& out)>;

// Fills every parameter of `flat` [layout.total_elements()] on the stream's device from `read`. Waits for the copies.
void fill_parameters(const Tensor& flat, const ParameterLayout& layout, const ParameterReader& read, Stream& stream);

// Where a model's weights come from, for the log.
//   config.model.init_from, when given; else a random initialization from training.seed.
void load_initial_weights(const Config& config, const ParameterLayout& layout, const Tensor& master, Stream& stream);

// From a checkpoint: the master weights.
void load_weights(Checkpoint& checkpoint, const ParameterLayout& layout, const Tensor& master, Stream& stream);
// The moments; left at zero when the checkpoint has none (an imported model).
void load_moments(Checkpoint& checkpoint, const ParameterLayout& layout, const Optimizer& optimizer, Stream& stream);

}  // namespace octavo
