// Predicts the time of a training step on a machine with known rates (app/plan/machine_rates.h).
//
// The step itself says what it is made of: the model's own forward and backward, the collectives and the optimizer are
// queued on a dry-run stream and recorded (app/plan/recorded_step.h). Each op of the record has a price
// (app/plan/predictor_rates.h): products (2 m n k FLOPs at the rate of the nearest shapes measured), causal attention,
// ops bound by memory (the bytes they must move), and collectives (app/plan/network_model.h). A clock
// (app/plan/step_clock.h) lets the streams run beside each other as their events do, and says what of the collectives
// nothing covers.
//
// Constants that were not measured are in predictor_rates.cpp with their source. Predictions are within 8% of the
// benchmarks (docs/benchmarks).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "app/config/config.h"
#include "app/plan/machine_rates.h"
#include "app/plan/network_model.h"
#include "model/parameters/sharded_parameters.h"
#include "parallel/config.h"

namespace octavo {

enum class CostKind : uint8_t { kProduct, kAttention, kMemory, kOptimizer, kCommunication };
inline constexpr CostKind kCostKinds[] = {CostKind::kProduct, CostKind::kAttention, CostKind::kMemory,
                                          CostKind::kOptimizer, CostKind::kCommunication};
const char* cost_kind_name(CostKind kind);  // Returns "exposed communication" and the like.

// A part of a step on one rank.
struct StepCost {
  std::string name;
  CostKind kind = CostKind::kProduct;
  double seconds = 0;  // Time that it adds to the step. For a collective, the exposed part.
  double flops = 0;
  double bytes = 0;  // Bytes moved in memory, or sent and received.
};

struct StepPrediction {
  std::vector<StepCost> costs;  // Sorted by time, the longest first.
  double floor_s = 0;           // Time of matmuls and attention only.
  double communication_s = 0;   // Time of all collectives, hidden or not.
  double step_s = 0;
  double tokens_per_step = 0;  // of all ranks
  double wps = 0;              // tokens per second and GPU
  double mfu = 0;              // as in training
  double flops_per_token = 0;  // of all ranks, as mfu counts them
  CostKind bound = CostKind::kProduct;
  double seconds(CostKind kind) const;
};

// Training FLOPs per token, by part. Attention counts its causal half.
struct TokenFlops {
  std::string part;
  double flops = 0;
};
std::vector<TokenFlops> flops_by_part(const ModelConfig& model, int64_t seq_len);

struct PredictedRun {
  const Config& config;  // The config must be valid for the mesh.
  MeshShape mesh;
  ShardingOptions sharding;
  ActivationCheckpointing checkpointing = {.mode = ActivationCheckpointing::Mode::kNone};  // Mode auto counts as none.
};

class StepClock;

// Predicts steps of one config on one machine. A recorded step is reused for runs that differ only in the number of
// shards, replicas or micro-batches.
class Predictor {
 public:
  // The machine is borrowed.
  Predictor(const MachineRates& machine, const Cluster& cluster);
  ~Predictor();
  Predictor(const Predictor&) = delete;
  Predictor& operator=(const Predictor&) = delete;

  // Throws an InputError if the machine has no rates for the config's matmuls.
  StepPrediction predict(const PredictedRun& run);

 private:
  // The properties on which a recorded step depends besides the config: the mesh on which it is recorded, how gradients
  // in bfloat16 are summed, the size and number of micro-batches, the options of sharding, the checkpointing.
  using Key = std::tuple<MeshShape, int64_t, int64_t, int64_t, bool, bool, ActivationCheckpointing::Mode, double>;
  const StepClock& clock(const PredictedRun& run);

  const MachineRates& machine_;
  Cluster cluster_;
  std::map<Key, std::unique_ptr<StepClock>> clocks_;
};

// Predicts a step of a single run.
StepPrediction predict_step(const PredictedRun& run, const MachineRates& machine, const Cluster& cluster);

}  // namespace octavo
