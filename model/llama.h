// Llama: forward, loss and backward of micro-batches. Written once; ops run where the stream is.
//
// The object is a stage of the model: the blocks that the layout of its parameters has, with the embedding before the
// first block of the model and the head after the last one. A stage of all blocks is the whole model.
//
// The object borrows the parameters and takes its activations from the arena at construction; nothing is allocated
// later. All work is queued on the stream given at construction, and what moves between ranks beside it; results are
// there when the stream gets there. Where parameters are sharded, every pass is a collective.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/architecture/precision.h"
#include "model/block/block.h"
#include "model/block/kv_cache.h"
#include "model/head.h"
#include "model/parameters/block_weights.h"
#include "model/parameters/kv_copies.h"
#include "model/parameters/sharded_parameters.h"
#include "model/step_entries.h"

namespace octavo {

// A micro-batch on the stream's device; tensors of [tokens] int32.
struct MicroBatch {
  Tensor inputs;
  Tensor targets;       // -1: not counted
  Tensor order;         // positions sorted by input id, see EmbeddingBackward; unused without backward
  Documents documents;  // where the shape has a document mask
};

// Activations of one micro-batch in flight: everything that its forward leaves for its backward.
struct LlamaActivations {
  std::vector<BlockActivations> blocks;  // by layer of the stage
  // [share, hidden]. In forward, the part of the residual stream that the next norm is to add. In backward, the
  // gradient of the residual stream.
  Tensor delta;

  // Input of a stage without embedding, [share, hidden]. The caller writes it before a forward.
  const Tensor& input() const { return blocks.front().h0(); }
  // Edge of the stage, [share, hidden]. After a forward of a stage without head it holds the output, and before the
  // backward the caller writes the gradient of the output here. After the backward of a stage without embedding it
  // holds the gradient of the input.
  const Tensor& edge() const { return delta; }
};

// In inference mode one block's activations serve all blocks, and forward_backward() is not available.
struct LlamaOptions {
  ModelConfig config;
  BatchShape shape;
  PrecisionConfig precision;
  LlamaMode mode = LlamaMode::kTraining;
  bool fp8_stats = false;        // with room for statistics of the casts, in FP8
  const Mesh* mesh = nullptr;    // of which shape.context is the place; borrowed; null: one rank
  ParallelConfig parallel = {};  // how tensor-parallel ranks overlap their collectives
  ActivationCheckpointing checkpointing = {.mode = ActivationCheckpointing::Mode::kNone};  // not auto; in training
  float z_loss = 0;             // its coefficient (CrossEntropy), in training
  int64_t in_flight = 1;        // micro-batches that have activations at a time, at most; in training
  KvCache* cache = nullptr;     // for last_logits(), in inference without FP8; borrowed, several models may share it
  int64_t workspace_bytes = 0;  // of the stream's workspace, at least
};

// The micro-batches of a step, for Llama::run().
struct StepBatches {
  int64_t count = 1;
  std::function<MicroBatch(int64_t micro_batch)> micro_batch;
  float scale = 1;
  // Function that is called when losses() and z_losses() of a micro-batch are queued. The next forward overwrites them.
  std::function<void(int64_t micro_batch)> after_losses = {};
};

class Llama {
 public:
  // `parameters` must outlive the model. Throws InputError when the device has no kernel for the shape.
  Llama(const LlamaOptions& options, ShardedParameters& parameters, Arena& arena, Stream& stream);
  // Its linears point into it.
  Llama(const Llama&) = delete;
  Llama& operator=(const Llama&) = delete;

  // losses() = the loss of every token; the same on all tensor-parallel ranks.
  void forward(const MicroBatch& batch);

  // Queues entries of a step in order; step_entries() of the step, with as many micro-batches in flight as the model
  // has activations for, are all of them. A forward makes losses() as forward(const MicroBatch&) does, and z_losses().
  // The gradient of scale * (the sum of both) goes into the gradient shards: = from the first micro-batch of the step,
  // += from the later ones. Gradients are complete, over all ranks, when the reductions of the last micro-batch are
  // finished.
  void run(std::span<const StepEntry> entries, const StepBatches& step);

  // Queues forward and backward of one micro-batch.
  void forward_backward(const MicroBatch& batch, float scale, bool first, bool last);

  // Does forward_backward() of a step of one micro-batch, or of `several`, with a scale of 0 and over one block of each
  // kind: every kernel of the step runs, so that none is loaded, planned or timed later, but few run often. What it
  // leaves in the gradients is overwritten by a first micro-batch.
  void warm_up(const MicroBatch& batch, bool several);

  // Logits [micro_batch_size, vocab] of the last token of each sequence of `inputs` [tokens] int32, which is one
  // sequence, or sequences of one token; valid until the next pass. With a cache the tokens follow what it holds, and
  // it holds them as well afterwards. Without tensor parallelism.
  Tensor last_logits(const Tensor& inputs);

  // Called after the last micro-batch of a step. Delayed scaling takes the amaxes of the step into the history, unless
  // the step is skipped (AmaxTable::end_step).
  void end_step(const Tensor& skip);

  // Beside the one given at construction: that on which tensor-parallel ranks share tokens.
  Stream& token_transfers() { return tensor_.transfers(); }

