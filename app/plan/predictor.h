// How long a training step takes on a machine whose rates are known (app/plan/machine_rates.h), before it runs.
//
// The step itself says what it is made of: the model's own forward and backward, the collectives and the optimizer are
// queued on a dry-run stream and recorded (app/plan/recorded_step.h). Each op of the record has a price
// (app/plan/predictor_rates.h): products (2 m n k FLOPs at the rate of the nearest shapes measured), causal attention,
// ops bound by memory (the bytes they must move), and collectives (app/plan/network_model.h). A clock
// (app/plan/step_clock.h) lets the streams run beside each other as their events do, and says what of the collectives
// nothing covers.
//
// The constants that the measurements do not say are in predictor_rates.cpp, with where they come from. Against the
// benchmarks (docs/benchmarks) predictions are within 8%.
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
#include "model/sharded_parameters.h"
#include "parallel/config.h"

namespace octavo {

enum class CostKind : uint8_t { kProduct, kAttention, kMemory, kOptimizer, kCommunication };
inline constexpr CostKind kCostKinds[] = {CostKind::kProduct, CostKind::kAttention, CostKind::kMemory,
                                          CostKind::kOptimizer, CostKind::kCommunication};
const char* cost_kind_name(CostKind kind);  // "products", ..., "exposed communication"

// A part of a step on one rank.
struct StepCost {
  std::string name;
  CostKind kind = CostKind::kProduct;
  double seconds = 0;  // that it adds to the step; of a collective, the exposed part
  double flops = 0;
  double bytes = 0;  // moved in memory, or sent and received
};

struct StepPrediction {
  std::vector<StepCost> costs;  // the longest first
  double floor_s = 0;           // products and attention alone
  double communication_s = 0;   // all collectives, hidden or not
  double step_s = 0;
  double tokens_per_step = 0;  // of all ranks
  double wps = 0;              // tokens per second and GPU
  double mfu = 0;              // as in training
  double flops_per_token = 0;  // of all ranks, as mfu counts them
  CostKind bound = CostKind::kProduct;
  double seconds(CostKind kind) const;
};

// FLOPs of training on one token, by part; attention counted causal.
struct TokenFlops {
  std::string part;
  double flops = 0;
};
std::vector<TokenFlops> flops_by_part(const ModelConfig& model, int64_t seq_len);

struct PredictedRun {
  const Config& config;  // valid for the mesh
  MeshShape mesh;
  ShardingOptions sharding;
  ActivationCheckpointing checkpointing = {.mode = ActivationCheckpointing::Mode::kNone};  // auto counts as none
};

class StepClock;

// Predicts steps of one config on one machine; what it has recorded of one serves others that differ in the number of
// shards, copies or micro-batches.
class Predictor {
 public:
  // The machine is borrowed.
  Predictor(const MachineRates& machine, const Cluster& cluster);
  ~Predictor();
  Predictor(const Predictor&) = delete;
  Predictor& operator=(const Predictor&) = delete;

  // Throws InputError when the machine's rates lack the config's products.
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
