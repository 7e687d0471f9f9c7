#include "model/head.h"

#include <algorithm>

#include "kernels/core/error.h"
#include "kernels/cross_entropy.h"
#include "kernels/rms_norm.h"
#include "model/linear.h"

namespace octavo {

namespace {

constexpr int64_t kLogitsBytes = int64_t{1} << 30;  // of one chunk, about

int64_t chunk_tokens(const ModelConfig& config, const BatchShape& shape, DType compute) {
  const int64_t tokens = shape.tokens();
  const int64_t fitting = std::max<int64_t>(kLogitsBytes / (config.vocab_size * dtype_bytes(compute)), 1);
  const int64_t chunks = (tokens + fitting - 1) / fitting;
  const int64_t even = (tokens + chunks - 1) / chunks;
  return std::min(tokens, (even + 127) / 128 * 128);
}

}  // namespace

HeadParameters::HeadParameters(const ParameterView& view, const ParameterLayout& layout, const ModelConfig& config)
    : norm(view(layout.find("model.norm.weight"))),
      lm_head(view(layout.find(config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight"))) {}

HeadActivations::HeadActivations(const ModelConfig& config, const BatchShape& shape, DType compute, Arena& arena) {
  const int64_t tokens = shape.tokens();
  const int64_t chunk = chunk_tokens(config, shape, compute);
  h = arena.allocate("head h", compute, {tokens, config.hidden_size});
  rstd = arena.allocate("head rstd", DType::kFloat32, {tokens});
  norm = arena.allocate("head norm", compute, {tokens, config.hidden_size});
  losses = arena.allocate("losses", DType::kFloat32, {tokens});
  logits = arena.allocate("logits of a chunk", compute, {chunk, config.vocab_size});
  d_norm = arena.allocate("head gradient of a chunk", compute, {chunk, config.hidden_size});
}

void head_norm_forward(const BlockContext& c, const HeadParameters& w, const Tensor& residual, const Tensor& delta,
                       const HeadActivations& a) {
  rms_norm_forward({.out = a.norm,
                    .rstd = a.rstd,
                    .residual_out = a.h,
                    .x = delta,
                    .residual = residual,
                    .weight = w.norm,
                    .eps = static_cast<float>(c.config.rms_norm_eps)},
                   c.stream);
}

void head_loss(const BlockContext& c, const HeadParameters& w, const Tensor& targets, const HeadActivations& a) {
  const int64_t tokens = a.norm.dim(0);
  for (int64_t begin = 0; begin < tokens; begin += a.logits.dim(0)) {
    const int64_t end = std::min(begin + a.logits.dim(0), tokens);
    const Tensor logits = a.logits.rows(0, end - begin);
    linear_forward({.y = logits, .x = a.norm.rows(begin, end), .w = w.lm_head, .name = "lm_head"}, c.stream);
    cross_entropy(
        {.losses = a.losses.rows(begin, end), .d_logits = {}, .logits = logits, .targets = targets.rows(begin, end)},
        c.stream);
  }
}

Tensor head_logits(const BlockContext& c, const HeadParameters& w, const HeadActivations& a, int64_t token) {
  const Tensor logits = a.logits.rows(0, 1);
  linear_forward({.y = logits, .x = a.norm.rows(token, token + 1), .w = w.lm_head, .name = "lm_head"}, c.stream);
  return logits.view({logits.dim(1)});
}

void head_loss_backward(const BlockContext& c, const HeadBackward& args) {
  const HeadActivations& a = args.activations;
  const int64_t tokens = a.norm.dim(0);
  for (int64_t begin = 0; begin < tokens; begin += a.logits.dim(0)) {
    const int64_t end = std::min(begin + a.logits.dim(0), tokens);
    const Tensor logits = a.logits.rows(0, end - begin);
    const Tensor norm = a.norm.rows(begin, end);
    const Tensor d_norm = a.d_norm.rows(0, end - begin);
    linear_forward({.y = logits, .x = norm, .w = args.weights.lm_head, .name = "lm_head"}, c.stream);
    cross_entropy({.losses = a.losses.rows(begin, end),
                   .d_logits = logits,
                   .logits = logits,
                   .targets = args.targets.rows(begin, end),
                   .scale = args.scale},
                  c.stream);
    linear_backward({.d_x = d_norm,
                     .d_w = args.gradients.lm_head,
                     .d_y = logits,
                     .x = norm,
                     .w = args.weights.lm_head,
                     .accumulate = args.accumulate || begin > 0,
                     .input_name = "lm_head_d_x",
                     .weight_name = "lm_head_d_w"},
                    c.stream);
    rms_norm_backward({.d_h = args.d_h.rows(begin, end),
                       .d_weight = args.gradients.norm,
                       .d_out = d_norm,
                       .d_residual = {},
                       .h = a.h.rows(begin, end),
                       .rstd = a.rstd.rows(begin, end),
                       .weight = args.weights.norm,
                       .amax = args.d_h_amax},
                      c.stream);
  }
}

int64_t head_workspace_bytes(const ModelConfig& config, const BatchShape& shape, DType compute, Stream& stream) {
  const int64_t chunk = chunk_tokens(config, shape, compute);
  return std::max(linear_workspace_bytes(chunk, config.hidden_size, config.vocab_size, compute, stream),
                  rms_norm_backward_workspace_bytes(config.hidden_size, stream));
}

}  // namespace octavo
