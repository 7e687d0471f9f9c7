#include "app/plan/predictor.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "app/plan/predictor_rates.h"
#include "app/run/runtime.h"
#include "core/error.h"
#include "model/block.h"

namespace octavo {

namespace {

double as_double(int64_t value) { return static_cast<double>(value); }

// Adds up a step's parts by name.
class Ledger {
 public:
  // What follows happens `times` in a step.
  void set_times(double times) { times_ = times; }

  // Seconds of one time.
  double add(const char* name, CostKind kind, double seconds, double flops, double bytes) {
    StepCost& cost = by_name_[name];
    cost.name = name;
    cost.kind = kind;
    cost.seconds += times_ * seconds;
    cost.flops += times_ * flops;
    cost.bytes += times_ * bytes;
    return seconds;
  }

  std::vector<StepCost> sorted() const {
    std::vector<StepCost> costs;
    for (const auto& [name, cost] : by_name_) costs.push_back(cost);
    std::stable_sort(costs.begin(), costs.end(),
                     [](const StepCost& a, const StepCost& b) { return a.seconds > b.seconds; });
    return costs;
  }

 private:
  double times_ = 1;
  std::map<std::string, StepCost> by_name_;
};

// Bytes that casting an element of an operand into both layouts moves, beyond what the kernel that makes it moves
// anyway. Delayed and blockwise casts are fused into that kernel, at a lower rate, as are those of tensors whose scales
// the first run has found; rows need their amaxes first.
double cast_bytes(LinearPrecision recipe, ForwardPass pass) {
  if (!is_fp8(recipe)) return 0;
  if (!traits(recipe).casts_in_one_pass) return 7;
  const bool measures_first = needs_amax(recipe) && !traits(recipe).uses_history && pass == ForwardPass::kFirst;
  return measures_first ? 4 : 3;
}

class StepModel {
 public:
  StepModel(const PredictedRun& run, const MachineRates& machine, const Cluster& cluster)
      : config_(run.config),
        mesh_(run.mesh),
        sharding_(run.sharding),
        checkpointing_(run.checkpointing),
        machine_(machine),
        cluster_(cluster),
        model_(local_config(run.config.model, {.rank = 0, .size = run.mesh.tensor})),
        shape_{run.config.training.micro_batch_size, run.config.data.seq_len, run.mesh.tensor},
        linears_(block_linears(model_, shape_)),
        tensor_(spread(mesh_.tensor, 1, cluster)),
        shard_(spread(mesh_.shard, mesh_.tensor, cluster)),
        replicate_(spread(mesh_.replicate, mesh_.tensor * mesh_.shard, cluster)),
        element_(as_double(dtype_bytes(run.config.precision.compute))) {}

  StepPrediction predict();

 private:
  double product(const char* name, const ProductSize& size, LinearPrecision recipe, bool forward);
  double memory(const char* name, double bytes, CostKind kind = CostKind::kMemory) {
    return ledger_.add(name, kind, memory_seconds(machine_, bytes), 0, bytes);
  }
  double exposed(const char* name, double seconds, double bytes) {
    return ledger_.add(name, CostKind::kCommunication, seconds, 0, bytes);
  }
  bool fast(LinearPrecision recipe, bool forward) const;

  double block_forward(LinearPrecision recipe, ForwardPass pass);
  double block_backward(LinearPrecision recipe);
  double forward_ops(LinearPrecision recipe, ForwardPass pass);
  double linear_forward(size_t i, LinearPrecision recipe);
  double linear_backward(size_t i, LinearPrecision recipe);
  double casts(LinearPrecision recipe, bool forward, ForwardPass pass = ForwardPass::kFirst);
  double inputs_made_again(LinearPrecision recipe);
  double gathers_again(LinearPrecision recipe);
  double tensor_seconds(double bytes);
  double head();
  void end_of_step();

