// Predicts the time of a training step on a machine with known rates (app/predict/machine_rates.h).
//
// The model's own forward and backward, the collectives and the optimizer are queued on a dry-run stream and recorded
// (app/predict/recorded_step.h), so the record contains exactly the ops of a step. The time of each op is estimated
// (op_seconds): matmuls and causal attention from their FLOPs and measured rates (for matmuls, of the nearest shapes),
// memory-bound ops from the bytes that they must move, and collectives by app/predict/network_model.h. A simulated
// clock (app/predict/step_clock.h) runs the streams concurrently, with the dependencies of their events. It determines
// which part of the collectives is exposed, that is, makes the compute stream wait.
//
// Constants that are not part of a machine file are in predictor.cpp with their sources. Predictions are within 8% of
// the benchmarks (docs/internals/prediction.md).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "app/job/job.h"
#include "app/predict/machine_rates.h"
#include "app/predict/network_model.h"
#include "app/run/utilization.h"
#include "core/op_record.h"
#include "kernels/attention/sdpa.h"

namespace octavo {

enum class CostKind : uint8_t { kMatmul, kAttention, kMemory, kOptimizer, kCommunication, kStages };
inline constexpr CostKind kCostKinds[] = {CostKind::kMatmul,    CostKind::kAttention,     CostKind::kMemory,
                                          CostKind::kOptimizer, CostKind::kCommunication, CostKind::kStages};
const char* cost_kind_name(CostKind kind);  // Returns a name such as "exposed communication".

// Time that one kind of op takes in a step on one rank.
struct StepCost {
  std::string name;
  CostKind kind = CostKind::kMatmul;
  double seconds = 0;  // Time that the op adds to the step. For a collective, this is the exposed part.
  double flops = 0;
  double bytes = 0;  // Bytes that are moved in memory, or sent and received.
};

// Times of a pipeline stage in a step.
struct StagePrediction {
  int64_t blocks = 0;
  double busy_s = 0;     // Time in which the stage computes, or waits for its own collectives.
  double waiting_s = 0;  // Time in which the stage waits for other stages.
};

struct StepPrediction {
  // Costs sorted by time, the longest first. With pipeline stages, these are the costs of the stage that is busy the
  // longest, including its wait for other stages.
  std::vector<StepCost> costs;
  double floor_s = 0;          // Time of matmuls and attention only.
  double communication_s = 0;  // Time of all collectives, exposed or not.
  double step_s = 0;
  double wps = 0;  // Tokens per second and GPU.
  Utilization use;
  CostKind bound = CostKind::kMatmul;
  std::vector<StagePrediction> stages;  // Empty with a single pipeline stage.
  double stage_transfer_s = 0;          // Time of a transfer between two stages. Other work may hide it.
  double seconds(CostKind kind) const;
  // Returns the number of the pipeline stage that is busy the longest.
  // Requires: there are several stages.
  int64_t slowest_stage() const;
  // Returns the mean share of a step in which stages wait.
  // Requires: there are several stages.
  double bubble() const;
};

// Returns the name and the training FLOPs per token of each part of the model. Attention counts its causal half.
std::vector<std::pair<std::string, double>> flops_by_part(const ModelConfig& model, int64_t seq_len);

// Returns the mean number of tokens that a token attends to. document_length is the mean length of documents, as octavo
// bench draws them (app/run/utilization.h), or 0 without a document mask.
double attended_tokens(int64_t seq_len, int64_t document_length);

class StepClock;

// Predicts steps of jobs that differ only in mesh, micro-batches, recomputation and sharding, on one machine. A
// recorded step is reused for jobs that differ only in the number of shards, replicas or micro-batches. The jobs may
// lack a memory plan (draft() in app/resolve/resolve.h).
class Predictor {
 public:
  // `document_length` is that of attended_tokens().
  // Requires: `machine` outlives the object.
  Predictor(const MachineRates& machine, const NetworkRates& network, int64_t document_length);
  ~Predictor();
  Predictor(const Predictor&) = delete;
  Predictor& operator=(const Predictor&) = delete;

