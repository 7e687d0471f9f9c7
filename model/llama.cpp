#include "model/llama.h"

#include <algorithm>

#include "kernels/core/error.h"
#include "kernels/embedding.h"
#include "kernels/fp8_stats.h"
#include "kernels/reduce.h"

namespace octavo {

Llama::Llama(const LlamaOptions& options, const ParameterLayout& layout, const ParameterBuffers& parameters,
             Arena& arena, Stream& stream)
    : options_(options),
      stream_(&stream),
      embedding_(parameter_view(parameters.weight, layout.find("model.embed_tokens.weight"))),
      head_weights_(parameters.weight, layout, options.config),
      head_gradients_(head_weights_),
      head_activations_(options.config, options.shape, options.precision.compute, arena) {
  const ModelConfig& config = options.config;
  const BatchShape& shape = options.shape;
  const DType compute = options.precision.compute;
  const bool training = options.mode == LlamaMode::kTraining;
  sdpa_check_supported(config.head_dim, compute, stream.device());
  delta_ = arena.allocate("residual delta", compute, {shape.tokens(), config.hidden_size});
  rope_table_ = arena.allocate("rope table", DType::kFloat32, {shape.seq_len, config.head_dim});
  if (training) {
    d_embedding_ = parameter_view(parameters.grad, layout.find("model.embed_tokens.weight"));
    head_gradients_ = HeadParameters(parameters.grad, layout, config);
    block_gradients_ = std::make_unique<BlockGradients>(config, shape, compute, arena);
  }
  if (is_fp8(options.precision.linear)) {
    transients_ = std::make_unique<BlockTransients>(config, shape, compute, arena);
    scratch_ = std::make_unique<LinearScratch>(linear_shapes(config, shape), options.precision.linear, arena);
    amaxes_ = std::make_unique<AmaxTable>(options.precision, kLinearsPerBlock * config.num_layers, arena);
    if (options.fp8_stats) fp8_stats_ = std::make_unique<Fp8StatsTable>(kLinearsPerBlock * config.num_layers, arena);
  }
  for (int64_t layer = 0; layer < config.num_layers; ++layer) make_block(layer, layout, parameters, arena);

  const int64_t workspace_bytes = std::max({block_workspace_bytes(config, shape, options.precision, stream),
                                            head_workspace_bytes(config, shape, compute, stream),
                                            reduce_workspace_bytes(stream), fp8_stats_workspace_bytes(stream)});
  const Tensor workspace = arena.allocate("workspace", DType::kUInt8, {workspace_bytes});
  if (arena.planning()) return;
  stream.set_workspace(workspace);
  upload_rope_table();
}

void Llama::make_block(int64_t layer, const ParameterLayout& layout, const ParameterBuffers& parameters, Arena& arena) {
  const ModelConfig& config = options_.config;
  const PrecisionConfig& precision = options_.precision;
  const bool training = options_.mode == LlamaMode::kTraining;
  weights_.emplace_back(parameters.weight, layout, config, layer);
  if (training) gradients_.emplace_back(parameters.grad, layout, config, layer);
  linears_.push_back(make_linears(layer, arena));
  if (!training && layer > 0) return;
  // What several blocks share must not be kept for backward, so only blocks in FP8 use the transients.
  const bool transient = training ? is_fp8(precision.of_layer(layer, config.num_layers)) : transients_ != nullptr;
  activations_.emplace_back(config, options_.shape, precision.compute, transient ? transients_.get() : nullptr, arena);
}

BlockLinears Llama::make_linears(int64_t layer, Arena& arena) {
  const std::array<LinearShape, kLinearsPerBlock> shapes = linear_shapes(options_.config, options_.shape);
  const BlockParameters& w = weights_.back();
  const BlockParameters* g = gradients_.empty() ? nullptr : &gradients_.back();
  const auto make = [&](size_t i, const LinearNames& names, Tensor BlockParameters::*matrix) {
    const LinearOptions linear{.recipe = options_.precision.of_layer(layer, options_.config.num_layers),
                               .precision = options_.precision,
                               .shape = shapes[i],
                               .names = names,
                               .weight = w.*matrix,
                               .gradient = g != nullptr ? g->*matrix : Tensor(),
                               .amaxes = amaxes_.get(),
                               .stats = fp8_stats_.get(),
                               .index = layer * kLinearsPerBlock + static_cast<int64_t>(i),
                               .scratch = scratch_.get()};
    return LinearLayer(linear, arena);
  };
  return {.qkv = make(0, {"qkv", "qkv_d_x", "qkv_d_w"}, &BlockParameters::qkv),
          .o = make(1, {"o", "o_d_x", "o_d_w"}, &BlockParameters::o),
          .gate_up = make(2, {"gate_up", "gate_up_d_x", "gate_up_d_w"}, &BlockParameters::gate_up),
          .down = make(3, {"down", "down_d_x", "down_d_w"}, &BlockParameters::down)};
}

void Llama::upload_rope_table() {
  const Buffer host = Buffer::host(Device::kCpu, rope_table_.bytes());
  const Tensor host_table(host.data(), DType::kFloat32, {rope_table_.dim(0), rope_table_.dim(1)});
  rope_table(host_table, options_.config.rope_theta, options_.config.rope_scaling);
  stream_->copy(rope_table_, host_table);
  stream_->synchronize();  // the host table ends here
}

const BlockActivations& Llama::activations(size_t layer) const {
  return activations_[std::min(layer, activations_.size() - 1)];
}

void Llama::prepare_weights() {
  if (amaxes_) amaxes_->begin_weights(*stream_);
  for (BlockLinears& block : linears_) {
    for (LinearLayer* linear : {&block.qkv, &block.o, &block.gate_up, &block.down}) linear->prepare_weight(*stream_);
  }
}

void Llama::end_step(Communicator& communicator) {
  if (amaxes_) amaxes_->end_step(communicator, *stream_);
}

BlockContext Llama::context(const Tensor& document_start) const {
  return {options_.config, sdpa_shape(options_.config, options_.shape), rope_table_, document_start, *stream_};
}

Tensor Llama::forward_blocks(const MicroBatch& batch) {
  const BlockContext c = context(batch.document_start);
  embedding_forward({.out = activations(0).h0, .ids = batch.inputs, .table = embedding_}, *stream_);
  Tensor residual;
  for (size_t layer = 0; layer < weights_.size(); ++layer) {
    block_forward(c, weights_[layer], linears_[layer], residual, delta_, activations(layer));
    residual = activations(layer).h1;
  }
  return residual;
}

void Llama::forward(const MicroBatch& batch) {
  if (amaxes_) amaxes_->begin_micro_batch(true, *stream_);
  const BlockContext c = context(batch.document_start);
  const Tensor residual = forward_blocks(batch);
  head_norm_forward(c, head_weights_, residual, delta_, head_activations_);
  head_loss(c, head_weights_, batch.targets, head_activations_);
}

void Llama::forward_backward(const MicroBatch& batch, float scale, bool first) {
  CHECK(block_gradients_ != nullptr, "this model was made for inference");
  const BlockContext c = context(batch.document_start);
  if (first) zero_summed_gradients();
  if (amaxes_) amaxes_->begin_micro_batch(first, *stream_);
  const Tensor residual = forward_blocks(batch);
  head_norm_forward(c, head_weights_, residual, delta_, head_activations_);
  head_loss_backward(c, {.weights = head_weights_,
                         .gradients = head_gradients_,
                         .activations = head_activations_,
                         .targets = batch.targets,
                         .d_h = delta_,
                         .d_h_amax = linears_.back().down.gradient_amax(),
                         .scale = scale,
                         .accumulate = !first});
  backward_blocks(batch, !first);
}

void Llama::backward_blocks(const MicroBatch& batch, bool accumulate) {
  const BlockContext c = context(batch.document_start);
  for (size_t layer = weights_.size(); layer-- > 0;) {
    block_backward(c, {.weights = weights_[layer],
                       .gradients = gradients_[layer],
                       .linears = linears_[layer],
                       .activations = activations_[layer],
                       .scratch = *block_gradients_,
                       .d_h = delta_,
                       .d_h_amax = layer > 0 ? linears_[layer - 1].down.gradient_amax() : Tensor(),
                       .accumulate = accumulate});
  }
  embedding_backward({.d_table = d_embedding_, .d_out = delta_, .ids = batch.inputs, .order = batch.order}, *stream_);
}

// Gradients that ops only ever add to. A tied table is written first by lm_head's product, which sets it.
void Llama::zero_summed_gradients() {
  for (const BlockParameters& block : gradients_) stream_->zero(block.norms);
  stream_->zero(head_gradients_.norm);
  if (!options_.config.tie_word_embeddings) stream_->zero(d_embedding_);
}

Tensor Llama::next_token_logits(const Tensor& inputs, int64_t position) {
  const BlockContext c = context({});
  if (amaxes_) amaxes_->begin_micro_batch(true, *stream_);
  const Tensor residual = forward_blocks({.inputs = inputs, .targets = {}, .order = {}, .document_start = {}});
  head_norm_forward(c, head_weights_, residual, delta_, head_activations_);
  return head_logits(c, head_weights_, head_activations_, position);
}

}  // namespace octavo
