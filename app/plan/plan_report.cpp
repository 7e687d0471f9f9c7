#include "app/plan/plan_report.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>

#include "app/config/config_names.h"
#include "app/resolve/mesh_choice.h"
#include "core/error.h"
#include "core/format.h"
#include "core/table.h"

namespace octavo {

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kShownItems = 10;  // Number of items of memory and of a step that are printed without --all.

std::string thousands(double value) { return with_thousands_separators(std::llround(value)); }

// Adds a row for an item, with its share of `total` bytes.
void add_item(Table& table, const MemoryItem& item, int64_t total, const char* needed_for) {
  table.row()
      .add({"name", "memory per rank", -34}, item.name)
      .add({"count", "count", 5}, item.count > 0 ? OrderedJson(item.count) : OrderedJson(""))
      .add({"bytes", "GiB", 9, "{:.3f}", 1.0 / static_cast<double>(kGiB)}, item.bytes)
      .add({"", "share", 6, "{:.1f}%", 100}, static_cast<double>(item.bytes) / static_cast<double>(total))
      .add({"lifetime", "needed for", -1}, needed_for);
}

OrderedJson items_json(const std::vector<MemoryItem>& items) {
  Table table;
  for (const MemoryItem& item : items) add_item(table, item, 1, lifetime_name(item.lifetime));
  return table.json();
}

OrderedJson memory_json(const Job& job) {
  const MemoryPlan& memory = job.memory;
  const ShardingOptions sharding = job.sharding();
  const ActivationCheckpointing& checkpointing = job.config.activation_checkpointing;
  return {{"items", items_json(memory.items)},
          {"overlaid", items_json(memory.overlaid)},
          {"allocated_bytes", memory.arena_bytes},
          {"outside_bytes", memory.budget.outside},
          {"total_bytes", memory.total_bytes()},
          {"margin_bytes", memory.budget.margin},
          {"available_bytes", memory.budget.available == 0 ? OrderedJson() : OrderedJson(memory.budget.available)},
          {"fits", memory.fits()},
          {"reshard_after_forward", sharding.reshard_after_forward},
          {"accumulate_unsharded", sharding.accumulate_unsharded},
          {"activation_checkpointing",
           {{"mode", name_of(config_names::kMode, checkpointing.mode)}, {"ratio", checkpointing.ratio}}}};
}

void add_part(Table& table, const char* title, const StepCost& cost, double step_s) {
  const bool has_rate = cost.flops > 0 && cost.seconds > 0;
  table.row()
      .add({"name", title, -40}, cost.name)
      .add({"kind"}, cost_kind_name(cost.kind))
      .add({"ms", "ms", 9, "{:.3f}"}, cost.seconds * 1e3)
      .add({"", "share", 6, "{:.1f}%", 100}, cost.seconds / step_s)
      .add({"flops"}, cost.flops)
      .add({"bytes"}, cost.bytes)
      .add({"", "TFLOP/s", 8, "{:.0f}"}, has_rate ? OrderedJson(cost.flops / cost.seconds / 1e12) : OrderedJson(""));
}

std::optional<PredictionRange> range_of(const PlanReport& report) {
  return prediction_range(report.plan.prediction->wps, report.plan.job, *report.target.machine,
                          report.target.document_length);
}

OrderedJson range_json(const PredictionRange& range) {
  return {{"low_wps", range.low_wps},
          {"high_wps", range.high_wps},
          {"smallest_error", range.measured.smallest_error},
          {"largest_error", range.measured.largest_error},
          {"measured_runs", range.measured.runs},
          {"measured_gpus", range.measured.gpus},
          {"not_measured", range.not_measured}};
}

// Returns the kinds of costs that a step can have.
std::vector<CostKind> kinds_of(const StepPrediction& p) {
  std::vector<CostKind> kinds(std::begin(kCostKinds), std::end(kCostKinds));
  if (p.stages.empty()) std::erase(kinds, CostKind::kStages);
  return kinds;
}

// Returns a row per pipeline stage.
Table stage_table(const Plan& plan) {
  Table table;
  for (size_t i = 0; i < plan.job.memory.stage_bytes.size(); ++i) {
    table.row()
        .add({"stage", "pipeline stage", 14}, i)
        .add({"total_bytes", "GiB", 9, "{:.3f}", 1.0 / static_cast<double>(kGiB)},
             plan.job.memory.stage_bytes[i] + plan.job.memory.budget.outside);
    if (!plan.prediction) continue;
    const StagePrediction& stage = plan.prediction->stages[i];
    table.add({"blocks", "blocks", 7}, stage.blocks)
        .add({"busy_ms", "busy, ms", 10, "{:.1f}"}, stage.busy_s * 1e3)
        .add({"waiting_ms", "waiting, ms", 12, "{:.1f}"}, stage.waiting_s * 1e3)
        .add({"", "share", 6, "{:.1f}%", 100}, stage.waiting_s / plan.prediction->step_s);
  }
  return table;
}

OrderedJson pipeline_json(const Plan& plan) {
  OrderedJson json{{"stages", stage_table(plan).json()}};
  if (!plan.prediction) return json;
  json["bubble"] = plan.prediction->bubble();
  json["slowest_stage"] = plan.prediction->slowest_stage();
  json["transfer_ms"] = plan.prediction->stage_transfer_s * 1e3;
  return json;
}

OrderedJson prediction_json(const StepPrediction& p) {
  OrderedJson kinds;
  for (const CostKind kind : kinds_of(p)) kinds[cost_kind_name(kind)] = p.seconds(kind) * 1e3;
  Table parts;
  for (const StepCost& cost : p.costs) add_part(parts, "step", cost, p.step_s);
  return {{"step_ms", p.step_s * 1e3},
          {"wps", p.wps},
          {"mfu", p.use.mfu},
          {"mfu_causal", p.use.mfu_causal},
          {"utilization", p.use.utilization},
          {"floor_ms", p.floor_s * 1e3},
          {"communication_ms", p.communication_s * 1e3},
          {"bound", cost_kind_name(p.bound)},
          {"ms_by_kind", kinds},
          {"parts", parts.json()}};
}

// Returns a text such as "selective" or "block 0.25".
std::string checkpointing_text(const ActivationCheckpointing& checkpointing) {
  const std::string mode = name_of(config_names::kMode, checkpointing.mode);
  const bool has_ratio = checkpointing.mode == ActivationCheckpointing::Mode::kBlock;
  return has_ratio ? fmt::format("{} {:.3g}", mode, checkpointing.ratio) : mode;
}

OrderedJson mesh_json(const MeshShape& mesh) {
  OrderedJson sizes;
  for (const MeshAxis& axis : kMeshAxes) sizes[axis.name] = mesh.*axis.size;
  return sizes;
}

// Returns the number of steps of the run, or of the planned stage.
int64_t num_steps(const StageConfig& config) { return config.training.steps - config.stage.steps_before; }

int64_t num_tokens(const StageConfig& config) {
  const BatchSchedule batches = config.training.batch_schedule();
  return (batches.samples(config.training.steps) - batches.samples(config.stage.steps_before)) * config.data.seq_len;
}

// Predicted time of the planned steps, without validation.
double run_seconds(const PlanReport& report) {
  const double tokens = static_cast<double>(num_tokens(report.plan.job.config));
  return tokens / report.plan.prediction->wps / static_cast<double>(report.target.place.ranks);
}

double gpu_hours(const PlanReport& report) {
  return run_seconds(report) / 3600 * static_cast<double>(report.target.place.ranks);
}

// Returns "1f1b" or "interleaved 4", where 4 is the number of chunks, or "-" without pipeline stages.
std::string schedule_text(const Plan& plan) {
  const ParallelConfig& parallel = plan.job.config.parallel;
  if (plan.job.mesh.shape.pipeline == 1) return "-";
  std::string text = name_of(config_names::kPipelineSchedule, parallel.pipeline_schedule);
  return parallel.pipeline_chunks == 1 ? text : fmt::format("{} {}", text, parallel.pipeline_chunks);
}

Table search_table(const PlanReport& report) {
  Table table;
  for (const Plan& found : report.found) {
    const StepPrediction& step = *found.prediction;
    const ActivationCheckpointing& checkpointing = found.job.config.activation_checkpointing;
    table.row()
        .add({"changes"}, differences(report.plan, found))
        .add({"wps", "wps", 8, ","}, step.wps)
        .add({"mfu", "mfu", 6, "{:.1f}%", 100}, step.use.mfu)
        .add({"mesh"}, mesh_json(found.job.mesh.shape));
    for (const MeshAxis& axis : kMeshAxes) {
      const bool used =
          std::ranges::any_of(report.found, [&](const Plan& plan) { return plan.job.mesh.shape.*axis.size > 1; });
      if (used) table.add({"", axis.name, static_cast<int>(std::strlen(axis.name))}, found.job.mesh.shape.*axis.size);
    }
    table.add({"", "schedule", -14}, schedule_text(found))
        .add({"", "recompute", -12}, checkpointing_text(checkpointing))
        .add({"checkpointing"}, name_of(config_names::kMode, checkpointing.mode))
        .add({"ratio"}, checkpointing.ratio)
        .add({"reshard_after_forward", "reshard_after_forward", 21}, found.job.sharding().reshard_after_forward)
        .add({"accumulate_unsharded", "accumulate_unsharded", 20}, found.job.sharding().accumulate_unsharded)
        .add({"micro_batch_size", "micro-batch", 11}, found.job.config.training.micro_batch_size)
        .add({"step_ms", "step ms", 9, "{:.1f}"}, step.step_s * 1e3)
        .add({"total_bytes", "GiB", 6, "{:.1f}", 1.0 / static_cast<double>(kGiB)}, found.job.memory.total_bytes())
        .add({"bound", "most of it", -10}, cost_kind_name(step.bound));
  }
  return table;
}

std::string device_of(const PlanTarget& target) { return target.machine ? target.machine->device : "cpu"; }

// Prints whether the plan fits, and the predicted speed.
void print_verdict(const PlanReport& r) {
  const MemoryPlan& memory = r.plan.job.memory;
  const std::string where = fmt::format("{} x {}", r.target.place.ranks, device_of(r.target));
  if (memory.budget.available == 0) {
    std::cout << fmt::format("{:.2f} GiB per rank on {}\n", gib(memory.total_bytes()), where);
  } else {
    std::cout << fmt::format("{} on {}: {:.2f} of {:.2f} GiB per rank, {:.2f} kept free\n",
                             memory.fits() ? "fits" : "does not fit", where, gib(memory.total_bytes()),
                             gib(memory.budget.available), gib(memory.budget.margin));
  }
  if (!r.plan.prediction) {
    std::cout << "no prediction: it needs a machine file of this CPU (octavo doctor --save FILE, --machine FILE)\n";
    return;
  }
  const StepPrediction& p = *r.plan.prediction;
  std::cout << fmt::format("predicted: step {:.1f} ms  wps {}  mfu {:.1f}%  utilization {:.1f}%, most of it {}\n",
                           p.step_s * 1e3, thousands(p.wps), 100 * p.use.mfu, 100 * p.use.utilization,
                           cost_kind_name(p.bound));
  if (p.use.mfu > 1) std::cout << fmt::format("  ({})\n", kAbove100);
  if (const std::optional<PredictionRange> range = range_of(r)) {
    std::cout << fmt::format("range: {}\n", describe(*range));
  }
  if (!r.target.machine->not_measured.empty()) {
    std::cout << fmt::format("rates not measured on an {}: {}\n", device_of(r.target),
                             fmt::join(r.target.machine->not_measured, "; "));
  }
  if (r.advice_wps > 0) std::cout << fmt::format("faster, {} wps: {}\n", thousands(r.advice_wps), r.advice);
}

void print_set_up(const PlanReport& r) {
  const Config& config = r.plan.job.config;
  const LmHeadPrecision lm_head = config.precision.lm_head;
  std::cout << fmt::format(
      "{} parameters, {} linears{}, micro-batch {} x {} tokens{}, {} sequences per step\n",
      with_thousands_separators(config.model.num_parameters()), precision_name(config.precision),
      lm_head == LmHeadPrecision::kBFloat16 ? "" : fmt::format(", lm_head {}", traits(lm_head).name),
      config.training.micro_batch_size, config.data.seq_len,
      r.target.document_length == 0 ? "" : fmt::format(" in documents of {} on average", r.target.document_length),
      config.training.global_batch_size);
  if (!r.plan.job.mesh.reason.empty()) std::cout << r.plan.job.mesh.reason << "\n";
  const ShardingOptions sharding = r.plan.job.sharding();
  std::cout << fmt::format(
      "{}; {}{}, activation checkpointing {}\n\n", describe(r.plan.job.mesh.shape),
      sharding.reshard_after_forward ? "full weights gathered again in backward" : "full weights kept",
      sharding.accumulate_unsharded ? ", gradients reduced once per step" : "",
      checkpointing_text(r.plan.job.config.activation_checkpointing));
}

// Returns the first kShownItems items and their remainder summed up as one more item, or all items if `all` is true.
template <typename Item, typename Number>
std::vector<Item> shown(std::vector<Item> items, bool all, Number Item::*number) {
  if (all || items.size() <= kShownItems) return items;
  Item rest{.name = fmt::format("{} more, with --all", items.size() - kShownItems)};
  for (; items.size() > kShownItems; items.pop_back()) rest.*number += items.back().*number;
  items.push_back(rest);
  return items;
}

void print_memory(const MemoryPlan& memory, bool all) {
  Table table;
  const auto add = [&](const MemoryItem& item, const char* needed_for) {
    add_item(table, item, memory.total_bytes(), needed_for);
  };
  for (const MemoryItem& item : shown(memory.items, all, &MemoryItem::bytes))
    add(item, item.count > 0 ? lifetime_name(item.lifetime) : "");
  for (const MemoryItem& item : memory.overlaid) {
    if (all) add(item, "uses memory of the items above, at other times");
  }
  add({.name = "allocated at the start", .bytes = memory.arena_bytes}, "");
  if (memory.budget.outside != 0)
    add({.name = "outside of the arena, estimated", .bytes = memory.budget.outside}, "CUDA, libraries");
  std::cout << table.text() << "\n";
}

void print_prediction(const StepPrediction& p, bool all) {
  Table parts;
  for (const StepCost& cost : shown(p.costs, all, &StepCost::seconds)) add_part(parts, "step", cost, p.step_s);
  Table kinds;
  for (const CostKind kind : kinds_of(p))
    add_part(kinds, "kind", {.name = cost_kind_name(kind), .seconds = p.seconds(kind)}, p.step_s);
  std::cout << parts.text() << "\n" << kinds.text() << "\n";
}

void print_stages(const Plan& plan) {
  if (plan.job.mesh.shape.pipeline == 1) return;
  if (const std::optional<StepPrediction>& p = plan.prediction) {
    std::cout << fmt::format(
        "pipeline stage {} is the slowest; a stage waits for {:.1f}% of a step on average, and a transfer takes {:.2f} "
        "ms\n",
        p->slowest_stage(), 100 * p->bubble(), p->stage_transfer_s * 1e3);
  }
  std::cout << stage_table(plan).text() << "\n";
}

void print_run(const PlanReport& r) {
  const StageConfig& config = r.plan.job.config;
  std::cout << (config.stage.number > 0 ? fmt::format("stage {}", config.stage.number) : "this run")
            << fmt::format(": {} steps, {} tokens", with_thousands_separators(num_steps(config)),
                           with_thousands_separators(num_tokens(config)));
  if (r.plan.prediction) {
    std::cout << fmt::format(" in {}, {:.1f} GPU-hours", format_duration(run_seconds(r)), gpu_hours(r));
  }
  std::cout << "\n";
}

void print_flops(const Config& config) {
  std::cout << fmt::format("FLOPs per token: {:.4g} G as mfu counts them; causal:",
                           config.model.flops_per_token(config.data.seq_len) / 1e9);
  for (const auto& [part, flops] : flops_by_part(config.model, config.data.seq_len)) {
    std::cout << fmt::format("  {} {:.3g} G", part, flops / 1e9);
  }
  std::cout << "\n\n";
}

}  // namespace

