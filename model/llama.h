// Llama: forward, loss and backward of micro-batches, written once for all devices.
//
// An object is a stage of the model: the blocks in the layout of its parameters, with the embedding before the first
// block of the model and the head after the last one. A stage with all blocks is the whole model. If the mesh has
// several pipeline stages, the object exchanges activations and gradients with the stages before and after it. The
// blocks of a stage are one or several chunks of consecutive blocks, which run one at a time.
//
// The object borrows the parameters and takes its activations from the arena at construction; it allocates nothing
// later. All work is queued on the stream given at construction, except transfers between ranks, which run on other
// streams. Results are ready when that stream reaches them. If parameters are sharded, every pass is a collective.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/architecture/layer_spec.h"
#include "model/block/block.h"
#include "model/head.h"
#include "model/parameters/block_weights.h"
#include "model/parameters/kv_copies.h"
#include "model/parameters/sharded_parameters.h"
#include "model/pipeline_schedule.h"
#include "parallel/pipeline_group.h"

namespace octavo {

// A micro-batch on the stream's device. The tensors are [tokens] int32.
struct MicroBatch {
  Tensor inputs;
  Tensor targets;  // Id of the token after each input. -1 is ignored in the loss.
  // Token positions sorted by input id (EmbeddingBackward). Not read without a backward pass.
  Tensor order;
  Documents documents;  // Documents of the tokens, if the shape has a document mask.
};

// Activations of one micro-batch in flight in a chunk of blocks: everything that the forward saves for the backward.
// `local_tokens` is BatchShape::local_tokens().
struct LlamaActivations {
  size_t first_layer = 0;                // First layer of the chunk, counted over the layers of the stage.
  std::vector<BlockActivations> blocks;  // Activations of the blocks of the chunk.
  // [local_tokens, hidden]. In forward, the part of the residual stream that the next norm adds. In backward, the
  // gradient of the residual stream.
  Tensor delta;

  // Returns the activations of a layer of the stage.
  const BlockActivations& block(size_t layer) const { return blocks[layer - first_layer]; }
  // Input of a chunk without embedding, [local_tokens, hidden]. It is received before the forward.
  const Tensor& input() const { return blocks.front().h0(); }
  // Boundary of the chunk, [local_tokens, hidden]: its output after the forward of a chunk without head, the gradient
  // of the output before the backward, and the gradient of the input after the backward of a chunk without embedding.
  const Tensor& boundary() const { return delta; }
};

// Options of a model. For inference one block's activations serve all blocks, and forward_backward() is not available.
struct LlamaOptions {
  ModelConfig config;
  BatchShape shape;
  PrecisionConfig precision;
  LlamaMode mode = LlamaMode::kTraining;
  bool fp8_stats = false;  // Whether to allocate statistics of the FP8 casts.
  // Borrowed. Null: one rank.
  // Requires: shape.context is this rank's position in the mesh.
  const Mesh* mesh = nullptr;
  // Activation checkpointing in training.
  // Requires: the mode is not auto.
  ActivationCheckpointing checkpointing = {.mode = ActivationCheckpointing::Mode::kNone};
  float z_loss = 0;  // Coefficient of the z-loss (CrossEntropy) in training.
  // Training only. For each chunk of the stage, the maximum number of micro-batches that have activations at a time.
  // Empty: 1 for each chunk.
  std::vector<int64_t> in_flight = {};
  // Training only. Whether run() is given entries kBackwardInput and kBackwardWeights. Each micro-batch in flight then
  // has memory for the operands of all weight gradients of the blocks.
  bool splits_backward = false;
  int64_t workspace_bytes = 0;  // Minimum size of the stream's workspace.
};

// Micro-batches of a step, for Llama::run().
struct StepBatches {
  int64_t count = 1;
  std::function<MicroBatch(int64_t micro_batch)> micro_batch;
  float scale = 1;
  // Called when losses() and z_losses() of a micro-batch have been queued. The next forward overwrites them.
  std::function<void(int64_t micro_batch)> after_losses = {};
};

class Llama {
 public:
  // Throws an InputError if the device has no kernel for the shape.
  // Requires: `parameters` outlives the model.
  Llama(const LlamaOptions& options, ShardedParameters& parameters, Arena& arena, Stream& stream);
  // The object is not movable, because its linear layers point into it.
  Llama(const Llama&) = delete;
  Llama& operator=(const Llama&) = delete;

  // Computes losses(), the loss of every token, on stages with the head. All tensor-parallel ranks get the same values.
  void forward(const MicroBatch& batch);

  // Queues entries of a step in order. All entries of a step are step_entries() with LlamaOptions::in_flight, or
  // pipeline_entries() of this stage (model/pipeline_schedule.h). A forward entry with the head also runs the head's
  // backward, and computes losses() and z_losses(). The gradient of scale * sum(losses + z-losses) goes into the
  // gradient shards, with = for the first micro-batch of the step and += for the later ones. The gradients are complete
  // over all ranks after ShardedParameters::finish_gradients().
  void run(std::span<const StepEntry> entries, const StepBatches& step);

