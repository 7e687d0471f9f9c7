// One transformer block of Llama (arXiv 2302.13971, 2407.21783), forward and backward:
//
//   h0 = residual + delta                      what the previous block left
//   h1 = h0 + o(attention(rope(qkv(norm1(h0)))))
//   out = h1 + down(swiglu(gate_up(norm2(h1))))
//
// The last addition is left to the next norm, which fuses it: a block hands on h1 as `residual` and the down product as
// `delta`. Queued on the stream of the context.
//
// Under tensor parallelism a rank has its heads and its part of the intermediate width (`config` is then its
// local_config), and between the linears its share of the tokens, [share]; alone the share is all tokens.
#pragma once

#include <array>
#include <functional>
#include <limits>

#include "kernels/sdpa.h"
#include "model/activation_checkpointing.h"
#include "model/config.h"
#include "model/linear_layer.h"
#include "model/parameters.h"

namespace octavo {

// The shapes a model runs at.
struct BatchShape {
  int64_t micro_batch_size = 0;  // sequences in one forward pass
  int64_t seq_len = 0;
  int64_t tensor_ranks = 1;  // that divide the layers and share the tokens between them
  int64_t tokens() const { return micro_batch_size * seq_len; }
  int64_t share() const { return tokens() / tensor_ranks; }
};

// A parameter somewhere: the weights as gathered, a gradient.
using ParameterView = std::function<Tensor(const ParameterSpec&)>;

// Views of the weights of a block, or of their gradients.
struct BlockParameters {
  BlockParameters(const ParameterView& view, const ParameterLayout& layout, const ModelConfig& config, int64_t layer);

  Tensor norm1;    // [hidden]
  Tensor norm2;    // [hidden]
  Tensor qkv;      // [(heads + 2 kv_heads) * head_dim, hidden]
  Tensor o;        // [hidden, heads * head_dim]
  Tensor gate_up;  // [2 * intermediate, hidden]
  Tensor down;     // [hidden, intermediate]
};

// The four linears of a block; they keep what their backward needs.
struct BlockLinears {
  LinearLayer qkv, o, gate_up, down;
};

// What forward saves for backward, besides what the linears keep of their inputs.
struct BlockActivations {
  struct Options {
    DType compute;
    Recompute recompute = Recompute::kNothing;
    bool reads_norms = true;  // backward reads norm1 and norm2 themselves, and not what the linears made of them
  };
  // What the block does not keep is in memory of `shared`.
  BlockActivations(const ModelConfig& config, const BatchShape& shape, const Options& options,
                   SharedActivations& shared, Arena& arena);

  Tensor h0;         // [share, hidden] the residual stream entering the block
  Tensor rstd1;      // [share] float32
  Tensor norm1;      // [share, hidden] input of qkv
  Tensor qkv;        // [tokens, qkv_width] rotated
  Tensor attention;  // [tokens, heads * head_dim] input of o
  Tensor lse;        // [batch, heads, seq_len] float32
  Tensor h1;         // [share, hidden] the residual stream between attention and MLP
  Tensor rstd2;      // [share] float32
  Tensor norm2;      // [share, hidden] input of gate_up
  Tensor gate_up;    // [tokens, 2 * intermediate]; backward overwrites it with its gradient
};

// What lives within one block's forward, or its backward; all blocks share it.
struct BlockScratch {
  // Without `gradients`, for forward alone.
  BlockScratch(const ModelConfig& config, const BatchShape& shape, DType compute, bool gradients, Arena& arena);

  Tensor d_norm;       // [share, hidden]
  Tensor d_qkv;        // [tokens, qkv_width]
  Tensor d_attention;  // [tokens, heads * head_dim]
  Tensor swiglu;       // [tokens, intermediate] input of down; in backward its gradient, and then it again
};

// What every block of a pass shares.
struct BlockContext {
  const ModelConfig& config;
  SdpaShape attention;
  Tensor rope_table;      // [seq_len, head_dim] float32
  Tensor document_start;  // optional [tokens] int32
  TensorGroup& tensor;
  Stream& stream;
  // Tokens from this one on are padding behind a single prompt: their rows are kept at zero, so that no scale that
  // tokens share sees them. None by default.
  int64_t padding_begin = std::numeric_limits<int64_t>::max();

  void clear_padding(const Tensor& rows) const;
};

class BlockWeights;

// Forward of one block. Again (`pass` kAgain, in the backward of a block that is recomputed), it makes the activations
// up to gate_up of activations.h0; delta is then scratch.
struct BlockForward {
  const BlockWeights& weights;
  BlockLinears& linears;
  const BlockActivations& activations;
  const BlockScratch& scratch;
  Tensor residual;  // [share, hidden]; undefined (the first block, and again): activations.h0 holds the input
  Tensor delta;     // [share, hidden]: in, what to add to the residual; out, the down product
  ForwardPass pass = ForwardPass::kFirst;
};
void block_forward(const BlockContext& context, const BlockForward& args);

// Backward of one block. Products write the weight gradients with =, or += when accumulating; norm gradients are
// always +=. It makes the inputs of linears that ask for it again on the way; block_forward, before, what else is not
// there.
struct BlockBackward {
  const BlockWeights& weights;
  const BlockParameters& gradients;
  BlockLinears& linears;
  const BlockActivations& activations;
  const BlockScratch& scratch;
  Tensor d_h;       // [share, hidden]: in, the gradient of the block's output; out, of its input
  Tensor d_h_amax;  // optional [1]: where the amax of the latter goes, for the block before
  bool accumulate = false;
};
void block_backward(const BlockContext& context, const BlockBackward& args);

// The shapes of the linears, in the order of BlockLinears.
std::array<LinearShape, kLinearsPerBlock> linear_shapes(const ModelConfig& config, const BatchShape& shape);

// Scratch of the block's ops.
int64_t block_workspace_bytes(const ModelConfig& config, const BatchShape& shape, const PrecisionConfig& precision,
                              Stream& stream);

SdpaShape sdpa_shape(const ModelConfig& config, const BatchShape& shape);

}  // namespace octavo
