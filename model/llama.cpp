#include "model/llama.h"

#include <algorithm>
#include <optional>
#include <ranges>
#include <set>
#include <tuple>

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/layers/embedding.h"
#include "kernels/math/sum_terms.h"

namespace octavo {

namespace {

// Returns what an entry transfers at one boundary of its chunk. Nothing is transferred at the ends of the model, and
// the gradients of weights stay in their stage.
std::optional<StageData> transferred(StepEntry::Kind kind, bool forward_ends, bool backward_ends) {
  switch (kind) {
    case StepEntry::Kind::kForward:
      return forward_ends ? std::nullopt : std::optional(StageData::kActivations);
    case StepEntry::Kind::kBackward:
    case StepEntry::Kind::kBackwardInput:
      return backward_ends ? std::nullopt : std::optional(StageData::kGradients);
    case StepEntry::Kind::kBackwardWeights:
      break;
  }
  return std::nullopt;
}

}  // namespace

void Llama::observe_results(ResultObserver* observer) {
  observer_ = observer;
  linear_scratch_->observer = observer;
}

void Llama::forget_micro_batches() {
  if (amaxes_) amaxes_->forget_micro_batches(*stream_);
  fsdp_->finish_reductions();
  fsdp_->weights_changed();
}

void Llama::end_step(const Tensor& skip) {
  if (amaxes_) amaxes_->end_step(skip, all_ranks(), *stream_);
}

BlockContext Llama::context(const Documents& documents) {
  return {.config = local_,
          .attention = sdpa_shape(local_, options_.shape),
          .rope_table = rope_table_,
          .documents = documents,
          .tensor = tensor_,
          .stream = *stream_,
          .sequences = sequences_,
          .observer = observer_};
}

// Returns memory for one row of hidden_size per token of all tensor-parallel ranks.
Tensor Llama::all_tokens() const {
  if (tensor_.alone()) return {};
  const int64_t tokens = options_.shape.tokens();
  const int64_t hidden = options_.config.hidden_size;
  return linear_scratch_->exchange.rows(0, tokens * hidden).view({tokens, hidden});
}

// Each rank looks up the tokens in its part of the vocabulary. The rows of other tokens are zero, and the ranks' rows
// are summed.
void Llama::forward_embedding(const MicroBatch& batch, const Tensor& h0) {
  begin_part(ResultObserver::kEmbedding);
  fsdp_->use(ParameterLayout::kEmbedding);
  const ProfilerRange range(*stream_, "embedding");
  const Tensor rows = tensor_.alone() ? h0 : all_tokens();
  embedding_forward({.out = rows,
                     .ids = batch.inputs,
                     .table = embedding_,
                     .vocab_begin = vocab_begin(),
                     .share = 1.0 / tensor_.size()},
                    *stream_);
  if (!tensor_.alone()) tensor_.reduce_scatter(h0, rows, "embedding");
  observe(observer_, {.op = "embedding_forward", .results = {h0}, .weights = {embedding_}});
  fsdp_->release(ParameterLayout::kEmbedding);
}

Tensor Llama::forward_blocks(const Work& work, const BlockContext& c) {
  const ProfilerRange forward(*stream_, "forward");
  const LlamaActivations& a = work.a;
  const Layers& layers = work.layers;
  fsdp_->gather(ParameterLayout::kNorms);
  if (work.chunk.has_embedding) fsdp_->gather(ParameterLayout::kEmbedding);
  fsdp_->gather(unit_of(layers.front()));
  fsdp_->use(ParameterLayout::kNorms);
  if (work.chunk.has_embedding) forward_embedding(work.batch, a.input());
  Tensor residual;
  for (size_t i = 0; i < layers.size(); ++i) {
    const size_t layer = layers[i];
    const size_t unit = unit_of(layer);
    const ProfilerRange range(*stream_, fsdp_->name(unit));
    begin_part(number_of(layer));
    const bool gathered = fsdp_->use(unit);
    if (i + 1 < layers.size()) {
      fsdp_->gather(unit_of(layers[i + 1]));
    } else if (work.chunk.has_head) {
      fsdp_->gather(layout().head_unit());
    }
    weights_[layer].prepare_forward(gathered, *stream_);
    blocks_[layer].forward(c, a.block(layer), residual, a.delta);
    fsdp_->release(unit);
    residual = a.block(layer).h1();
  }
  return residual;
}

void Llama::forward(const MicroBatch& batch) {
  const BlockContext c = context(batch.documents);
  for (const Chunk& chunk : chunks_) {
    const Work work = work_of(chunk, batch);
    if (amaxes_) amaxes_->begin_micro_batch(true, static_cast<int64_t>(chunk.first_slot), *stream_);
    receive(StepEntry::Kind::kForward, work);
    const Tensor residual = forward_blocks(work, c);
    if (!chunk.has_head) {
      add_residual(work.a, residual);
      send(StepEntry::Kind::kForward, work);
      continue;
    }
    const size_t head = layout().head_unit();
    fsdp_->use(head);
    head_norm_forward(c, head_weights_, residual, work.a.delta, *head_activations_);
    head_loss(c, head_weights_, batch.targets, *head_activations_);
    fsdp_->release(head);
  }
}

// Consecutive entries of one micro-batch form one range of the profile.
void Llama::run(std::span<const StepEntry> entries, const StepBatches& step) {
  for (size_t i = 0; i < entries.size();) {
    const ProfilerRange range(*stream_, "micro-batch");
    const int64_t micro_batch = entries[i].micro_batch;
    for (; i < entries.size() && entries[i].micro_batch == micro_batch; ++i) {
      run_entry(entries[i], i + 1 < entries.size() ? &entries[i + 1] : nullptr, step);
    }
  }
}

void Llama::receive(StepEntry::Kind kind, const Work& work) {
  const auto data = transferred(kind, work.chunk.has_embedding, work.chunk.has_head);
  if (data) pipeline_->receive(*data, *data == StageData::kActivations ? work.a.input() : work.a.boundary());
}

void Llama::post(const StepEntry& entry) {
  const Chunk& chunk = chunk_of(entry);
  const auto data = transferred(entry.kind, chunk.has_embedding, chunk.has_head);
  if (data) pipeline_->post(*data);
}

std::optional<size_t> Llama::first_unit(const StepEntry& entry) const {
  const Chunk& chunk = chunk_of(entry);
  switch (entry.kind) {
    case StepEntry::Kind::kForward:
      return chunk.has_embedding ? ParameterLayout::kEmbedding : unit_of(chunk.layers.front());
    case StepEntry::Kind::kBackward:
    case StepEntry::Kind::kBackwardInput:
      return unit_of(chunk.layers.back());
    case StepEntry::Kind::kBackwardWeights:
      break;
  }
  return std::nullopt;
}

void Llama::send(StepEntry::Kind kind, const Work& work) {
  const auto data = transferred(kind, work.chunk.has_head, work.chunk.has_embedding);
  if (data) pipeline_->send(*data, work.a.boundary());
}

// The transfer of the next entry begins while this one computes. Nothing here may wait for the whole device, because
// two stages that wait for each other's transfers would wait forever. Loading a kernel for its first run waits for the
// whole device. warm_up() has loaded the kernels of a step. Kernels that only some steps run, such as those of FP8
// statistics, are first run in the first forward or backward of a chunk, when the stages that this one waits for do not
// wait for it.
void Llama::run_entry(const StepEntry& entry, const StepEntry* next, const StepBatches& step) {
  const int64_t number = entry.micro_batch;
  const MicroBatch batch = step.micro_batch(number);
  const Chunk& chunk = chunk_of(entry);
  const Work work{.chunk = chunk,
                  .a = in_flight_[slot_of(entry)],
                  .batch = batch,
                  .position = {.first = number == 0, .last = number + 1 == step.count},
                  .layers = chunk.layers,
                  .next_unit = next != nullptr ? first_unit(*next) : std::nullopt};
  using Kind = StepEntry::Kind;
  if (observer_ != nullptr) observer_->begin_entry(number, entry.kind != Kind::kForward);
  receive(entry.kind, work);
  if (next != nullptr) post(*next);
  if (entry.kind == Kind::kBackwardWeights) {
    backward_weights(work);
  } else if (entry.kind != Kind::kForward) {
    backward_training(work, entry.kind == Kind::kBackwardInput);
  } else {
    const auto slot = static_cast<int64_t>(slot_of(entry));
    if (amaxes_) amaxes_->begin_micro_batch(number < chunk.in_flight, slot, *stream_);
    forward_training(work, step.scale);
    if (chunk.has_head && step.after_losses) step.after_losses(number);
  }
  send(entry.kind, work);
}

void Llama::forward_backward(const MicroBatch& batch, float scale, bool first, bool last) {
  using Kind = StepEntry::Kind;
  for (const Chunk& chunk : chunks_) {
    Work work = work_of(chunk, batch);
    work.position = {.first = first, .last = last};
    if (amaxes_) amaxes_->begin_micro_batch(first, static_cast<int64_t>(chunk.first_slot), *stream_);
    receive(Kind::kForward, work);
    forward_training(work, scale);
    send(Kind::kForward, work);
  }
  for (const Chunk& chunk : chunks_ | std::views::reverse) {
    Work work = work_of(chunk, batch);
    work.position = {.first = first, .last = last};
    receive(Kind::kBackward, work);
    backward_training(work, false);
    send(Kind::kBackward, work);
  }
}

void Llama::warm_up(const MicroBatch& batch, bool several) {
  pipeline_->warm_up();
  warm_up_micro_batch(batch, {.first = true, .last = !several});
  if (several) warm_up_micro_batch(batch, {.first = false, .last = true});
  forget_micro_batches();
}

// The first chunk is the last to run, because its backward reduces the gradients of the norms of all chunks.
void Llama::warm_up_micro_batch(const MicroBatch& batch, const MicroBatchPosition& position) {
  for (const Chunk& chunk : chunks_ | std::views::reverse) {
    const Layers layers = layers_of_each_kind(chunk);
    const Work work{
        .chunk = chunk, .a = in_flight_[chunk.first_slot], .batch = batch, .position = position, .layers = layers};
    if (amaxes_) amaxes_->begin_micro_batch(position.first, static_cast<int64_t>(chunk.first_slot), *stream_);
    forward_training(work, 0.0f);
    backward_training(work, options_.splits_backward);
    if (options_.splits_backward) backward_weights(work);
  }
}

// Returns the first layer of each group of layers that run the same kernels. The first block of the chunk is a group of
// its own, because it adds no residual.
Llama::Layers Llama::layers_of_each_kind(const Chunk& chunk) const {
  std::set<std::tuple<bool, LayerSpec, bool>> kinds;
  Layers chosen;
  for (const size_t layer : chunk.layers) {
    const bool begins_chunk = layer == chunk.layers.front();
    if (kinds.emplace(begins_chunk, specs_[layer], runs_again(layer)).second) chosen.push_back(layer);
  }
  return chosen;
}

// The gradients of the norms of all chunks are one unit. They are zeroed before the first forward of the first chunk,
// because the head adds to one of them in a forward, and are complete after the last backward of the first chunk.
void Llama::forward_training(const Work& work, float scale) {
  CHECK(training(), "this model was made for inference");
  constexpr size_t kNorms = ParameterLayout::kNorms;
  const BlockContext c = context(work.batch.documents);
  if (is_first(work.chunk)) {
    const bool accumulate = fsdp_->begin_gradient(kNorms, work.position);
    if (!accumulate) stream_->zero(fsdp_->gradient(kNorms));
  }
  const Tensor residual = forward_blocks(work, c);
  if (work.chunk.has_head) {
    run_head(work, c, residual, scale);
  } else {
    add_residual(work.a, residual);
  }
  if (work.next_unit) fsdp_->gather(*work.next_unit);
}

// Completes the output of a chunk without head.
void Llama::add_residual(const LlamaActivations& a, const Tensor& residual) {
  sum_terms({.out = a.delta.view({residual.numel()}), .terms = residual.view({residual.numel()}), .accumulate = true},
            *stream_);
}

void Llama::backward_training(const Work& work, bool saves_operands) {
  if (!work.chunk.has_head) measure_gradient(work);
  backward_blocks(work, context(work.batch.documents), saves_operands);
  if (work.next_unit) fsdp_->gather(*work.next_unit);
  if (work.chunk.has_embedding && !saves_operands) backward_embedding(work);
  if (is_first(work.chunk)) fsdp_->reduce(ParameterLayout::kNorms, work.position);
}

void Llama::backward_weights(const Work& work) {
  for (const size_t layer : work.layers | std::views::reverse) {
    begin_part(number_of(layer));
    const bool accumulate = fsdp_->begin_gradient(unit_of(layer), work.position);
    blocks_[layer].backward_weights(work.a.block(layer), accumulate, *stream_);
    finish_block(layer, work.position);
  }
  if (work.chunk.has_embedding) backward_embedding(work);
}

// Measures the gradient that the last block receives. The head does this in a chunk that has it.
void Llama::measure_gradient(const Work& work) {
  const LlamaActivations& a = work.a;
  const Tensor slot = blocks_[work.chunk.layers.back()].output_gradient_amax(a.blocks.back());
  if (slot.defined()) amax({.out = slot, .x = a.delta.view({a.delta.numel()})}, *stream_);
}

// Runs forward and backward of the head in chunks. `residual` is the last block's h1.
void Llama::run_head(const Work& work, const BlockContext& c, const Tensor& residual, float scale) {
  const ProfilerRange range(*stream_, "head");
  begin_part(options_.config.num_layers);
  const LlamaActivations& a = work.a;
  const size_t head = layout().head_unit();
  fsdp_->use(head);
  head_norm_forward(c, head_weights_, residual, a.delta, *head_activations_);
  const bool accumulate = fsdp_->begin_gradient(head, work.position);
  head_loss_backward(c, {.weights = head_weights_,
                         .gradients = head_gradients_,
                         .activations = *head_activations_,
                         .targets = work.batch.targets,
                         .d_h = a.delta,
                         .d_h_amax = blocks_.back().output_gradient_amax(a.blocks.back()),
                         .scale = scale,
                         .accumulate = accumulate,
                         .z_loss = options_.z_loss,
                         .z_losses = z_losses_});
  fsdp_->release(head);
  // A tied table is reduced after the embedding has added to its gradient.
  if (head != ParameterLayout::kEmbedding || !layout().has_embedding()) fsdp_->reduce(head, work.position);
}

// Returns whether backward must recompute the block's activations. The activations of the last recomputed block are
// still in memory, unless the forward of another micro-batch ran in between.
bool Llama::runs_again(size_t layer) const {
  if (specs_[layer].recompute != Recompute::kBlock) return false;
  const auto later = specs_.begin() + static_cast<int64_t>(layer) + 1;
  return in_flight_.size() > 1 ||
         std::ranges::find(later, specs_.end(), Recompute::kBlock, &LayerSpec::recompute) != specs_.end();
}

void Llama::backward_blocks(const Work& work, const BlockContext& c, bool saves_operands) {
  const ProfilerRange backward(*stream_, "backward");
  const LlamaActivations& a = work.a;
  const Layers& layers = work.layers;
  for (size_t i = layers.size(); i-- > 0;) {
    const size_t layer = layers[i];
    const size_t unit = unit_of(layer);
    const ProfilerRange range(*stream_, fsdp_->name(unit));
    begin_part(number_of(layer));
    fsdp_->use(unit);
    if (i > 0) fsdp_->gather(unit_of(layers[i - 1]));
    weights_[layer].prepare_backward(runs_again(layer), *stream_);
    if (runs_again(layer)) {
      blocks_[layer].forward_again(c, a.block(layer));
    } else {
      blocks_[layer].start_backward(c, a.block(layer));
    }
    const bool begins_chunk = layer == work.chunk.layers.front();
    const Tensor d_h_amax = begins_chunk ? Tensor() : blocks_[layer - 1].output_gradient_amax(a.block(layer - 1));
    WeightGradient gradient = WeightGradient::kSave;
    if (!saves_operands)
      gradient = fsdp_->begin_gradient(unit, work.position) ? WeightGradient::kAdd : WeightGradient::kWrite;
    blocks_[layer].backward(c, a.block(layer), a.delta, d_h_amax, gradient);
    fsdp_->release(unit);
    if (!saves_operands) finish_block(layer, work.position);
  }
}

// Sums the gradients of replicated kv heads over their ranks, if they are complete, and starts the reduction of the
// block's gradients.
void Llama::finish_block(size_t layer, const MicroBatchPosition& position) {
  const size_t unit = unit_of(layer);
  if (kv_copies_ && fsdp_->is_complete(unit, position)) {
    kv_copies_->sum(blocks_[layer].qkv_gradient(), tensor_, *stream_);
  }
  fsdp_->reduce(unit, position);
}

void Llama::backward_embedding(const Work& work) {
  const ProfilerRange range(*stream_, "embedding");
  begin_part(ResultObserver::kEmbedding);
  constexpr size_t kUnit = ParameterLayout::kEmbedding;
  const MicroBatch& batch = work.batch;
  const bool takes_tokens = fsdp_->takes_tokens(kUnit);
  // embedding_backward only writes the rows of tokens that occur, so the table must be zeroed first. With a tied table
  // that has the head's gradient already, the embedding adds to it instead.
  const bool has_heads = layout().has_head() && options_.config.tie_word_embeddings;
  if (!has_heads) {
    const bool accumulate = fsdp_->begin_gradient(kUnit, work.position);
    if (!accumulate && !takes_tokens) stream_->zero(d_embedding_);
  }
  const Tensor& d_h0 = work.a.delta;
  const Tensor d_out = tensor_.alone() ? d_h0 : all_tokens();
  if (!tensor_.alone()) tensor_.gather(d_out, d_h0, "embedding");
  if (takes_tokens) {
    return fsdp_->reduce_tokens(
        kUnit, {.gradients = d_out, .ids = batch.inputs, .order = batch.order, .first_row = vocab_begin()},
        work.position);
  }
  embedding_backward({.d_table = d_embedding_,
                      .d_out = d_out,
                      .ids = batch.inputs,
                      .order = batch.order,
                      .vocab_begin = vocab_begin(),
                      .share = 1.0 / tensor_.size()},
                     *stream_);
  observe(observer_, {.op = "embedding_backward", .results = {d_embedding_}, .inputs = {d_h0}});
  fsdp_->reduce(kUnit, work.position);
}

Tensor Llama::logits_of(int64_t token, const Tensor& inputs) {
  const BlockContext c = context({});
  if (amaxes_) amaxes_->begin_micro_batch(true, 0, *stream_);
  const MicroBatch batch{.inputs = inputs, .targets = {}, .order = {}, .documents = {}};
  const Work work = work_of(chunks_.front(), batch);
  const Tensor residual = forward_blocks(work, c);
  const size_t head = layout().head_unit();
  fsdp_->use(head);
  head_norm_forward(c, head_weights_, residual, work.a.delta, *head_activations_);
  const Tensor logits = head_logits(c, head_weights_, *head_activations_, token);
  fsdp_->release(head);
  return logits;
}

}  // namespace octavo
