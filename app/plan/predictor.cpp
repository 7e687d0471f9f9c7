#include "app/plan/predictor.h"

#include <algorithm>
#include <utility>

#include "app/plan/predictor_rates.h"
#include "app/plan/recorded_step.h"
#include "app/plan/step_clock.h"
#include "model/architecture/block_spec.h"
#include "model/block/attention.h"

namespace octavo {

namespace {

double as_double(int64_t value) { return static_cast<double>(value); }

}  // namespace

const char* cost_kind_name(CostKind kind) {
  constexpr const char* kNames[] = {"matmuls", "attention", "memory-bound ops", "optimizer", "exposed communication"};
  return kNames[static_cast<size_t>(kind)];
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

Predictor::Predictor(const MachineRates& machine, const Cluster& cluster) : machine_(machine), cluster_(cluster) {}
Predictor::~Predictor() = default;

const StepClock& Predictor::clock(const PredictedRun& run) {
  const auto& [config, mesh, sharding, checkpointing] = run;
  const Key key{recorded_mesh(run, cluster_.gpus_per_node),
                mesh.all_to_all_load(cluster_.gpus_per_node),
                config.training.micro_batch_size,
                std::min(micro_batches_of(run), kFirstMiddleLast),
                sharding.reshard_after_forward,
                sharding.accumulate_unsharded,
                checkpointing.mode,
                checkpointing.ratio};
  std::unique_ptr<StepClock>& clock = clocks_[key];
  if (!clock) {
    const RecordedStep step = record_step(run, static_cast<int>(machine_.multiprocessors), cluster_.gpus_per_node);
    clock = std::make_unique<StepClock>(step, machine_, cluster_);
  }
  return *clock;
}

StepPrediction Predictor::predict(const PredictedRun& run) {
  const auto& [config, mesh, sharding, checkpointing] = run;
  StepPrediction p;
  StepClock::Times times = clock(run).run(mesh, micro_batches_of(run));
  p.costs = std::move(times.costs);
  p.communication_s = times.communication_s;
  std::stable_sort(p.costs.begin(), p.costs.end(),
                   [](const StepCost& a, const StepCost& b) { return a.seconds > b.seconds; });
  for (const StepCost& cost : p.costs) p.step_s += cost.seconds;
  p.floor_s = p.seconds(CostKind::kProduct) + p.seconds(CostKind::kAttention);
  p.tokens_per_step = as_double(config.training.global_batch_size) * as_double(config.data.seq_len);
  p.wps = p.tokens_per_step / p.step_s / as_double(mesh.ranks());
  const ModelFlops flops =
      model_flops(config.model, config.precision, config.data.seq_len, causal_attended_tokens(config.data.seq_len));
  p.flops_per_token = flops.palm;
  p.use = utilization_of(flops, p.wps);
  p.bound = *std::max_element(std::begin(kCostKinds), std::end(kCostKinds),
                              [&](CostKind a, CostKind b) { return p.seconds(a) < p.seconds(b); });
  return p;
}

StepPrediction predict_step(const PredictedRun& run, const MachineRates& machine, const Cluster& cluster) {
  return Predictor(machine, cluster).predict(run);
}

}  // namespace octavo
