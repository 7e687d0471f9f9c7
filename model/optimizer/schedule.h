// The learning-rate schedule. The learning rate of step s, counted from 1, depends on lr, w = warmup_steps, n = total
// steps and r = min_lr_ratio:
//   s <= w:      lr * s / w
//   constant:    lr
//   linear:      lr * (1 - (1-r) * t),                     t = (s-w)/(n-w)
//   cosine:      lr * (r + (1-r) * (1 + cos(pi t)) / 2)
//   inverse_sqrt: lr * max(r, sqrt(max(w, 1) / s))
//   wsd:         lr until the last decay_steps, then down to lr * r at step n (Hu et al., arXiv 2404.06395). The
//                decline depends on decay_type:
//     linear:    lr * (1 - (1-r) * u),                     u = (s-(n-decay_steps))/decay_steps
//     sqrt:      lr * (r + (1-r) * (1 - sqrt(u)))          (Hägele et al., arXiv 2405.18392)
#pragma once

#include <cstdint>

#include "model/optimizer/optimizer_config.h"

namespace octavo {

// Returns the learning rate of step `step` of `total_steps`. Steps beyond the last have the learning rate of the last.
double learning_rate(const OptimizerConfig& config, int64_t step, int64_t total_steps);

}  // namespace octavo
