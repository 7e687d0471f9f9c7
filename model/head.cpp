#include "model/head.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/fp8/fp8_shard.h"
#include "kernels/layers/cross_entropy.h"
#include "kernels/layers/cross_entropy_parallel.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/matmul/matmul.h"
#include "model/linear/linear_layer.h"

namespace octavo {

namespace {

constexpr const char* kFinalNorm = "model.norm.weight";
constexpr int64_t kLogitsBytes = int64_t{1} << 30;  // Approximate size of the logits of one chunk.

int64_t chunk_tokens(const ModelConfig& config, const BatchShape& shape, DType compute) {
  const int64_t tokens = shape.tokens();
  const int64_t fitting = std::max<int64_t>(kLogitsBytes / (config.vocab_size * dtype_bytes(compute)), 1);
  const int64_t chunks = (tokens + fitting - 1) / fitting;
  const int64_t even = (tokens + chunks - 1) / chunks;
  return std::min(tokens, (even + 127) / 128 * 128);
}

// Returns the first part of an operand as an operand [rows, k]. An operand with one scale can be sliced anywhere.
Fp8Operand resized(const Fp8Operand& operand, int64_t rows, int64_t k) {
  return {.data = Tensor(operand.data.raw(), operand.data.dtype(), {rows, k}),
          .scale_inv = operand.scale_inv,
          .scaling = operand.scaling};
}

}  // namespace

LmHead::LmHead(const PrecisionConfig& precision, const Shape& s, bool training, Arena& arena) : precision_(precision) {
  const bool gradients = training && traits(precision.lm_head).gradients;
  if (!makes_fp8_logits() && !gradients) return;
  const auto allocate = [&](const char* name, DType format, int64_t rows, int64_t k) {
    return allocate_operand(name, format, Scaling::kTensor, rows, k, arena, Lifetime::kBlock);
  };
  constexpr DType kFormat = DType::kFloat8E4M3;
  input_amax_ = arena.allocate("fp8 head norm amax", DType::kFloat32, {1}, Lifetime::kBlock);
  weight_amax_ = arena.allocate("fp8 lm_head amax", DType::kFloat32, {1}, Lifetime::kBlock);
  if (makes_fp8_logits()) {
    weight_rows_ = allocate("fp8 lm_head", kFormat, s.vocab, s.hidden);
    input_rows_ = allocate("fp8 head norm of a chunk", kFormat, s.chunk, s.hidden);
  }
  if (!gradients) return;
  weight_columns_ = allocate("fp8 lm_head transposed", kFormat, s.hidden, s.vocab);
  input_columns_ = allocate("fp8 head norm of a chunk transposed", kFormat, s.hidden, s.chunk);
  gradient_rows_ = allocate("fp8 logits of a chunk", precision.gradient_format, s.chunk, s.vocab);
  gradient_columns_ = allocate("fp8 logits of a chunk transposed", precision.gradient_format, s.vocab, s.chunk);
}

bool LmHead::fast(bool forward) const { return accumulates_fast(kLmHeadRecipe, precision_.fast_accumulation, forward); }

void LmHead::begin(const Tensor& weight, const Tensor& x, bool backward, TensorGroup& tensor,
                   const ContextGroup& sequences, Stream& stream) {
  weight_ = weight;
  backward_ = backward;
  if (!uses_fp8()) return;
  stream.zero(input_amax_);
  stream.zero(weight_amax_);
  amax({.out = input_amax_, .x = x.view({x.numel()})}, stream);
  amax({.out = weight_amax_, .x = weight.view({weight.numel()})}, stream);
  if (!tensor.alone()) tensor.ranks().all_reduce_max(weight_amax_, stream, "lm_head's amax");
  if (!sequences.alone()) sequences.ranks().all_reduce_max(input_amax_, stream, "the final norm's amax");
  quantize({.cast = {.rows = weight_rows_,
                     .columns = makes_fp8_gradients() ? weight_columns_ : Fp8Operand{},
                     .amax = weight_amax_},
            .x = weight},
           stream);
}

void LmHead::forward(const Tensor& logits, const Tensor& x, Stream& stream) {
  tokens_ = x.dim(0);
  const int64_t hidden = x.dim(1);
  const Fp8Operand rows = makes_fp8_logits() ? resized(input_rows_, tokens_, hidden) : Fp8Operand{};
  if (uses_fp8()) {
    const Fp8Operand columns = makes_fp8_gradients() ? resized(input_columns_, hidden, tokens_) : Fp8Operand{};
    quantize({.cast = {.rows = rows, .columns = columns, .amax = input_amax_}, .x = x}, stream);
  }
  if (!makes_fp8_logits()) {
    return matmul({.d = logits, .a = x, .b = weight_, .transpose_b = true, .name = "lm_head"}, stream);
  }
  fp8_matmul({.d = logits, .a = rows, .b = weight_rows_, .fast_accumulation = fast(true), .name = "lm_head"}, stream);
}

Fp8Cast LmHead::gradient_cast(float bound) const {
  if (!makes_fp8_gradients()) return {};
  return {.rows = resized(gradient_rows_, tokens_, gradient_rows_.data.dim(1)), .bound = bound};
}

// The gradient of x replaces x, so the gradient of the weight, which reads x, comes first.
void LmHead::backward(const Backward& args, Stream& stream) {
  if (makes_fp8_gradients()) return backward_fp8(args, stream);
  matmul({.d = args.d_weight,
          .a = args.d_logits,
          .b = args.x,
          .transpose_a = true,
          .accumulate = args.accumulate,
          .name = "lm_head_d_w"},
         stream);
  matmul({.d = args.x, .a = args.d_logits, .b = weight_, .name = "lm_head_d_x"}, stream);
}

void LmHead::backward_fp8(const Backward& args, Stream& stream) {
  const int64_t vocab = gradient_rows_.data.dim(1);
  const Fp8Operand rows = resized(gradient_rows_, tokens_, vocab);
  Fp8Operand columns = resized(gradient_columns_, vocab, tokens_);
  if (args.cast.defined()) {
    fp8_transpose({.out = columns.data, .x = rows.data}, stream);
    columns.scale_inv = rows.scale_inv;
  } else {
    quantize({.cast = {.rows = rows, .columns = columns, .bound = args.bound}, .x = args.d_logits}, stream);
  }
  fp8_matmul({.d = args.d_weight,
              .a = columns,
              .b = resized(input_columns_, input_columns_.data.dim(0), tokens_),
              .accumulate = args.accumulate,
              .fast_accumulation = fast(false),
              .name = "lm_head_d_w"},
             stream);
  // Fast accumulation would lose the small terms of this sum over the vocabulary (precision.h).
  fp8_matmul({.d = args.x, .a = rows, .b = weight_columns_, .name = "lm_head_d_x"}, stream);
}

HeadParameters::HeadParameters(const ParameterView& view, const ParameterLayout& layout, const ModelConfig& config)
    : norm(view(layout.find(kFinalNorm))) {
  const ParameterSpec& spec = layout.find(config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
  lm_head = view(spec);
  vocab_size = spec.shape[0];
}

HeadActivations::HeadActivations(const ModelConfig& config, const BatchShape& shape, const PrecisionConfig& precision,
                                 bool training, const Tensor& losses_memory, Arena& arena)
    : losses(losses_memory),
      lm_head(precision,
              {.chunk = chunk_tokens(config, shape, precision.compute),
               .hidden = config.hidden_size,
               .vocab = config.vocab_size},
              training, arena) {
  const DType compute = precision.compute;
  const int64_t tokens = shape.tokens();
  const int64_t local_tokens = shape.local_tokens();
  const int64_t chunk = chunk_tokens(config, shape, compute);
  h = arena.allocate("head h", compute, {local_tokens, config.hidden_size}, Lifetime::kBlock);
  rstd = arena.allocate("head rstd", DType::kFloat32, {local_tokens}, Lifetime::kBlock);
  norm = arena.allocate("head norm", compute, {local_tokens, config.hidden_size}, Lifetime::kBlock);
  all_norm = norm;
  logits = arena.allocate("logits of a chunk", compute, {chunk, config.vocab_size}, Lifetime::kBlock);
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
  observe(c.observer, {.op = "rms_norm_forward",
                       .results = {a.h, a.norm},
                       .inputs = {delta, residual},
                       .weights = {w.norm},
                       .parameter = kFinalNorm});
}

namespace {

// The tokens [begin, end) of a micro-batch.
struct Chunk {
  int64_t begin, end;
  Tensor norm;    // [end - begin, hidden]: input of lm_head.
  Tensor logits;  // [end - begin, vocab]

  // Returns the chunk's rows of a tensor with one row per token of the micro-batch.
  Tensor of(const Tensor& all) const { return all.defined() ? all.rows(begin, end) : Tensor(); }
};

// Calls work(chunk) for each chunk of the tokens after computing its logits. `backward` says whether `work` computes
// gradients.
template <typename Work>
void for_each_chunk(const BlockContext& c, const HeadParameters& w, HeadActivations& a, bool backward, Work work) {
  if (!c.tensor.alone()) c.tensor.gather(a.all_norm, a.norm, "lm_head");
  a.lm_head.begin(w.lm_head, a.all_norm, backward, c.tensor, c.sequences, c.stream);
  const int64_t tokens = a.all_norm.dim(0);
  for (int64_t begin = 0; begin < tokens; begin += a.logits.dim(0)) {
    const int64_t end = std::min(begin + a.logits.dim(0), tokens);
    const Chunk chunk{begin, end, a.all_norm.rows(begin, end), a.logits.rows(0, end - begin)};
    a.lm_head.forward(chunk.logits, chunk.norm, c.stream);
    observe(c.observer, {.op = "lm_head", .results = {chunk.logits}, .inputs = {chunk.norm}, .weights = {w.lm_head}});
    if (w.vocab_size < chunk.logits.dim(1)) mask_padding({.logits = chunk.logits, .vocab = w.vocab_size}, c.stream);
    work(chunk);
  }
}

// Computes cross_entropy of logits whose vocabulary is divided over the ranks of the tensor group.
void divided_cross_entropy(const BlockContext& c, const HeadActivations& a, const CrossEntropy& args) {
  const int64_t tokens = args.logits.dim(0);
  const int64_t ranks = c.tensor.size();
  const int64_t vocab_begin = c.tensor.rank() * args.logits.dim(1);
  const Tensor stats = a.stats.rows(0, tokens * kCrossEntropyStats).view({tokens, kCrossEntropyStats});
  const Tensor all_stats = a.all_stats.rows(0, ranks * stats.numel()).view({ranks, tokens, kCrossEntropyStats});
  cross_entropy_stats({.stats = stats, .logits = args.logits, .targets = args.targets, .vocab_begin = vocab_begin},
                      c.stream);
  c.tensor.ranks().all_gather(all_stats, stats, c.stream, "logit statistics");
  cross_entropy_parallel({.losses = args.losses,
                          .d_logits = args.d_logits,
                          .logits = args.logits,
                          .targets = args.targets,
                          .stats = all_stats,
                          .vocab_begin = vocab_begin,
                          .scale = args.scale,
                          .z_loss = args.z_loss,
                          .z_losses = args.z_losses},
                         c.stream);
}

void loss_of_chunk(const BlockContext& c, const HeadActivations& a, const CrossEntropy& args) {
  if (!c.tensor.alone()) return divided_cross_entropy(c, a, args);
  cross_entropy(args, c.stream);
}

}  // namespace

void head_loss(const BlockContext& c, const HeadParameters& w, const Tensor& targets, HeadActivations& a) {
  for_each_chunk(c, w, a, false, [&](const Chunk& chunk) {
    loss_of_chunk(c, a,
                  {.losses = chunk.of(a.losses), .d_logits = {}, .logits = chunk.logits, .targets = chunk.of(targets)});
  });
}

Tensor head_logits(const BlockContext& c, const HeadParameters& w, const HeadActivations& a, int64_t token) {
  CHECK(c.tensor.alone(), "logits of single tokens on {} tensor-parallel ranks", c.tensor.size());
  const Tensor logits = a.logits.rows(0, 1);
  matmul({.d = logits, .a = a.norm.rows(token, token + 1), .b = w.lm_head, .transpose_b = true, .name = "lm_head"},
         c.stream);
  return logits.view({logits.numel()}).rows(0, w.vocab_size).view({1, w.vocab_size});
}

void head_loss_backward(const BlockContext& c, const HeadBackward& args) {
  HeadActivations& a = args.activations;
  const float bound = cross_entropy_gradient_bound(args.scale, args.z_loss);
  for_each_chunk(c, args.weights, a, true, [&](const Chunk& chunk) {
    // Only the kernel for an undivided vocabulary can write the cast. An observer needs the gradients themselves.
    const bool casts = c.tensor.alone() && c.observer == nullptr;
    const Fp8Cast cast = casts ? a.lm_head.gradient_cast(bound) : Fp8Cast{};
    loss_of_chunk(c, a,
                  {.losses = chunk.of(a.losses),
                   .d_logits = chunk.logits,
                   .logits = chunk.logits,
                   .targets = chunk.of(args.targets),
                   .scale = args.scale,
                   .z_loss = args.z_loss,
                   .z_losses = chunk.of(args.z_losses),
                   .cast = cast});
    observe(c.observer, {.op = "cross_entropy",
                         .results = {chunk.of(a.losses), chunk.of(args.z_losses), chunk.logits},
                         .inputs = {chunk.logits}});
    a.lm_head.backward({.d_weight = args.gradients.lm_head,
                        .x = chunk.norm,
                        .d_logits = chunk.logits,
                        .cast = cast,
                        .bound = bound,
                        .accumulate = args.accumulate || chunk.begin > 0},
                       c.stream);
    observe(c.observer, {.op = "lm_head_backward",
                         .results = {args.gradients.lm_head, chunk.norm},
                         .inputs = {chunk.logits, chunk.norm},
                         .weights = {args.weights.lm_head}});
  });
  const Tensor& d_norm = a.norm;
  if (!c.tensor.alone()) {
    c.tensor.reduce_scatter(d_norm, a.all_norm, "lm_head");
    observe(c.observer, {.op = "lm_head_backward", .results = {d_norm}, .inputs = {a.all_norm}});
  }
  rms_norm_backward({.d_h = args.d_h,
                     .d_weight = args.gradients.norm,
                     .d_out = d_norm,
                     .d_residual = {},
                     .h = a.h,
                     .rstd = a.rstd,
                     .weight = args.weights.norm,
                     .amax = args.d_h_amax},
                    c.stream);
  observe(c.observer, {.op = "rms_norm_backward",
                       .results = {args.d_h, args.gradients.norm},
                       .inputs = {d_norm, a.h},
                       .weights = {args.weights.norm},
                       .parameter = kFinalNorm});
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