  // Blocks of one recipe of which backward makes the same again.
  struct Blocks {
    LinearPrecision recipe;
    Recompute again;
    bool operator<(const Blocks& o) const { return std::pair(recipe, again) < std::pair(o.recipe, o.again); }
  };
  std::map<Blocks, int64_t> all_blocks() const;
  void blocks(const Blocks& kind, double layers);
  double recomputation(const Blocks& kind);
  void weight_casts(const Blocks& kind, double layers);
  void exposed_sharding(LinearPrecision recipe, double layers, double forward_s, double backward_s);
  void exposed_ends();

  // Bytes of a weight as it travels between ranks.
  double weight_bytes(LinearPrecision recipe) const {
    return needs_amax(recipe) ? (config_.precision.fp8_all_gather ? 1 : 4) : element_;
  }
  // Of a block's gradient.
  double gradient_bytes() const {
    return sharding_.accumulate_unsharded ? 4 : as_double(dtype_bytes(config_.precision.reduce));
  }
  double block_parameters() const;
  double table_parameters() const { return as_double(model_.vocab_size) * as_double(model_.hidden_size); }
  // A gather of weights or a reduction of gradients.
  double shard_seconds(double bytes, Beside beside) {
    return communicate(collective_seconds(machine_, cluster_, shard_, bytes, beside));
  }
  double communicate(double seconds) {
    communication_s_ += times_ * seconds;
    return seconds;
  }
  void set_times(double times) {
    times_ = times;
    ledger_.set_times(times);
  }

  double tokens() const { return as_double(shape_.tokens()); }
  double share() const { return as_double(shape_.share()); }
  double hidden() const { return as_double(model_.hidden_size); }
  double rotated_width() const { return as_double((model_.num_heads + model_.num_kv_heads) * model_.head_dim); }
  double ffn() const { return as_double(model_.intermediate_size); }
  int64_t micro_batches() const {
    return config_.training.global_batch_size / mesh_.data() / config_.training.micro_batch_size;
  }

