#include "model/head.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/layers/cross_entropy.h"
#include "kernels/layers/cross_entropy_parallel.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/matmul/matmul.h"

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

HeadActivations::HeadActivations(const ModelConfig& config, const BatchShape& shape, const PrecisionConfig& precision,
                                 bool training, const Tensor& losses_memory, Arena& arena)
    : losses(losses_memory) {
  const DType compute = precision.compute;
  const int64_t tokens = shape.tokens();
  const int64_t share = shape.share();
  const int64_t chunk = chunk_tokens(config, shape, compute);
  h = arena.allocate("head h", compute, {share, config.hidden_size}, Lifetime::kBlock);
  rstd = arena.allocate("head rstd", DType::kFloat32, {share}, Lifetime::kBlock);
  norm = arena.allocate("head norm", compute, {share, config.hidden_size}, Lifetime::kBlock);
  all_norm = norm;
  logits = arena.allocate("logits of a chunk", compute, {chunk, config.vocab_size}, Lifetime::kBlock);
  if (Fp8Head::is_used(precision.lm_head, training)) {
    const Fp8Head::Shape sizes{.chunk = chunk, .hidden = config.hidden_size, .vocab = config.vocab_size};
    fp8.emplace(precision, sizes, training, arena);
  }
  if (shape.tensor_ranks == 1) return;
  all_norm = arena.allocate("head norm of all ranks", compute, {tokens, config.hidden_size}, Lifetime::kBlock);
  stats = arena.allocate("logit statistics", DType::kFloat32, {chunk * kCrossEntropyStats}, Lifetime::kBlock);
  all_stats = arena.allocate("logit statistics of all ranks", DType::kFloat32,
                             {shape.tensor_ranks * chunk * kCrossEntropyStats}, Lifetime::kBlock);
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

namespace {

// The losses of tokens [begin, end), whose logits are there, and the gradient of these in their place where there is a
// `backward`.
struct ChunkLoss {
  Tensor logits;
  Tensor targets;
  int64_t begin, end;
  const HeadBackward* backward = nullptr;
};

float gradient_bound(const HeadBackward& args) { return cross_entropy_gradient_bound(args.scale, args.z_loss); }

void chunk_loss(const BlockContext& c, const HeadActivations& a, const ChunkLoss& chunk) {
  const Tensor losses = a.losses.rows(chunk.begin, chunk.end);
  const Tensor targets = chunk.targets.rows(chunk.begin, chunk.end);
  const bool backward = chunk.backward != nullptr;
  const Tensor d_logits = backward ? chunk.logits : Tensor();
  const float scale = backward ? chunk.backward->scale : 1.0f;
  const float z_loss = backward ? chunk.backward->z_loss : 0.0f;
  const Tensor z_losses =
      backward && chunk.backward->z_losses.defined() ? chunk.backward->z_losses.rows(chunk.begin, chunk.end) : Tensor();
  if (c.tensor.alone()) {
    return cross_entropy(
        {.losses = losses,
         .d_logits = d_logits,
         .logits = chunk.logits,
         .targets = targets,
         .scale = scale,
         .z_loss = z_loss,
         .z_losses = z_losses,
         .cast = backward && a.fp8 ? a.fp8->gradient_cast(gradient_bound(*chunk.backward)) : Fp8Cast()},
        c.stream);
  }
  const int64_t tokens = chunk.end - chunk.begin;
  const int64_t ranks = c.tensor.size();
  const int64_t vocab_begin = c.tensor.rank() * chunk.logits.dim(1);
  const Tensor stats = a.stats.rows(0, tokens * kCrossEntropyStats).view({tokens, kCrossEntropyStats});
  const Tensor all_stats = a.all_stats.rows(0, ranks * stats.numel()).view({ranks, tokens, kCrossEntropyStats});
  cross_entropy_stats({.stats = stats, .logits = chunk.logits, .targets = targets, .vocab_begin = vocab_begin},
                      c.stream);
  c.tensor.gather_whole(all_stats, stats, "logit statistics");
  cross_entropy_parallel({.losses = losses,
                          .d_logits = d_logits,
                          .logits = chunk.logits,
                          .targets = targets,
                          .stats = all_stats,
                          .vocab_begin = vocab_begin,
                          .scale = scale,
                          .z_loss = z_loss,
                          .z_losses = z_losses},
                         c.stream);
}

void lm_head_forward(const Tensor& logits, const Tensor& x, const HeadParameters& w, Stream& stream) {
  matmul({.d = logits, .a = x, .b = w.lm_head, .transpose_b = true, .name = "lm_head"}, stream);
}

// Calls work(begin, end, logits) for the tokens chunk by chunk, their logits made. `backward`: work makes gradients of
// them.
template <typename Work>
void for_each_chunk(const BlockContext& c, const HeadParameters& w, HeadActivations& a, bool backward, Work work) {
  if (!c.tensor.alone()) c.tensor.gather(a.all_norm, a.norm, "lm_head");
  if (a.fp8) a.fp8->begin(w.lm_head, a.all_norm, backward, c.tensor, c.sequences, c.stream);
  const int64_t tokens = a.all_norm.dim(0);
  for (int64_t begin = 0; begin < tokens; begin += a.logits.dim(0)) {
    const int64_t end = std::min(begin + a.logits.dim(0), tokens);
    const Tensor logits = a.logits.rows(0, end - begin);
    const Tensor norm = a.all_norm.rows(begin, end);
    if (a.fp8) a.fp8->cast_input(norm, backward, c.stream);
    if (a.fp8 && a.fp8->makes_logits()) {
      a.fp8->forward(logits, c.stream);
    } else {
      lm_head_forward(logits, norm, w, c.stream);
    }
    work(begin, end, logits);
  }
}

}  // namespace

void head_loss(const BlockContext& c, const HeadParameters& w, const Tensor& targets, HeadActivations& a) {
  for_each_chunk(c, w, a, false, [&](int64_t begin, int64_t end, const Tensor& logits) {
    chunk_loss(c, a, {.logits = logits, .targets = targets, .begin = begin, .end = end});
  });
}

Tensor head_logits(const BlockContext& c, const HeadParameters& w, const HeadActivations& a, int64_t begin,
                   int64_t end) {
  CHECK(c.tensor.alone(), "logits of single tokens on {} tensor-parallel ranks", c.tensor.size());
  const Tensor logits = a.logits.rows(0, end - begin);
  lm_head_forward(logits, a.norm.rows(begin, end), w, c.stream);
  return logits;
}

namespace {

// Through lm_head, of the tokens [begin, end), whose logits' gradients are `d_logits`. The gradient of norm goes in its
// place, so the weight's comes first.
void lm_head_backward(const BlockContext& c, const HeadBackward& args, int64_t begin, int64_t end,
                      const Tensor& d_logits) {
  const Tensor norm = args.activations.all_norm.rows(begin, end);
  const bool accumulate = args.accumulate || begin > 0;
  if (args.activations.fp8) {
    return args.activations.fp8->backward({.d_weight = args.gradients.lm_head,
                                           .d_x = norm,
                                           .d_logits = c.tensor.alone() ? Tensor() : d_logits,
                                           .bound = gradient_bound(args),
                                           .accumulate = accumulate},
                                          c.stream);
  }
  matmul({.d = args.gradients.lm_head,
          .a = d_logits,
          .b = norm,
          .transpose_a = true,
          .accumulate = accumulate,
          .name = "lm_head_d_w"},
         c.stream);
  matmul({.d = norm, .a = d_logits, .b = args.weights.lm_head, .name = "lm_head_d_x"}, c.stream);
}

}  // namespace

void head_loss_backward(const BlockContext& c, const HeadBackward& args) {
  HeadActivations& a = args.activations;
  for_each_chunk(c, args.weights, a, true, [&](int64_t begin, int64_t end, const Tensor& logits) {
    chunk_loss(c, a, {.logits = logits, .targets = args.targets, .begin = begin, .end = end, .backward = &args});
    lm_head_backward(c, args, begin, end, logits);
  });
  const Tensor& d_norm = a.norm;
  if (!c.tensor.alone()) c.tensor.reduce_scatter(d_norm, a.all_norm, "lm_head");
  rms_norm_backward({.d_h = args.d_h,
                     .d_weight = args.gradients.norm,
                     .d_out = d_norm,
                     .d_residual = {},
                     .h = a.h,
                     .rstd = a.rstd,
                     .weight = args.weights.norm,
                     .amax = args.d_h_amax},
                    c.stream);
}

int64_t head_workspace_bytes(const ModelConfig& config, const BatchShape& shape, const PrecisionConfig& precision,
                             Stream& stream) {
  const int64_t chunk = chunk_tokens(config, shape, precision.compute);
  const LinearShape lm_head{.tokens = chunk, .in = config.hidden_size, .out = config.vocab_size};
  const LinearPrecision recipe = is_fp8(precision.lm_head) ? kLmHeadRecipe : LinearPrecision::kBFloat16;
  return std::max({LinearLayer::workspace_bytes(LinearPrecision::kBFloat16, lm_head, precision.compute, stream),
                   LinearLayer::workspace_bytes(recipe, lm_head, precision.compute, stream),
                   rms_norm_backward_workspace_bytes(config.hidden_size, stream)});
}

}  // namespace octavo