  const LlamaActivations& activations(int64_t in_flight) const { return in_flight_[static_cast<size_t>(in_flight)]; }
  const Tensor& losses() const { return losses_; }      // [tokens] float32; undefined without a head
  const Tensor& z_losses() const { return z_losses_; }  // the same; undefined without a z_loss
  const ModelConfig& config() const { return options_.config; }
  const BatchShape& shape() const { return options_.shape; }
  // Null but for per-tensor FP8 recipes.
  AmaxTable* amaxes() { return amaxes_.get(); }
  // For ShardedParameters::publish() and set().
  WeightCasts weight_casts() { return {amaxes_.get(), fp8_stats_.get(), all_ranks()}; }
  // Null without FP8, or unless LlamaOptions ask for it.
  Fp8StatsTable* fp8_stats() { return fp8_stats_.get(); }

 private:
  void make_gradients(Arena& arena);
  void make_fp8_tables(Arena& arena);
  void make_scratch(Arena& arena);
  void make_block(size_t layer, Arena& arena);
  BlockWeights make_weights(size_t layer, Arena& arena);
  LinearLayer make_linear(size_t layer, size_t i);
  BlockActivations make_activations(size_t layer, int64_t in_flight, const std::vector<LinearLayer>& linears,
                                    Arena& arena);
  size_t linear_of(const char* name) const;
  LinearPrecision recipe_of(size_t layer) const;
  bool training() const { return options_.mode == LlamaMode::kTraining; }
  void upload_rope_table();
  BlockContext context(const Documents& documents);
  const ParameterLayout& layout() const { return parameters_->layout(); }
  bool is_whole() const { return layout().has_embedding() && layout().has_head(); }
  // The number in the model of a layer of the stage.
  int64_t number_of(size_t layer) const { return layout().stage().begin + static_cast<int64_t>(layer); }
  size_t unit_of(size_t layer) const { return layout().block_unit(number_of(layer)); }
  // The place of a linear in the tables of amaxes and statistics.
  int64_t table_index(size_t layer, size_t linear) const {
    return static_cast<int64_t>(layer * linears_.size() + linear);
  }
  // Layers of the stage in rising order, from 0: all, but to warm up.
  using Layers = std::vector<size_t>;
  Layers layers_of_each_kind() const;
  // A micro-batch with its activations and the layers to run.
  struct Work {
    const LlamaActivations& a;
    const MicroBatch& batch;
    MicroBatchPlace place;
    const Layers& layers;
  };
  void run(const StepEntry& entry, const StepBatches& step);
  void forward_backward(const MicroBatch& batch, float scale, const MicroBatchPlace& place, const Layers& layers);
  void forward_training(const Work& work, float scale);
  void backward_training(const Work& work);
  void measure_gradient(const LlamaActivations& a);
  // Embedding and blocks; returns the last block's h1, to which a.delta is still to be added.
  Tensor forward_blocks(const MicroBatch& batch, const LlamaActivations& a, const BlockContext& c,
                        const Layers& layers);
  void backward_blocks(const Work& work, const BlockContext& c);
  bool runs_again(size_t layer) const;
  ForwardPass input_pass(size_t layer, Producer producer) const;
  void finish_block(size_t layer, const MicroBatchPlace& place);
  void run_head(const Work& work, const BlockContext& c, const Tensor& residual, float scale);
  void forward_embedding(const MicroBatch& batch, const Tensor& h0);
  void backward_embedding(const Work& work);
  Tensor all_tokens() const;
  int64_t vocab_begin() const { return tensor_.rank() * local_.vocab_size; }

  // Null for one rank.
  Communicator* all_ranks() const { return options_.mesh != nullptr ? &options_.mesh->world() : nullptr; }

  LlamaOptions options_;
  ShardedParameters* parameters_;
  Fsdp* fsdp_;
  Stream* stream_;
  TensorGroup tensor_;
  ContextGroup sequences_;
  ModelConfig local_;  // this rank's part of the model
  Tensor embedding_;
  Tensor d_embedding_;  // undefined where the gradients of tokens are exchanged
  HeadParameters head_weights_;
  HeadParameters head_gradients_;
  // Blocks and head take turns in one stretch of memory.
  std::unique_ptr<LinearScratch> linear_scratch_;
  std::unique_ptr<BlockScratch> block_scratch_;
  std::unique_ptr<HeadActivations> head_activations_;
  Tensor losses_;      // [tokens] float32
  Tensor z_losses_;    // the same, where there is a z_loss
  Tensor rope_table_;  // [seq_len or the cache's capacity, head_dim] float32, of the positions of this rank's tokens
  Tensor workspace_;   // of the stream's ops

  Layers layers_;  // all

  std::vector<LinearSpec> linears_;  // of a block

  // By layer of the stage.
  std::vector<BlockWeights> weights_;
  std::vector<Block> blocks_;
  std::vector<Recompute> recompute_;  // in training

  std::vector<LlamaActivations> in_flight_;

  // Shared by the blocks, where there is use for them.
  SharedActivations shared_activations_;
  // By linear, of blocks that do not keep them.
  std::vector<std::unique_ptr<LinearInput>> shared_inputs_, shared_fp8_inputs_;
  std::unique_ptr<BlockWeightMemory> weight_memory_;  // in FP8
  std::unique_ptr<AmaxTable> amaxes_;                 // of per-tensor recipes
  std::unique_ptr<Fp8StatsTable> fp8_stats_;          // in FP8, where asked for
  std::unique_ptr<KvCopies> kv_copies_;               // where kv heads have copies
};

}  // namespace octavo
