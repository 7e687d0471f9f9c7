#include "app/run/utilization.h"

#include <cmath>

#include "model/architecture/block_spec.h"
#include "model/architecture/layer_spec.h"

namespace octavo {

// With probability q a token is not the last of its document. Token t attends to itself and to its j-th predecessor
// with probability q^j, so to (1 - q^(t+1)) / (1 - q) tokens. The result is the mean over t.
double document_attended_tokens(int64_t seq_len, int64_t document_length) {
  const auto tokens = static_cast<double>(seq_len);
  const double log_q = -1 / static_cast<double>(document_length);
  const double last = -std::expm1(log_q);  // 1 - q
  const double whole = -std::expm1(log_q * tokens);
  return (1 - std::exp(log_q) * whole / (tokens * last)) / last;
}

ModelFlops model_flops(const ModelConfig& model, const PrecisionConfig& precision, int64_t seq_len,
                       double attended_tokens) {
  const double masked_tokens = static_cast<double>(seq_len) - attended_tokens;
  const double attention_per_token = 12.0 * static_cast<double>(model.num_layers * model.attention_width());
  ModelFlops flops{.palm = model.flops_per_token(seq_len)};
  flops.causal = flops.palm - attention_per_token * masked_tokens;
  double block = 0;
  for (const LinearSpec& linear : block_linears(model)) {
    block += 6.0 * static_cast<double>(linear.shape.in * linear.shape.out);
  }
  for (const auto& [recipe, recompute] : layer_specs(model, precision, {.mode = ActivationCheckpointing::Mode::kNone}))
    if (is_fp8(recipe)) flops.fp8 += block;
  const auto lm_head = static_cast<double>(model.vocab_size * model.hidden_size);
  if (traits(precision.lm_head).logits) flops.fp8 += 2 * lm_head;
  if (traits(precision.lm_head).gradients) flops.fp8 += 4 * lm_head;
  return flops;
}

Utilization utilization_of(const ModelFlops& flops, double wps) {
  return {.mfu = wps * flops.palm / kPeakBFloat16,
          .mfu_causal = wps * flops.causal / kPeakBFloat16,
          .utilization = wps * (flops.fp8 / kPeakFp8 + (flops.causal - flops.fp8) / kPeakBFloat16)};
}

}  // namespace octavo
