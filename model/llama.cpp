#include "model/llama.h"

#include <algorithm>

#include "kernels/core/error.h"
#include "kernels/embedding.h"
#include "kernels/reduce.h"

namespace octavo {

Llama::Llama(const ModelConfig& config, const BatchShape& shape, LlamaMode mode, const ParameterLayout& layout,
             const ParameterBuffers& parameters, Arena& arena, Stream& stream)
    : config_(config),
      shape_(shape),
      stream_(&stream),
      embedding_(parameter_view(parameters.weight, layout.find("model.embed_tokens.weight"))),
      head_weights_(parameters.weight, layout, config),
      head_gradients_(head_weights_),
      head_activations_(config, shape, parameters.weight.dtype(), arena) {
  const DType compute = parameters.weight.dtype();
  sdpa_check_supported(config.head_dim, compute, stream.device());
  delta_ = arena.allocate("residual delta", compute, {shape.tokens(), config.hidden_size});
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    weights_.emplace_back(parameters.weight, layout, config, layer);
    if (mode == LlamaMode::kTraining || layer == 0) activations_.emplace_back(config, shape, compute, arena);
  }
  if (mode == LlamaMode::kTraining) {
    d_embedding_ = parameter_view(parameters.grad, layout.find("model.embed_tokens.weight"));
    head_gradients_ = HeadParameters(parameters.grad, layout, config);
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      gradients_.emplace_back(parameters.grad, layout, config, layer);
    }
    block_gradients_.emplace_back(config, shape, compute, arena);
  }

  rope_table_ = arena.allocate("rope table", DType::kFloat32, {shape.seq_len, config.head_dim});
  const int64_t workspace_bytes =
      std::max({block_workspace_bytes(config, shape, compute, stream),
                head_workspace_bytes(config, shape, compute, stream), reduce_workspace_bytes(stream)});
  const Tensor workspace = arena.allocate("workspace", DType::kUInt8, {workspace_bytes});
  if (arena.planning()) return;
  stream.set_workspace(workspace);
  const Buffer host = Buffer::host(Device::kCpu, rope_table_.bytes());
  const Tensor host_table(host.data(), DType::kFloat32, {shape.seq_len, config.head_dim});
  rope_table(host_table, config.rope_theta, config.rope_scaling);
  stream.copy(rope_table_, host_table);
  stream.synchronize();  // the host table ends here
}

BlockContext Llama::context(const Tensor& document_start) const {
  return {config_, sdpa_shape(config_, shape_), rope_table_, document_start, *stream_};
}

Tensor Llama::forward_blocks(const MicroBatch& batch) {
  const BlockContext c = context(batch.document_start);
  const auto activations = [&](size_t layer) -> const BlockActivations& {
    return activations_[std::min(layer, activations_.size() - 1)];
  };
  embedding_forward({.out = activations(0).h0, .ids = batch.inputs, .table = embedding_}, *stream_);
  Tensor residual;
  for (size_t layer = 0; layer < weights_.size(); ++layer) {
    block_forward(c, weights_[layer], residual, delta_, activations(layer));
    residual = activations(layer).h1;
  }
  return residual;
}

void Llama::forward(const MicroBatch& batch) {
  const BlockContext c = context(batch.document_start);
  const Tensor residual = forward_blocks(batch);
  head_norm_forward(c, head_weights_, residual, delta_, head_activations_);
  head_loss(c, head_weights_, batch.targets, head_activations_);
}

void Llama::forward_backward(const MicroBatch& batch, float scale, bool first) {
  CHECK(!block_gradients_.empty(), "this model was made for inference");
  const BlockContext c = context(batch.document_start);
  if (first) zero_summed_gradients();
  const Tensor residual = forward_blocks(batch);
  head_norm_forward(c, head_weights_, residual, delta_, head_activations_);
  head_loss_backward(c, {.weights = head_weights_,
                         .gradients = head_gradients_,
                         .activations = head_activations_,
                         .targets = batch.targets,
                         .d_h = delta_,
                         .scale = scale,
                         .accumulate = !first});
  backward_blocks(batch, !first);
}

void Llama::backward_blocks(const MicroBatch& batch, bool accumulate) {
  const BlockContext c = context(batch.document_start);
  const Tensor& d_h = delta_;
  for (size_t layer = weights_.size(); layer-- > 0;) {
    block_backward(c, weights_[layer], gradients_[layer], activations_[layer], block_gradients_[0], d_h, accumulate);
  }
  embedding_backward({.d_table = d_embedding_, .d_out = d_h, .ids = batch.inputs, .order = batch.order}, *stream_);
}

// Gradients that ops only ever add to. A tied table is written first by lm_head's product, which sets it.
void Llama::zero_summed_gradients() {
  for (const BlockParameters& block : gradients_) stream_->zero(block.norms);
  stream_->zero(head_gradients_.norm);
  if (!config_.tie_word_embeddings) stream_->zero(d_embedding_);
}

Tensor Llama::next_token_logits(const Tensor& inputs, int64_t position) {
  const BlockContext c = context({});
  const Tensor residual = forward_blocks({.inputs = inputs, .targets = {}, .order = {}, .document_start = {}});
  head_norm_forward(c, head_weights_, residual, delta_, head_activations_);
  return head_logits(c, head_weights_, head_activations_, position);
}

}  // namespace octavo
