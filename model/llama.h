// Llama: forward, loss and backward of one micro-batch. Written once; ops run where the stream is.
//
// The object borrows the parameter buffers and takes its activations from the arena at construction; nothing is
// allocated later. All work is queued on the stream given at construction; results are there when it gets there.
#pragma once

#include <memory>
#include <vector>

#include "model/block.h"
#include "model/head.h"
#include "model/precision.h"

namespace octavo {

// A micro-batch on the stream's device; [tokens] int32 each.
struct MicroBatch {
  Tensor inputs;
  Tensor targets;         // -1: not counted
  Tensor order;           // positions sorted by input id, see EmbeddingBackward; unused without backward
  Tensor document_start;  // optional, see SdpaForward
};

// In inference mode one block's activations serve all blocks, and forward_backward() is not available.
class Llama {
 public:
  // `parameters` must outlive the model. Throws InputError when the device has no kernel for the shape.
  Llama(const ModelConfig& config, const BatchShape& shape, LlamaMode mode, const ParameterLayout& layout,
        const ParameterBuffers& parameters, Arena& arena, Stream& stream);

  // losses() = the loss of every token.
  void forward(const MicroBatch& batch);

  // losses() as forward(), and the gradient of scale * sum(losses) into the gradient buffer: = when `first`, += after.
  void forward_backward(const MicroBatch& batch, float scale, bool first);

  // Logits [vocab] of one position of a forward pass over `inputs` [tokens] int32.
  Tensor next_token_logits(const Tensor& inputs, int64_t position);

  const Tensor& losses() const { return head_activations_.losses; }  // [tokens] float32
  const ModelConfig& config() const { return config_; }
  const BatchShape& shape() const { return shape_; }

 private:
  BlockContext context(const Tensor& document_start) const;
  // Embedding and blocks; returns the last block's h1, to which delta_ is still to be added.
  Tensor forward_blocks(const MicroBatch& batch);
  void backward_blocks(const MicroBatch& batch, bool accumulate);
  void zero_summed_gradients();

  ModelConfig config_;
  BatchShape shape_;
  Stream* stream_;
  Tensor embedding_;
  Tensor d_embedding_;
  std::vector<BlockParameters> weights_;
  std::vector<BlockParameters> gradients_;
  HeadParameters head_weights_;
  HeadParameters head_gradients_;
  std::vector<BlockActivations> activations_;
  HeadActivations head_activations_;
  std::vector<BlockGradients> block_gradients_;  // one in training, none in inference
  Tensor delta_;                                 // [tokens, hidden]; in backward, the gradient of the residual stream
  Tensor rope_table_;
};

}  // namespace octavo