  // Queues forward and backward of one micro-batch. `first` and `last` say whether it is the first or last of its step.
  void forward_backward(const MicroBatch& batch, float scale, bool first, bool last);

  // Runs forward_backward() for a step of one micro-batch, or of two if `several`, with a scale of 0 and over one block
  // of each kind. So every kernel of a step runs once, and none must be loaded, planned or timed later. The first
  // micro-batch of the next step overwrites the gradients. With pipeline stages on GPUs, call warm_up() before run().
  // Otherwise run() would load kernels while transfers are in progress, and might wait forever.
  void warm_up(const MicroBatch& batch, bool several);

  // Returns the logits [1, vocab] of one token of `inputs` [tokens] int32, valid until the next pass. Later tokens of
  // the sequence do not change the logits.
  // Requires: there is a single tensor-parallel rank, and the stage has all blocks.
  Tensor logits_of(int64_t token, const Tensor& inputs);

  // Sets the observer that sees the results of all operations from now on. Borrowed; null removes it.
  void observe_results(ResultObserver* observer);

  // Forgets micro-batches that belong to no step. Keeps their amaxes out of the history, finishes the reductions of
  // their gradients, and makes the next step gather, cast and measure all weights.
  // Requires: called after the last of these micro-batches.
  void forget_micro_batches();

  // Ends a step. Delayed scaling adds the amaxes of the step to its history, unless `skip` says that the step is
  // skipped (AmaxTable::end_step). Requires: called after the last micro-batch of the step.
  void end_step(const Tensor& skip);

  // Returns the streams of the transfers between pipeline stages.
  std::vector<Stream*> stage_transfers() { return pipeline_->streams(); }
  // Returns the stream on which tensor-parallel ranks transfer tokens.
  Stream& token_transfers() { return tensor_.transfers(); }
  // Returns the stream on which ranks that share sequences transfer keys, values and their gradients.
  Stream& key_transfers() { return sequences_.transfers(); }

  const Tensor& losses() const { return losses_; }      // [tokens] float32. Undefined without a head.
  const Tensor& z_losses() const { return z_losses_; }  // [tokens] float32. Undefined without a z-loss.
  const ModelConfig& config() const { return options_.config; }
  const BatchShape& shape() const { return options_.shape; }
  // Returns the table of amaxes. Null unless the recipe is a per-tensor FP8 recipe.
  AmaxTable* amaxes() { return amaxes_.get(); }
  // Returns the argument of ShardedParameters::cast_fp8_weights() and cast_weights().
  WeightCasts weight_casts() { return {amaxes_.get(), fp8_stats_.get(), all_ranks()}; }
  // Returns the FP8 statistics. Null without FP8 or without LlamaOptions::fp8_stats.
  Fp8StatsTable* fp8_stats() { return fp8_stats_.get(); }