OrderedJson plan_json(const PlanReport& report) {
  const PlanTarget& target = report.target;
  const Plan& plan = report.plan;
  const StageConfig& config = plan.job.config;
  OrderedJson json{{"parameters", config.model.num_parameters()},
                   {"linear", precision_name(config.precision)},
                   {"lm_head", traits(config.precision.lm_head).name},
                   {"ranks", target.place.ranks},
                   {"device", device_of(target)},
                   {"mesh", mesh_json(plan.job.mesh.shape)},
                   {"seq_len", config.data.seq_len},
                   {"micro_batch_size", config.training.micro_batch_size},
                   {"global_batch_size", config.training.global_batch_size},
                   {"steps", num_steps(config)},
                   {"tokens", num_tokens(config)},
                   {"flops_per_token", config.model.flops_per_token(config.data.seq_len)}};
  if (target.document_length > 0) json["document_length"] = target.document_length;
  if (!plan.job.mesh.reason.empty()) json["mesh_reason"] = plan.job.mesh.reason;
  for (const auto& [part, flops] : flops_by_part(config.model, config.data.seq_len)) {
    json["flops_by_part"][part] = flops;
  }
  if (config.stage.number > 0) json["stage"] = config.stage.number;
  json["memory"] = memory_json(plan.job);
  if (plan.job.mesh.shape.pipeline > 1) json["pipeline"] = pipeline_json(plan);
  json["prediction"] = plan.prediction ? prediction_json(*plan.prediction) : OrderedJson();
  if (plan.prediction) {
    const std::optional<PredictionRange> range = range_of(report);
    json["prediction"]["range"] = range ? range_json(*range) : OrderedJson();
    json["prediction"]["rates_not_measured"] = target.machine->not_measured;
    json["run"] = {{"seconds", run_seconds(report)}, {"gpu_hours", gpu_hours(report)}};
  }
  json["advice"] = report.advice.empty() ? OrderedJson() : OrderedJson(report.advice);
  if (report.advice_wps > 0) json["advice_wps"] = report.advice_wps;
  if (!report.found.empty()) json["search"] = search_table(report).json();
  return json;
}

void print_plan(const PlanReport& r, bool all) {
  print_verdict(r);
  const int64_t stage = r.plan.job.config.stage.number;
  if (stage > 0) std::cout << fmt::format("stage {}, which takes the most memory of all stages\n", stage);
  print_set_up(r);
  print_stages(r.plan);
  print_memory(r.plan.job.memory, all);
  if (r.plan.prediction) print_prediction(*r.plan.prediction, all);
  print_flops(r.plan.job.config);
  print_run(r);
}

void print_search(const PlanReport& r) {
  std::cout << search_table(r).text();
  if (r.found.empty()) return;
  const std::string changes = differences(r.plan, r.found.front());
  std::cout << "the fastest: " << (changes.empty() ? "the config as it is" : changes) << "\n";
}

}  // namespace octavo
