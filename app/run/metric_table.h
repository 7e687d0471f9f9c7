// kMetrics lists every metric that a run reports about its steps. metrics.jsonl, TensorBoard, Prometheus and the report
// read this table. scripts/wandb_sync.py (Weights & Biases) reads metric_table.json, which each run writes into its
// folder. A new metric is one row here and one MetricRow::set() where it is computed (app/records/metric_row.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo {

// Pairs of a name, such as that of a dataset, and a value.
using NumbersByName = std::vector<std::pair<std::string, double>>;

// How a metric is combined over the steps of a logging interval: the value of the last step, the mean, or the maximum.
enum class Over : uint8_t { kLast, kMean, kMax };

struct MetricSpec {
  const char* key;          // Key in metrics.jsonl. Prometheus has octavo_KEY.
  const char* tag;          // Name in TensorBoard and Weights & Biases.
  const char* title = "";   // Title of the chart in the report. Empty if the report has no chart of it.
  const char* unit = "";    // Unit on the chart.
  Over over = Over::kLast;  // How the steps of a logging interval are combined.
  bool by_dataset = false;  // Whether there is a value per dataset. Its tag is then followed by /NAME.
  bool integer = false;     // Whether the value is written without a decimal point.
  // The following members describe the chart in the report.
  const char* note = "";     // Sentence below the title of the chart.
  double scale = 1;          // Factor that converts the value to the unit of the chart.
  bool smoothed = false;     // Whether a smoothed line is drawn over the values.
  bool from_zero = true;     // Whether the axis includes 0.
  bool logarithmic = false;  // Whether the axis is logarithmic if the values span a wide range.
};

// All metrics in the order of a line of metrics.jsonl. The report draws loss and validation_loss together in a separate
// chart.
inline constexpr MetricSpec kMetrics[] = {
    {.key = "loss", .tag = "train/loss"},
    {.key = "z_loss", .tag = "train/z_loss", .title = "z-loss", .smoothed = true, .from_zero = false},
    {.key = "grad_norm",
     .tag = "optimizer/grad_norm",
     .title = "Gradient norm",
     .note = "before clipping",
     .smoothed = true,
     .from_zero = false,
     .logarithmic = true},
    {.key = "lr", .tag = "optimizer/lr", .title = "Learning rate"},
    {.key = "stage", .tag = "train/stage", .integer = true},
    {.key = "tokens", .tag = "train/tokens", .integer = true},
    {.key = "wps", .tag = "throughput/wps", .title = "Throughput", .unit = "tokens/s per rank"},
    {.key = "mfu", .tag = "throughput/mfu", .title = "MFU", .unit = "% of peak", .scale = 100},
    {.key = "mfu_causal", .tag = "throughput/mfu_causal"},
    {.key = "utilization",
     .tag = "throughput/utilization",
     .title = "Utilization",
     .unit = "% of the peak of each format",
     .scale = 100},
    {.key = "pipeline_bubble",
     .tag = "throughput/pipeline_bubble",
     .title = "Pipeline bubble",
     .unit = "% of a step",
     .note = "time in which a stage waits for other stages, on average",
     .scale = 100},
    {.key = "pipeline_slowest_stage",
     .tag = "throughput/pipeline_slowest_stage",
     .title = "Slowest pipeline stage",
     .unit = "number from 0",
     .integer = true},
    {.key = "tflops", .tag = "throughput/tflops"},
    {.key = "attended_tokens", .tag = "data/attended_tokens", .over = Over::kMean},
    {.key = "step_ms", .tag = "throughput/step_ms", .title = "Time per step", .unit = "ms", .over = Over::kMean},
    {.key = "data_ms", .tag = "data/data_ms", .title = "Waiting for data", .unit = "ms per step", .over = Over::kMean},
    {.key = "memory_gib", .tag = "memory/memory_gib", .title = "Memory", .unit = "GiB per rank"},
    {.key = "watts", .tag = "energy/watts", .title = "Power", .unit = "W per GPU"},
    {.key = "sm_mhz", .tag = "energy/sm_mhz", .title = "Clock", .unit = "MHz"},
    {.key = "joules_per_token", .tag = "energy/joules_per_token", .title = "Energy", .unit = "J per token"},
    {.key = "goodput",
     .tag = "throughput/goodput",
     .title = "Goodput",
     .unit = "% of wall time",
     .note = "in steps that count, over restarts",
     .scale = 100},
    {.key = "wall_s", .tag = "throughput/wall_s"},
    {.key = "precision_gap",
     .tag = "fp8/precision_gap",
     .title = "FP8 compared with bfloat16",
     .unit = "%",
     .note = "mean difference of the losses of equal steps",
     .scale = 100},
    {.key = "skipped_steps", .tag = "events/skipped_steps", .integer = true},
    {.key = "loss_z", .tag = "events/loss_z"},
    {.key = "grad_norm_z", .tag = "events/grad_norm_z"},
    {.key = "slowdown", .tag = "events/slowdown", .over = Over::kMax},
    {.key = "validation_loss", .tag = "validation/loss"},
    {.key = "loss_by_dataset",
     .tag = "train/loss_by_dataset",
     .title = "Loss by dataset",
     .unit = "nats per token",
     .by_dataset = true,
     .smoothed = true,
     .from_zero = false},
    {.key = "validation_loss_by_dataset",
     .tag = "validation",
     .title = "Validation loss by dataset",
     .unit = "nats per token",
     .by_dataset = true,
     .from_zero = false},
    {.key = "evaluation_step", .tag = "evaluation_step", .integer = true},
    {.key = "evaluation",
     .tag = "evaluation",
     .title = "Results of checkpoint.command",
     .by_dataset = true,
     .note = "at the step that was logged when the command had ended",
     .from_zero = false},
    {.key = "epochs", .tag = "data/epochs", .title = "Epochs", .unit = "of a dataset", .by_dataset = true},
};
inline constexpr size_t kNumMetrics = std::size(kMetrics);

// Index of a metric in kMetrics, made from its key at compile time. A key that does not exist is a compile error.
struct MetricKey {
  consteval MetricKey(std::string_view key) {  // NOLINT: a key stands wherever a metric is named
    while (kMetrics[index].key != key) ++index;
  }
  consteval MetricKey(const char* key) : MetricKey(std::string_view(key)) {}  // NOLINT

  size_t index = 0;
};

}  // namespace octavo
