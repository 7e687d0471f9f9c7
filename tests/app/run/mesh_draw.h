// A random training run: a model, a mesh for it, and a way to train it there.
#pragma once

#include <fmt/ranges.h>

#include <random>
#include <string>

#include "app/config/config_check.h"
#include "app/resolve/resolve.h"
#include "app/run/training_state.h"
#include "core/error.h"
#include "kernels/attention/sdpa.h"

namespace octavo {

struct MeshDraw {
  // The model, data.seq_len, data.document_mask, batch sizes, precision, optimizer, parallel and
  // activation_checkpointing are drawn.
  Config config;
  int64_t one_rank_micro_batch_size = 1;  // Micro-batch size if one rank takes the same steps.

  // Returns the draw of that seed for `ranks` ranks on the device. Features without kernels on the device are not
  // drawn.
  static MeshDraw of(uint64_t seed, int ranks, Device device);

  static constexpr double kNeverClips = 1e9;  // optimizer.grad_clip far above the norm of any draw

  bool is_fp8() const { return uses_fp8(config.precision); }
  bool clips() const { return config.optimizer.grad_clip < kNeverClips; }
  std::string describe() const;
  // Returns the job of the draw on a mesh.
  Job job(const Mesh& mesh) const {
    return draft(StageConfig(config), {.device = mesh.stream().device(), .ranks = mesh.shape().ranks()},
                 {mesh.shape(), ""});
  }
  // Returns the number of targets of a step, over all ranks.
  int64_t targets() const { return config.training.global_batch_size * config.data.seq_len; }
};

namespace mesh_draw {

class Dice {
 public:
  explicit Dice(uint64_t seed) : generator_(seed) {}
  // Draws an integer from first to last.
  int64_t number(int64_t first, int64_t last) {
    return first + static_cast<int64_t>(generator_() % range(first, last));
  }
  bool yes() { return number(0, 1) == 1; }
  int64_t divisor_of(int64_t n) {
    for (;;) {
      if (const int64_t d = number(1, n); n % d == 0) return d;
    }
  }