 private:
  void make_gradients(Arena& arena);
  void make_fp8_tables(Arena& arena);
  void make_scratch(Arena& arena);
  // Layers of the stage in rising order, counted from 0.
  using Layers = std::vector<size_t>;
  // Consecutive layers of the stage that an entry runs, with the embedding before the first block of the model and the
  // head after the last one.
  struct Chunk {
    Layers layers;
    bool has_embedding = false;
    bool has_head = false;
    size_t first_slot = 0;  // Index in in_flight_ of the activations of the first micro-batch.
    int64_t in_flight = 1;  // Maximum number of micro-batches that have activations.
  };
  void make_chunks();
  void make_block(const Chunk& chunk, size_t layer, Arena& arena);
  BlockWeights make_weights(size_t layer, Arena& arena);
  LinearLayer make_linear(size_t layer, size_t i);
  BlockActivations make_activations(size_t layer, int64_t slot, const std::vector<LinearLayer>& linears, Arena& arena);
  size_t linear_of(const char* name) const;
  bool training() const { return options_.mode == LlamaMode::kTraining; }
  void upload_rope_table();
  BlockContext context(const Documents& documents);
  void begin_part(int64_t layer) const {
    if (observer_ != nullptr) observer_->begin_part(layer);
  }
  const ParameterLayout& layout() const { return parameters_->layout(); }
  bool is_whole() const { return layout().has_embedding() && layout().has_head(); }
  // Returns the index in the model of a layer of the stage.
  int64_t number_of(size_t layer) const { return layout().layers()[layer]; }
  size_t unit_of(size_t layer) const { return layout().block_unit(number_of(layer)); }
  // Returns the index of a linear in the tables of amaxes and statistics, which have the linears of the whole model.
  int64_t table_index(size_t layer, size_t linear) const {
    return number_of(layer) * std::ssize(linears_) + static_cast<int64_t>(linear);
  }
  Layers layers_of_each_kind(const Chunk& chunk) const;
  bool is_first(const Chunk& chunk) const { return &chunk == &chunks_.front(); }
  const Chunk& chunk_of(const StepEntry& entry) const { return chunks_[static_cast<size_t>(entry.chunk)]; }
  size_t slot_of(const StepEntry& entry) const {
    const Chunk& chunk = chunk_of(entry);
    return chunk.first_slot + static_cast<size_t>(entry.micro_batch % chunk.in_flight);
  }
  // A micro-batch in a chunk with its activations.
  struct Work {
    const Chunk& chunk;
    const LlamaActivations& a;
    const MicroBatch& batch;
    MicroBatchPosition position = {};
    const Layers& layers;  // Layers to run: all layers of the chunk, except while warming up.
    // Unit of weights that the next entry uses first, gathered when this entry needs no more weights.
    std::optional<size_t> next_unit = {};
  };
  Work work_of(const Chunk& chunk, const MicroBatch& batch) const {
    return {.chunk = chunk, .a = in_flight_[chunk.first_slot], .batch = batch, .layers = chunk.layers};
  }
  // Queues an entry. `next` is the entry after this one, or null.
  void run_entry(const StepEntry& entry, const StepEntry* next, const StepBatches& step);
  // Returns the unit whose weights the entry uses first. Empty for kBackwardWeights, which uses no weights.
  std::optional<size_t> first_unit(const StepEntry& entry) const;
  void receive(StepEntry::Kind kind, const Work& work);
  void post(const StepEntry& entry);
  void send(StepEntry::Kind kind, const Work& work);
  void warm_up_micro_batch(const MicroBatch& batch, const MicroBatchPosition& position);
  void forward_training(const Work& work, float scale);
  void backward_training(const Work& work, bool saves_operands);
  void backward_weights(const Work& work);
  void measure_gradient(const Work& work);
  void add_residual(const LlamaActivations& a, const Tensor& residual);
  // Runs embedding and blocks. Returns the last block's h1, to which a.delta must still be added.
  Tensor forward_blocks(const Work& work, const BlockContext& c);
  void backward_blocks(const Work& work, const BlockContext& c, bool saves_operands);
  bool runs_again(size_t layer) const;
  void finish_block(size_t layer, const MicroBatchPosition& position);
  void run_head(const Work& work, const BlockContext& c, const Tensor& residual, float scale);
  void forward_embedding(const MicroBatch& batch, const Tensor& h0);
  void backward_embedding(const Work& work);
  Tensor all_tokens() const;
  int64_t vocab_begin() const { return tensor_.rank() * local_.vocab_size; }

  // Returns the communicator of all ranks. Null for one rank.
  Communicator* all_ranks() const { return options_.mesh != nullptr ? &options_.mesh->world() : nullptr; }

  LlamaOptions options_;
  ShardedParameters* parameters_;
  Fsdp* fsdp_;
  Stream* stream_;
  TensorGroup tensor_;
  ContextGroup sequences_;
  std::unique_ptr<PipelineGroup> pipeline_;
  ModelConfig local_;  // Config of this rank's part of the model.
  Tensor embedding_;
  // Gradient of the embedding table. An undefined tensor if the ranks exchange the gradients of their tokens instead of
  // the gradient of the table (Fsdp::takes_tokens()).
  Tensor d_embedding_;
  HeadParameters head_weights_;
  HeadParameters head_gradients_;
  // Scratch and activations that share memory, because blocks and head do not run at the same time.
  std::unique_ptr<LinearScratch> linear_scratch_;
  std::unique_ptr<BlockScratch> block_scratch_;
  std::unique_ptr<HeadActivations> head_activations_;
  Tensor losses_;    // [tokens] float32
  Tensor z_losses_;  // [tokens] float32. Undefined without a z-loss.
  // [seq_len, head_dim] float32, for the positions of this rank's tokens.
  Tensor rope_table_;
  Tensor workspace_;  // Workspace of the stream's ops.

  std::vector<Chunk> chunks_;

  std::vector<LinearSpec> linears_;  // Specifications of a block's linear layers.

  // Weights of the blocks, by layer of the stage.
  std::vector<BlockWeights> weights_;
  std::vector<Block> blocks_;
  std::vector<LayerSpec> specs_;  // Specs of the layers of the stage.

  std::vector<LlamaActivations> in_flight_;  // Activations of the micro-batches in flight, chunk by chunk.

  // Activations that blocks share if they do not save them.
  SharedActivations shared_activations_;
  std::unique_ptr<BlockWeightMemory> weight_memory_;  // Memory for the FP8 operands that blocks share. FP8 only.
  std::unique_ptr<AmaxTable> amaxes_;                 // Table of amaxes. Per-tensor FP8 recipes only.
  std::unique_ptr<Fp8StatsTable> fp8_stats_;          // Statistics of FP8 casts, if LlamaOptions ask for them.
  // Gradients of kv heads that several ranks hold, if there are any.
  std::unique_ptr<KvCopies> kv_copies_;
  ResultObserver* observer_ = nullptr;
};

}  // namespace octavo