  // Predicts a step of the job. Throws an InputError if the machine has no rates for the job's matmuls.
  StepPrediction predict(const Job& job);

 private:
  // Properties that differ between the jobs and that a recorded step depends on: the mesh on which the step is
  // recorded, how bfloat16 gradients are summed, the size and number of micro-batches, the sharding options, the specs
  // of the layers, the schedule of pipeline stages, the number of their chunks, and the stage.
  using Key = std::tuple<MeshShape, int64_t, int64_t, int64_t, bool, bool, std::vector<LayerSpec>, PipelineSchedule,
                         int64_t, int64_t>;
  const StepClock& clock(const Job& job, int64_t stage);

  const MachineRates& machine_;
  NetworkRates network_;
  int64_t document_length_;
  std::map<Key, std::unique_ptr<StepClock>> clocks_;
};

// Predicts a step of a single job.
StepPrediction predict_step(const Job& job, const MachineRates& machine, const NetworkRates& network,
                            int64_t document_length = 0);

// Returns the FLOP/s of a matmul of any size. The result is the average of the rates that were measured in this
// precision (and with this kind of accumulation, if the precision has several). A rate's weight is the inverse fourth
// power of its distance in log2 of m, n and k. Throws an InputError if the machine has no rate of the precision.
double matmul_rate(const MachineRates& machine, const std::string& precision, bool fast_accumulation,
                   const MatmulSize& size);

// Returns the FLOPs of causal attention, counting only the causal half.
double attention_forward_flops(const SdpaShape& shape);
inline double attention_backward_flops(const SdpaShape& shape) { return 2.5 * attention_forward_flops(shape); }

// Returns the time of an op inside of a step, where the GPU is warmer than when single ops are measured.
// document_length is the mean number of tokens of a document, or 0 without documents. With documents, the FLOPs of
// attention count only scores within documents. Returns 0 for a collective.
double op_seconds(const MachineRates& machine, const Op& op, int64_t document_length = 0);

// Properties of a kind of memory-bound op.
struct MemoryOp {
  std::string_view name;
  double share = 1;  // Share of the usual memory bandwidth that the op reaches.
  CostKind kind = CostKind::kMemory;
};
const MemoryOp& memory_op(std::string_view name);

// Range of a prediction, which follows from the errors of measured runs (MeasuredRuns).
//
// If a new run has an error e between the smallest and the largest error of n measured runs, its speed is
// predicted / (1 + e), so the range of a prediction p is
//
//   p / (1 + largest error)  to  p / (1 + smallest error)
//
// The range is not a confidence interval. If a new run resembles the n measured runs, its speed lies in the range with
// a probability of (n - 1) / (n + 1).
struct PredictionRange {
  double low_wps = 0;
  double high_wps = 0;
  MeasuredRuns measured;  // Measured runs that the range follows from.
  // Properties of the predicted run that no measured run has, such as "more than 4 GPUs".
  std::vector<std::string> not_measured;
};

// Returns the range of a prediction of `wps` for a run on a mesh of GPUs of a machine. The range follows from the
// measured runs on the machine, or on all `known` machines if none was on this machine. Only runs with pipeline stages
// count if the mesh has stages, and otherwise only runs without stages.
PredictionRange prediction_range(double wps, const MachineRates& machine, const MeshShape& mesh, int64_t gpus_per_node,
                                 std::span<const MachineRates> known);

// Returns the range that follows from the runs in the machine files, or nothing for a CPU, which has no such runs.
std::optional<PredictionRange> prediction_range(double wps, const Job& job, const MachineRates& machine,
                                                int64_t document_length = 0);

// Returns a text such as "15,900 to 17,300 wps, because 22 measured runs on up to 4 GPUs were predicted 3.2% too slow
// to 5.4% too fast". If something was not measured, the text begins with "unknown, not measured: several nodes; ".
std::string describe(const PredictionRange& range);

}  // namespace octavo