 private:
  static uint64_t range(int64_t first, int64_t last) { return static_cast<uint64_t>(last - first + 1); }
  std::mt19937_64 generator_;
};

// Draws a model whose contracted dimensions are multiples of `unit` on each tensor-parallel rank.
inline ModelConfig draw_model(Dice& dice, int64_t tensor_ranks, int64_t unit, bool gpu_heads) {
  ModelConfig model;
  const bool aligned = unit > 1;
  const bool blocks = unit == 128;
  model.head_dim = gpu_heads || aligned ? 32 * dice.number(1, gpu_heads && !blocks ? 3 : 2) : 2 * dice.number(1, 9);
  model.num_heads = tensor_ranks * (blocks ? unit / model.head_dim : dice.number(1, 3));
  model.num_kv_heads = blocks ? model.num_heads : dice.divisor_of(model.num_heads);
  model.hidden_size = aligned ? unit * dice.number(1, blocks ? 2 : 6) : dice.number(16, 70);
  model.intermediate_size = tensor_ranks * (aligned ? unit * dice.number(1, blocks ? 1 : 3) : dice.number(1, 60));
  model.num_layers = dice.number(1, blocks ? 2 : 4);
  model.vocab_size = dice.number(2, 90 * tensor_ranks);
  model.rope_theta = 1000.0;
  model.tie_word_embeddings = dice.yes();
  return model;
}

inline LinearPrecision draw_recipe(Dice& dice) {
  constexpr LinearPrecision kDrawn[] = {LinearPrecision::kFp8Tensorwise, LinearPrecision::kFp8Delayed,
                                        LinearPrecision::kFp8Rowwise, LinearPrecision::kFp8Blockwise};
  const int64_t roll = dice.number(0, 11);
  return roll < 4 ? kDrawn[roll] : LinearPrecision::kBFloat16;
}

inline ActivationCheckpointing draw_checkpointing(Dice& dice) {
  using Mode = ActivationCheckpointing::Mode;
  constexpr Mode kModes[] = {Mode::kNone, Mode::kSelective, Mode::kBlock, Mode::kFull};
  const Mode mode = kModes[dice.number(0, 3)];
  return {.mode = mode, .ratio = mode == Mode::kBlock ? 0.1 * static_cast<double>(dice.number(1, 10)) : 1.0};
}

// Draws a number of pipeline stages, a schedule and a number of chunks. Half of the seeds have one stage. It has dice
// of its own, so that the other draws of a seed depend only on the ranks of a stage.
inline void draw_stages(uint64_t seed, int64_t ranks, ParallelConfig& parallel) {
  Dice dice(seed * 7919 + static_cast<uint64_t>(ranks));
  if (ranks == 1 || dice.yes()) return;
  while (parallel.pipeline_parallel == 1) parallel.pipeline_parallel = dice.divisor_of(ranks);
  const int64_t roll = dice.number(0, 3);
  if (roll == 0) parallel.pipeline_schedule = PipelineSchedule::kZeroBubble;
  if (roll <= 1) return;
  parallel.pipeline_schedule = PipelineSchedule::kInterleaved;
  parallel.pipeline_chunks = dice.number(2, 3);
}

// Gives every chunk of every pipeline stage a block and a micro-batch, and draws an uneven division.
inline void fill_stages(Dice& dice, int64_t data_ranks, Config& c) {
  const int64_t stages = c.parallel.pipeline_parallel;
  if (stages == 1) return;
  const int64_t parts = stages * c.parallel.pipeline_chunks;
  c.model.num_layers = parts + dice.number(0, 3);
  const int64_t unit = data_ranks * c.training.micro_batch_size;
  const int64_t more = dice.number(0, 2);
  const bool interleaved = c.parallel.pipeline_schedule == PipelineSchedule::kInterleaved;
  c.training.global_batch_size =
      interleaved ? unit * stages * (1 + more) : std::max(c.training.global_batch_size, unit * (stages + more));
  if (dice.yes()) return;
  c.parallel.pipeline_layers.assign(static_cast<size_t>(parts), 1);
  for (int64_t block = parts; block < c.model.num_layers; ++block) {
    ++c.parallel.pipeline_layers[static_cast<size_t>(dice.number(0, parts - 1))];
  }
}

inline void draw_parallel(Dice& dice, int64_t ranks, ParallelConfig& parallel) {
  parallel.tensor_parallel = dice.divisor_of(ranks);
  parallel.context_parallel = dice.divisor_of(ranks / parallel.tensor_parallel);
  parallel.data_parallel_replicate = dice.divisor_of(ranks / parallel.tensor_parallel / parallel.context_parallel);
  parallel.accumulate_unsharded = auto_bool(dice.yes());
}

// Draws an optimizer. Muon scales every gradient to norm 1, so it turns a gradient that is nothing but rounding (of q
// over documents of one token) into an update of rounding. Therefore sequences must not be so short that they may have
// no other documents.
inline void draw_optimizer(Dice& dice, MeshDraw& draw) {
  const bool muon = dice.yes();
  Config& c = draw.config;
  if (!muon || c.data.seq_len < 4) return;
  c.optimizer.type = OptimizerType::kMuon;
  c.data.document_mask = c.data.document_mask && c.data.seq_len >= 16;
}

// Draws the format of lm_head. It is drawn last, so that the other draws of a seed stay the same. The dimensions grow
// to sizes that its matmuls support.
inline void draw_lm_head(Dice& dice, int64_t tensor_ranks, MeshDraw& draw) {
  constexpr LmHeadPrecision kDrawn[] = {LmHeadPrecision::kFp8Backward, LmHeadPrecision::kFp8};
  const int64_t roll = dice.number(0, 5);
  if (roll > 1) return;
  Config& c = draw.config;
  c.precision.lm_head = kDrawn[roll];
  const int64_t unit = traits(kLmHeadRecipe).alignment;
  const auto round_up = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
  c.model.hidden_size = round_up(c.model.hidden_size, unit);
  const int64_t context_ranks = c.parallel.context_parallel;
  if (c.training.micro_batch_size * c.data.seq_len / context_ranks % unit != 0)
    c.data.seq_len = round_up(c.data.seq_len, std::lcm(unit, tensor_ranks) * context_ranks);
  draw.one_rank_micro_batch_size = c.training.micro_batch_size;
}

}  // namespace mesh_draw

inline MeshDraw MeshDraw::of(uint64_t seed, int ranks, Device device) {
  using namespace mesh_draw;
  Dice dice(seed * 1000003 + static_cast<uint64_t>(ranks));
  const bool gpu = device == Device::kCuda;
  MeshDraw draw;
  Config& c = draw.config;
  draw_stages(seed, ranks, c.parallel);
  const int64_t stage_ranks = ranks / c.parallel.pipeline_parallel;
  draw_parallel(dice, stage_ranks, c.parallel);
  const int64_t tensor_ranks = c.parallel.tensor_parallel;
  const int64_t context_ranks = c.parallel.context_parallel;
  const int64_t data_ranks = stage_ranks / tensor_ranks / context_ranks;

  c.precision.compute = gpu ? DType::kBFloat16 : DType::kFloat32;
  c.precision.linear = draw_recipe(dice);
  c.precision.fp8_all_gather = dice.yes();
  const int64_t unit = c.precision.linear == LinearPrecision::kFp8Blockwise ? 128 : draw.is_fp8() ? 16 : 1;
  c.model = draw_model(dice, tensor_ranks, unit, gpu);
  c.precision.bf16_first_layers = draw.is_fp8() ? dice.number(0, 1) : 0;

  c.training.micro_batch_size = dice.number(1, 3);
  const int64_t tokens_unit = std::lcm(unit, tensor_ranks);
  c.data.seq_len = unit > 1 ? tokens_unit * dice.number(1, unit == 128 ? 1 : 3) : tensor_ranks * dice.number(1, 12);
  if (device == Device::kCuda && c.data.seq_len == 1) c.data.seq_len = 2;
  c.data.document_mask = dice.yes() && (!gpu || c.model.head_dim == 64);
  if (context_ranks > 1) {  // Each rank has two chunks.
    c.data.seq_len *= 2 * context_ranks;
    if (gpu) c.data.seq_len = std::lcm(c.data.seq_len, 2 * context_ranks * kContextChunkUnit);
  }
  c.training.global_batch_size = data_ranks * c.training.micro_batch_size * dice.number(1, 3);
  fill_stages(dice, data_ranks, c);
  // An FP8 scale covers a micro-batch.
  draw.one_rank_micro_batch_size =
      draw.is_fp8() ? c.training.micro_batch_size : dice.divisor_of(c.training.global_batch_size);
  draw.config.parallel.reshard_after_forward = auto_bool(dice.yes());
  draw.config.activation_checkpointing = draw_checkpointing(dice);

  // eps is far above the rounding error of a gradient, which would otherwise decide on the sign of updates.
  c.optimizer.eps = 1e-3;
  c.optimizer.grad_clip = dice.yes() ? 0.5 : kNeverClips;
  c.training.z_loss = dice.yes() ? 0.02 : 0.0;
  draw_optimizer(dice, draw);
  draw_lm_head(dice, tensor_ranks, draw);
  c.model.qk_norm = dice.yes();
  // A head of two elements can be so short that its norm amplifies rounding beyond the tolerances.
  if (c.model.qk_norm) c.model.rms_norm_eps = 0.1;
  // In float32, gradients are not rounded before they are sent, so this changes nothing.
  if (!gpu && dice.yes()) c.precision.reduce = DType::kBFloat16;
  return draw;
}

inline std::string MeshDraw::describe() const {
  const ModelConfig& m = config.model;
  const ParallelConfig& p = config.parallel;
  return fmt::format(
      "hidden {}, ffn {}, {} layers, {} heads and {} kv heads of {}{}, vocabulary {}{}; sequences of {}{}, global "
      "batch "
      "{}, micro-batch {}, on one rank {}; {} pipeline stages of {} chunks of [{}] blocks{}, replicas {}, context "
      "ranks "
      "{}, tensor ranks {}; weights {}, gradients {}; linears {}, {} of them not in FP8, gathered {}, lm_head {}; "
      "recomputation {} of {}; {} clipped at {}; z-loss {}",
      m.hidden_size, m.intermediate_size, m.num_layers, m.num_heads, m.num_kv_heads, m.head_dim,
      m.qk_norm ? " with norms" : "", m.vocab_size, m.tie_word_embeddings ? ", tied" : "", config.data.seq_len,
      config.data.document_mask ? " with documents" : "", config.training.global_batch_size,
      config.training.micro_batch_size, one_rank_micro_batch_size, p.pipeline_parallel, p.pipeline_chunks,
      fmt::join(p.pipeline_layers, " "), p.pipeline_schedule == PipelineSchedule::kZeroBubble ? " without bubbles" : "",
      p.data_parallel_replicate, p.context_parallel, p.tensor_parallel,
      p.reshard_after_forward == AutoBool::kTrue ? "gathered again" : "kept",
      p.accumulate_unsharded == AutoBool::kTrue ? "kept" : "sharded", precision_name(config.precision),
      config.precision.bf16_first_layers, config.precision.fp8_all_gather ? "so" : "wide",
      traits(config.precision.lm_head).name, static_cast<int>(config.activation_checkpointing.mode),
      config.activation_checkpointing.ratio, config.optimizer.type == OptimizerType::kMuon ? "Muon" : "AdamW",
      config.optimizer.grad_clip, config.training.z_loss);
}

}  // namespace octavo