  const Config& config_;
  MeshShape mesh_;
  ShardingOptions sharding_;
  ActivationCheckpointing checkpointing_;
  const MachineRates& machine_;
  const Cluster& cluster_;
  ModelConfig model_;  // this rank's part
  BatchShape shape_;
  std::vector<LinearSpec> linears_;
  RankSpread tensor_, shard_, replicate_;
  double element_;  // bytes of the compute dtype
  Ledger ledger_;
  double times_ = 1;
  double communication_s_ = 0;
};

// Whether a run of forward makes the rows of an input whose columns backward makes in any case.
bool makes_rows(InputSource input, ForwardPass pass) {
  return pass == ForwardPass::kFirst || (pass == ForwardPass::kAgain && input == InputSource::kActivation);
}

bool StepModel::fast(LinearPrecision recipe, bool forward) const {
  return accumulates_fast(recipe, config_.precision.fast_accumulation, forward);
}

double StepModel::product(const char* name, const ProductSize& size, LinearPrecision recipe, bool forward) {
  const std::string precision = precision_name(recipe, config_.precision.compute);
  const double seconds = product_seconds(machine_, precision, fast(recipe, forward), size);
  return ledger_.add(name, CostKind::kProduct, seconds, size.flops(), 0);
}

double StepModel::block_parameters() const {
  double elements = 0;
  for (const auto& linear : linears_) elements += as_double(linear.shape.in) * as_double(linear.shape.out);
  return elements;
}

double StepModel::tensor_seconds(double bytes) {
  return communicate(collective_seconds(machine_, cluster_, tensor_, bytes, Beside::kCompute));
}

// The product, and what of its collective the split of the tokens does not cover.
double StepModel::linear_forward(size_t i, LinearPrecision recipe) {
  const LinearShape& s = linears_[i].shape;
  double seconds = product(linears_[i].names.forward, {s.tokens, s.out, s.in}, recipe, true);
  if (mesh_.tensor == 1) return seconds;
  const bool gathers = s.divided == Divided::kOutputs;
  const bool splits = gathers ? !is_fp8(recipe) || needs_amax(recipe) : splits_tokens(traits(recipe).activations);
  const double chunks = splits ? as_double(config_.parallel.tensor_parallel_chunks) : 1;
  const double bytes = tokens() * as_double(s.whole_width()) * (gathers && needs_amax(recipe) ? 1 : element_);
  const double travel = tensor_seconds(bytes);
  const double covered = std::min(seconds, travel) * (chunks - 1) / chunks;
  return seconds + exposed("tensor-parallel collectives, forward", travel - covered, bytes);
}

// Weight gradients cover what travels in backward.
double StepModel::linear_backward(size_t i, LinearPrecision recipe) {
  const LinearShape& s = linears_[i].shape;
  const double d_x = product(linears_[i].names.d_x, {s.tokens, s.in, s.out}, recipe, false);
  const double d_w = product(linears_[i].names.d_w, {s.out, s.in, s.tokens}, recipe, false);
  if (mesh_.tensor == 1) return d_x + d_w;
  const bool gathers = s.divided == Divided::kInputs;
  const double bytes = tokens() * as_double(s.whole_width()) * (gathers && needs_amax(recipe) ? 1 : element_);
  const double travel = tensor_seconds(bytes);
  return d_x + d_w + exposed("tensor-parallel collectives, backward", std::max(travel - d_w, 0.0), bytes);
}

// The casts of the linears' operands; what is shared by tokens is cast before it travels, and transposed after.
double StepModel::casts(LinearPrecision recipe, bool forward, ForwardPass pass) {
  if (!is_fp8(recipe)) return 0;
  double bytes = 0;
  for (const LinearSpec& linear : linears_) {
    const LinearShape& s = linear.shape;
    const double width = as_double(forward ? s.in : s.out);
    const bool rows_alone = forward && linear_input_kind(linear.input, recipe) == Activation::kMadeAgain;
    if (rows_alone && !makes_rows(linear.input, pass)) continue;
    const double of_element = cast_bytes(recipe, pass) - (rows_alone ? 1 : 0);
    const bool travels = mesh_.tensor > 1 && (forward ? s.divided == Divided::kOutputs : s.divided == Divided::kInputs);
    if (!travels || !needs_amax(recipe)) bytes += tokens() * width * of_element;
    if (travels && needs_amax(recipe)) bytes += share() * width * (of_element - 1) + tokens() * width * 2;
  }
  double seconds = memory("casts", bytes);
  if (mesh_.tensor > 1 && needs_amax(recipe) && !traits(recipe).uses_history && pass == ForwardPass::kFirst) {
    const double count = as_double(static_cast<int64_t>(linears_.size()));
    const double amaxes = count * all_reduce_seconds(machine_, cluster_, tensor_, 4) / 2;
    seconds += exposed("amaxes over tensor-parallel ranks", communicate(amaxes), 4 * count);
  }
  return seconds;
}

// Backward's own, in every mode: the cast of attention, and swiglu or its cast on the way.
double StepModel::inputs_made_again(LinearPrecision recipe) {
  const double attention = tokens() * as_double(model_.attention_width());
  const double swiglu = tokens() * ffn();
  const bool on_the_way = linear_input_kind(InputSource::kBackward, recipe) == Activation::kMadeAgain;
  if (!is_fp8(recipe)) return memory("swiglu", swiglu * element_);
  return memory("casts", attention * (element_ + 1)) + memory("swiglu", on_the_way ? swiglu : 0);
}

// Norms, swiglu and casts, which make the linears' inputs.
double StepModel::forward_ops(LinearPrecision recipe, ForwardPass pass) {
  // Two norms, with the residual stream, which the first run leaves behind.
  const double norm_passes = pass == ForwardPass::kInputAgain ? 4 : 8;
  const bool swiglu =
      pass == ForwardPass::kFirst || linear_input_kind(InputSource::kBackward, recipe) != Activation::kMadeAgain;
  return memory("rms_norm", norm_passes * share() * hidden() * element_) +
         memory("swiglu", swiglu ? 3 * tokens() * ffn() * element_ : 0) + casts(recipe, true, pass);
}

// After the first pass, the down product is left out.
double StepModel::block_forward(LinearPrecision recipe, ForwardPass pass) {
  double seconds = forward_ops(recipe, pass) + memory("rope", 2 * tokens() * rotated_width() * element_);
  const size_t products = pass == ForwardPass::kFirst ? linears_.size() : linears_.size() - 1;
  for (size_t i = 0; i < products; ++i) seconds += linear_forward(i, recipe);
  const SdpaShape attention = sdpa_shape(model_, shape_);
  seconds += ledger_.add("sdpa_forward", CostKind::kAttention, attention_forward_seconds(machine_, attention),
                         attention_forward_flops(attention), 0);
  return seconds;
}

double StepModel::block_backward(LinearPrecision recipe) {
  double seconds = memory("rms_norm", 2 * 4 * share() * hidden() * element_) +
                   memory("rope", 2 * tokens() * rotated_width() * element_) +
                   memory("swiglu", 5 * tokens() * ffn() * element_) + casts(recipe, false) + inputs_made_again(recipe);
  for (size_t i = 0; i < linears_.size(); ++i) seconds += linear_backward(i, recipe);
  const SdpaShape attention = sdpa_shape(model_, shape_);
  seconds += ledger_.add("sdpa_backward", CostKind::kAttention, attention_backward_seconds(machine_, attention),
                         attention_backward_flops(attention), 0);
  return seconds;
}

// Of the shares that selective recomputation makes. What could cover them covers the collectives of backward itself.
double StepModel::gathers_again(LinearPrecision recipe) {
  if (mesh_.tensor == 1) return 0;
  double bytes = 0;
  double seconds = 0;
  for (const LinearSpec& linear : linears_) {
    const LinearShape& s = linear.shape;
    if (s.divided != Divided::kOutputs) continue;
    const double gathered = tokens() * as_double(s.in) * (needs_amax(recipe) ? 1 : element_);
    bytes += gathered;
    seconds += tensor_seconds(gathered);
  }
  return exposed("tensor-parallel collectives, again", seconds, bytes);
}

// Seconds of what a block's backward makes again.
double StepModel::recomputation(const Blocks& kind) {
  switch (kind.again) {
    case Recompute::kNothing:
      return 0;
    case Recompute::kCheap:
      return forward_ops(kind.recipe, ForwardPass::kInputAgain) + gathers_again(kind.recipe);
    case Recompute::kBlock:
      return block_forward(kind.recipe, ForwardPass::kAgain);
  }
  return 0;
}

// FP8 casts and transposes of gathered weights: once a step where they stay, else with every gather.
void StepModel::weight_casts(const Blocks& kind, double layers) {
  if (!is_fp8(kind.recipe)) return;
  const bool anew = sharding_.reshard_after_forward && mesh_.shard > 1;
  double bytes = 2;
  if (!needs_amax(kind.recipe)) {
    const double rows_again = kind.again == Recompute::kBlock ? 1 : 0;
    bytes = anew ? 2 * (element_ + 1) + rows_again : element_ + 2;
  }
  set_times(layers * (anew ? as_double(micro_batches()) : 1));
  memory("weight casts", bytes * block_parameters());
}

// What of the gathers and reductions beside the blocks takes longer than the blocks.
void StepModel::exposed_sharding(LinearPrecision recipe, double layers, double forward_s, double backward_s) {
  const double n = as_double(micro_batches());
  const bool anew = sharding_.reshard_after_forward;
  const double gathered = mesh_.shard > 1 ? block_parameters() * weight_bytes(recipe) : 0;
  const double gradient = mesh_.shard > 1 ? block_parameters() * gradient_bytes() : 0;
  const auto uncovered = [](double travel, double compute) { return std::max(travel - compute, 0.0); };
  const auto gather_s = [&] { return shard_seconds(gathered, Beside::kCompute); };
  const auto reduce_s = [&] { return shard_seconds(gradient, Beside::kCompute); };
  set_times(layers * (anew ? n : 1));
  exposed("gathers of weights", uncovered(gather_s(), forward_s), gathered);

  const bool reduces = !sharding_.accumulate_unsharded;
  set_times(layers * (n - 1));
  exposed("gradient reductions", uncovered((anew ? gather_s() : 0) + (reduces ? reduce_s() : 0), backward_s),
          reduces ? gradient : 0);
  set_times(layers);
  const double shard_bytes = block_parameters() * 4 / as_double(mesh_.shard);
  const double replicas =
      communicate(all_reduce_seconds(machine_, cluster_, replicate_, shard_bytes, Beside::kCompute));
  exposed("gradient reductions", uncovered((anew ? gather_s() : 0) + reduce_s() + replicas, backward_s), gradient);
}

// Nothing is there to cover the first gathers and the last reductions.
void StepModel::exposed_ends() {
  const LinearPrecision first = config_.precision.of_layer(0, model_.num_layers);
  const bool anew = sharding_.reshard_after_forward;
  if (mesh_.shard > 1) {
    const double bytes = block_parameters() * weight_bytes(first) + table_parameters() * element_;
    set_times(anew ? as_double(micro_batches()) : 1);
    exposed("gathers of weights", shard_seconds(bytes, Beside::kNothing), bytes);
  }
  set_times(1);
  const double bytes = block_parameters() * gradient_bytes() + table_parameters() * 4;
  double seconds = shard_seconds(bytes, Beside::kNothing);
  const double shard_bytes = (block_parameters() + table_parameters()) * 4 / as_double(mesh_.shard);
  seconds += communicate(all_reduce_seconds(machine_, cluster_, replicate_, shard_bytes));
  exposed("gradient reductions", seconds, 0);
}

// The activations of the last block recomputed are still there, so that it does not run again.
std::map<StepModel::Blocks, int64_t> StepModel::all_blocks() const {
  const bool decided = checkpointing_.mode != ActivationCheckpointing::Mode::kAuto;
  bool is_last = true;
  std::map<Blocks, int64_t> kinds;
  for (int64_t layer = model_.num_layers; layer-- > 0;) {
    Recompute again = decided ? recompute_of(checkpointing_, layer) : Recompute::kNothing;
    if (again == Recompute::kBlock && std::exchange(is_last, false)) again = Recompute::kNothing;
    ++kinds[{config_.precision.of_layer(layer, model_.num_layers), again}];
  }
  return kinds;
}

void StepModel::blocks(const Blocks& kind, double layers) {
  set_times(as_double(micro_batches()) * layers);
  const double forward_s = block_forward(kind.recipe, ForwardPass::kFirst);
  const double backward_s = recomputation(kind) + block_backward(kind.recipe);
  weight_casts(kind, layers);
  if (mesh_.data() > 1) exposed_sharding(kind.recipe, layers, forward_s, backward_s);
}

// Final norm, lm_head and cross entropy; embedding. lm_head multiplies in the compute dtype.
double StepModel::head() {
  set_times(as_double(micro_batches()));
  const int64_t t = shape_.tokens();
  const int64_t h = model_.hidden_size;
  const int64_t v = model_.vocab_size;
  double seconds = product("lm_head", {t, v, h}, LinearPrecision::kBFloat16, true);
  seconds += product("lm_head_d_x", {t, h, v}, LinearPrecision::kBFloat16, false);
  seconds += product("lm_head_d_w", {v, h, t}, LinearPrecision::kBFloat16, false);
  // Logits are read and written once, over several ranks read once more, at three quarters of other ops' rate.
  const double passes = (mesh_.tensor > 1 ? 3 : 2) / 0.75;
  seconds += memory("cross_entropy", passes * tokens() * as_double(v) * element_);
  seconds += memory("rms_norm", 8 * share() * hidden() * element_);
  seconds += memory("embedding", 4 * tokens() * hidden() * element_);
  if (mesh_.tensor == 1) return seconds;
  // The embedding's rows and the head's input, each there and back.
  const double bytes = 4 * tokens() * hidden() * element_;
  return seconds + exposed("tensor-parallel collectives, head", tensor_seconds(bytes), bytes);
}

void StepModel::end_of_step() {
  set_times(1);
  const ModelConfig& m = model_;
  const double layers = as_double(m.num_layers);
  double fp8_layers = 0;
  for (int64_t i = 0; i < m.num_layers; ++i) {
    if (needs_amax(config_.precision.of_layer(i, m.num_layers))) fp8_layers += 1;
  }
  const double tables = table_parameters() * (config_.model.tie_word_embeddings ? 1 : 2);
  const double shards = as_double(mesh_.shard);
  const double elements = (layers * block_parameters() + tables) / shards;
  const double fp8_elements = fp8_layers * block_parameters() / shards;
  const double moments = 4 * as_double(dtype_bytes(config_.optimizer.state_dtype));
  memory("adamw", elements * (8 + 4 + moments) + (elements - fp8_elements) * element_, CostKind::kOptimizer);
  memory("gradient norm", elements * 4, CostKind::kOptimizer);
  if (fp8_elements > 0) memory("weight casts", fp8_elements * 5);
  if (mesh_.ranks() == 1) return;
  const RankSpread world = spread(mesh_.ranks(), 1, cluster_);
  constexpr double kSmallReductions = 4;  // loss, gradient norm over shards and tensor ranks, amaxes
  exposed("small reductions", communicate(kSmallReductions * all_reduce_seconds(machine_, cluster_, world, 4)), 16);
}

StepPrediction StepModel::predict() {
  for (const auto& [kind, layers] : all_blocks()) blocks(kind, as_double(layers));
  head();
  if (mesh_.data() > 1) exposed_ends();
  end_of_step();

  StepPrediction p;
  p.costs = ledger_.sorted();
  p.communication_s = communication_s_;
  for (const StepCost& cost : p.costs) p.step_s += cost.seconds;
  p.floor_s = p.seconds(CostKind::kProduct) + p.seconds(CostKind::kAttention);
  p.tokens_per_step = as_double(config_.training.global_batch_size) * as_double(config_.data.seq_len);
  p.wps = p.tokens_per_step / p.step_s / as_double(mesh_.ranks());
  p.flops_per_token = config_.model.flops_per_token(config_.data.seq_len);
  p.mfu = p.wps * p.flops_per_token / kPeakFlops;
  for (const CostKind kind :
       {CostKind::kAttention, CostKind::kMemory, CostKind::kOptimizer, CostKind::kCommunication}) {
    if (p.seconds(kind) > p.seconds(p.bound)) p.bound = kind;
  }
  return p;
}

}  // namespace

const char* cost_kind_name(CostKind kind) {
  switch (kind) {
    case CostKind::kProduct:
      return "products";
    case CostKind::kAttention:
      return "attention";
    case CostKind::kMemory:
      return "memory-bound ops";
    case CostKind::kOptimizer:
      return "optimizer";
    case CostKind::kCommunication:
      return "exposed communication";
  }
  return "?";
}

double StepPrediction::seconds(CostKind kind) const {
  double sum = 0;
  for (const StepCost& cost : costs) sum += cost.kind == kind ? cost.seconds : 0;
  return sum;
}

std::vector<TokenFlops> flops_by_part(const ModelConfig& model, int64_t seq_len) {
  const double layers = as_double(model.num_layers);
  std::vector<TokenFlops> parts;
  for (const LinearSpec& linear : block_linears(model)) {
    parts.push_back({linear.names.forward, 6 * layers * as_double(linear.shape.in) * as_double(linear.shape.out)});
  }
  const SdpaShape attention = sdpa_shape(model, {1, seq_len, 1});
  const double causal = attention_forward_flops(attention) + attention_backward_flops(attention);
  parts.push_back({"attention", layers * causal / as_double(seq_len)});
  parts.push_back({"lm_head", 6 * as_double(model.hidden_size) * as_double(model.vocab_size)});
  return parts;
}

StepPrediction predict_step(const PredictedRun& run, const MachineRates& machine, const Cluster& cluster) {
  return StepModel(run, machine, cluster).predict();
}

}  // namespace octavo
