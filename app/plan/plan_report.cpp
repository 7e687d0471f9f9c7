#include "app/plan/plan_report.h"

#include <algorithm>
#include <cmath>
#include <iostream>

#include "app/config/config_check.h"
#include "app/config/config_names.h"
#include "app/process/runtime.h"
#include "core/error.h"
#include "core/format.h"

namespace octavo {

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kShownItems = 10;  // of memory and of a step, unless all are asked for

double gib(const OrderedJson& bytes) { return octavo::gib(bytes.get<double>()); }

std::string thousands(const OrderedJson& value) { return with_thousands_separators(std::llround(value.get<double>())); }

OrderedJson items_json(const std::vector<MemoryItem>& items) {
  OrderedJson rows = OrderedJson::array();
  for (const MemoryItem& item : items) {
    rows.push_back({{"name", item.name},
                    {"count", item.count},
                    {"bytes", item.bytes},
                    {"lifetime", lifetime_name(item.lifetime)}});
  }
  return rows;
}

OrderedJson memory_json(const MemoryPlan& memory) {
  return {{"items", items_json(memory.items)},
          {"overlaid", items_json(memory.overlaid)},
          {"allocated_bytes", memory.arena_bytes},
          {"outside_bytes", memory.room.outside},
          {"total_bytes", memory.total_bytes()},
          {"margin_bytes", memory.room.margin},
          {"available_bytes", memory.room.available == 0 ? OrderedJson() : OrderedJson(memory.room.available)},
          {"fits", memory.fits()},
          {"reshard_after_forward", memory.sharding.reshard_after_forward},
          {"accumulate_unsharded", memory.sharding.accumulate_unsharded},
          {"activation_checkpointing",
           {{"mode", name_of(config_names::kMode, memory.checkpointing.mode)}, {"ratio", memory.checkpointing.ratio}}}};
}

OrderedJson prediction_json(const StepPrediction& p) {
  OrderedJson kinds;
  for (const CostKind kind :
       {CostKind::kProduct, CostKind::kAttention, CostKind::kMemory, CostKind::kOptimizer, CostKind::kCommunication}) {
    kinds[cost_kind_name(kind)] = p.seconds(kind) * 1e3;
  }
  OrderedJson parts = OrderedJson::array();
  for (const StepCost& cost : p.costs) {
    parts.push_back({{"name", cost.name},
                     {"kind", cost_kind_name(cost.kind)},
                     {"ms", cost.seconds * 1e3},
                     {"flops", cost.flops},
                     {"bytes", cost.bytes}});
  }
  return {{"step_ms", p.step_s * 1e3},
          {"wps", p.wps},
          {"mfu", p.mfu},
          {"floor_ms", p.floor_s * 1e3},
          {"communication_ms", p.communication_s * 1e3},
          {"bound", cost_kind_name(p.bound)},
          {"ms_by_kind", kinds},
          {"parts", parts}};
}

// " 0.25" after mode block.
std::string ratio_text(const std::string& mode, const OrderedJson& ratio) {
  return mode == "block" ? fmt::format(" {:.3g}", ratio.get<double>()) : "";
}

OrderedJson mesh_json(const MeshShape& mesh) {
  OrderedJson sizes;
  for (const MeshAxis& axis : kMeshAxes) sizes[axis.name] = mesh.*axis.size;
  return sizes;
}

// Dollars of a billion tokens.
double cost_of_billion(double price, double wps) { return price / 3600 / wps * 1e9; }

// Those of the run, or where it has stages of the one that is planned.
int64_t num_steps(const Config& config) { return config.training.steps - config.stage.steps_before; }

int64_t num_tokens(const Config& config) {
  const BatchSchedule batches = config.training.batch_schedule();
  return (batches.samples(config.training.steps) - batches.samples(config.stage.steps_before)) * config.data.seq_len;
}

// What these steps take, without validation and checkpoints.
OrderedJson run_json(const Config& config, const StepPrediction& step, int64_t gpus, double price) {
  const double seconds = static_cast<double>(num_tokens(config)) / step.wps / static_cast<double>(gpus);
  const double gpu_hours = seconds / 3600 * static_cast<double>(gpus);
  OrderedJson json{{"seconds", seconds}, {"gpu_hours", gpu_hours}};
  if (price > 0) json["dollars"] = gpu_hours * price;
  return json;
}

// Returns the seconds of steps between two saves of any kind, at most those of the whole run, `steps_s`.
double save_interval_s(const CheckpointConfig& checkpoint, double step_s, double steps_s) {
  double interval_s = steps_s;
  const auto saves_every = [&](double seconds) {
    if (seconds > 0) interval_s = std::min(interval_s, seconds);
  };
  saves_every(static_cast<double>(checkpoint.every) * step_s);
  saves_every(60 * checkpoint.every_minutes);
  if (checkpoint.in_memory) saves_every(static_cast<double>(checkpoint.in_memory_every) * step_s);
  return interval_s;
}

OrderedJson goodput_json(const Config& config, const StepPrediction& step, int64_t gpus, const PlanReport& report) {
  const FailureRates& failures = report.failures;
  const double steps_s = static_cast<double>(num_tokens(config)) / step.wps / static_cast<double>(gpus);
  const double interval_s = save_interval_s(config.checkpoint, step.step_s, steps_s);
  const double share = goodput(failures, gpus, interval_s);
  const double best_s = std::clamp(best_interval_s(failures, gpus), std::min(step.step_s, steps_s), steps_s);
  OrderedJson json{{"goodput", share},
                   {"wall_seconds", steps_s / share},
                   {"failures", steps_s / share / seconds_between_failures(failures, gpus)},
                   {"seconds_between_failures", seconds_between_failures(failures, gpus)},
                   {"restart_seconds", failures.restart_s > 0 ? failures.restart_s : restart_seconds(gpus)},
                   {"steps_between_saves", interval_s / step.step_s},
                   {"best_steps_between_saves", best_s / step.step_s},
                   {"best_goodput", goodput(failures, gpus, best_s)}};
  if (report.price_per_gpu_hour > 0) {
    json["dollars"] = steps_s / share / 3600 * static_cast<double>(gpus) * report.price_per_gpu_hour;
  }
  return json;
}

std::string mesh_text(const OrderedJson& mesh) {
  std::string text;
  for (const MeshAxis& axis : kMeshAxes) {
    const auto size = mesh[axis.name].get<int64_t>();
    if (axis.always_named || size > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", axis.name, size);
  }
  return text;
}

// Whether it fits, and how fast it would be.
void print_verdict(const OrderedJson& r) {
  const OrderedJson& memory = r["memory"];
  const std::string where = fmt::format("{} x {}", r["ranks"].get<int64_t>(), r["device"].get<std::string>());
  if (memory["available_bytes"].is_null()) {
    std::cout << fmt::format("{:.2f} GiB a rank on {}\n", gib(memory["total_bytes"]), where);
  } else {
    std::cout << fmt::format("{} on {}: {:.2f} of {:.2f} GiB a rank, {:.2f} to be left free\n",
                             memory["fits"].get<bool>() ? "fits" : "does not fit", where, gib(memory["total_bytes"]),
                             gib(memory["available_bytes"]), gib(memory["margin_bytes"]));
  }
  if (r["prediction"].is_null()) {
    std::cout << "no prediction: that takes a machine file of this CPU (octavo doctor --save FILE, --machine FILE)\n";
    return;
  }
  const OrderedJson& p = r["prediction"];
  std::cout << fmt::format("predicted: step {:.1f} ms  wps {}  mfu {:.1f}%, most of it {}\n",
                           p["step_ms"].get<double>(), thousands(p["wps"]), 100 * p["mfu"].get<double>(),
                           p["bound"].get<std::string>());
  if (r.contains("advice_wps")) {
    std::cout << fmt::format("faster, {} wps: {}\n", thousands(r["advice_wps"]), r["advice"].get<std::string>());
  }
}

void print_set_up(const OrderedJson& r) {
  const bool anew = r["memory"]["reshard_after_forward"];
  const OrderedJson& checkpointing = r["memory"]["activation_checkpointing"];
  const auto mode = checkpointing["mode"].get<std::string>();
  const auto lm_head = r["lm_head"].get<std::string>();
  std::cout << fmt::format(
      "{} parameters, {} linears{}, micro-batch {} x {} tokens, {} sequences a step\n", thousands(r["parameters"]),
      r["linear"].get<std::string>(), lm_head == traits(LmHeadPrecision::kBFloat16).name ? "" : ", lm_head " + lm_head,
      r["micro_batch_size"].get<int64_t>(), r["seq_len"].get<int64_t>(), r["global_batch_size"].get<int64_t>());
  if (r.contains("mesh_reason")) std::cout << r["mesh_reason"].get<std::string>() << "\n";
  std::cout << fmt::format("{}; {}, activation checkpointing {}{}\n\n", mesh_text(r["mesh"]),
                           anew ? "full weights gathered anew in backward" : "full weights kept", mode,
                           ratio_text(mode, checkpointing["ratio"]));
}

void print_memory(const OrderedJson& memory, bool all) {
  std::cout << fmt::format("{:<34}{:>7}{:>11}{:>8}  {}\n", "memory, one rank", "count", "GiB", "share", "needed for");
  const double total = memory["total_bytes"].get<double>();
  const auto row = [&](const std::string& name, const std::string& count, const OrderedJson& bytes,
                       const std::string& note) {
    const std::string line = fmt::format("{:<34}{:>7}{:>11.3f}{:>7.1f}%  {}", name, count, gib(bytes),
                                         100 * bytes.get<double>() / total, note);
    std::cout << line.substr(0, line.find_last_not_of(' ') + 1) << "\n";
  };
  const OrderedJson& items = memory["items"];
  int64_t rest = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const OrderedJson& item = items[i];
    if (!all && i >= kShownItems) {
      rest += item["bytes"].get<int64_t>();
      continue;
    }
    row(item["name"], std::to_string(item["count"].get<int64_t>()), item["bytes"], item["lifetime"]);
  }
  if (!all && items.size() > kShownItems) {
    row(fmt::format("{} more, with --all", items.size() - kShownItems), "", rest, "");
  }
  for (const OrderedJson& item : memory["overlaid"]) {
    if (!all) break;
    std::cout << fmt::format("{:<34}{:>7}{:>11}{:>8}  {}\n", item["name"].get<std::string>(),
                             item["count"].get<int64_t>(), fmt::format("({:.3f})", gib(item["bytes"])), "",
                             "in memory of the above, at other times");
  }
  row("allocated at the start", "", memory["allocated_bytes"], "");
  if (memory["outside_bytes"] != 0) row("outside of it, an estimate", "", memory["outside_bytes"], "CUDA, libraries");
  std::cout << "\n";
}

void print_prediction(const OrderedJson& p, bool all) {
  const double step_ms = p["step_ms"];
  const auto row = [&](const std::string& name, double ms, const std::string& rate) {
    const std::string line = fmt::format("{:<40}{:>11.3f}{:>7.1f}%{:>17}", name, ms, 100 * ms / step_ms, rate);
    std::cout << line.substr(0, line.find_last_not_of(' ') + 1) << "\n";
  };
  std::cout << fmt::format("{:<40}{:>11}{:>8}{:>17}\n", "step", "ms", "share", "rate");
  const OrderedJson& parts = p["parts"];
  double rest_ms = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const double ms = parts[i]["ms"];
    if (!all && i >= kShownItems) {
      rest_ms += ms;
      continue;
    }
    const bool has_rate = parts[i]["flops"] > 0 && ms > 0;
    row(parts[i]["name"], ms,
        has_rate ? fmt::format("{:.0f} TFLOP/s", parts[i]["flops"].get<double>() / ms / 1e9) : "");
  }
  if (!all && parts.size() > kShownItems) {
    row(fmt::format("{} more, with --all", parts.size() - kShownItems), rest_ms, "");
  }
  std::cout << "\n";
  for (const auto& [kind, ms] : p["ms_by_kind"].items()) row(kind, ms.get<double>(), "");
  std::cout << "\n";
}

constexpr double kSecondsADay = 86400;

void print_goodput(const OrderedJson& g) {
  const std::string between = format_duration(g["seconds_between_failures"]);
  constexpr double kNone = 0.05;
  if (g["failures"] < kNone) {
    std::cout << fmt::format("failures: one in {} is expected of as many GPUs, none in this run\n", between);
    return;
  }
  constexpr double kNever = 1e-3;
  if (g["goodput"] < kNever) {
    std::cout << fmt::format("with a failure in {} on average, the run does not end: save more often\n", between);
    return;
  }
  const double wall_s = g["wall_seconds"];
  std::cout << fmt::format(
      "with a failure in {} on average: {:.2f} days ({}){}, goodput {:.1f}% with restarts of {} and a save every "
      "{:.0f} "
      "steps; {:.1f}% with one every {:.0f} steps\n",
      between, wall_s / kSecondsADay, format_duration(wall_s),
      g.contains("dollars") ? fmt::format(", {:.2f} dollars", g["dollars"].get<double>()) : "",
      100 * g["goodput"].get<double>(), format_duration(g["restart_seconds"]), g["steps_between_saves"].get<double>(),
      100 * g["best_goodput"].get<double>(), g["best_steps_between_saves"].get<double>());
}

void print_run(const OrderedJson& r) {
  const auto steps = r["steps"].get<int64_t>();
  const std::string tokens =
      fmt::format("{} steps, {} tokens", with_thousands_separators(steps), thousands(r["tokens"]));
  const std::string what = r.contains("stage") ? fmt::format("stage {}", r["stage"].get<int64_t>()) : "this run";
  if (!r.contains("run")) {
    std::cout << fmt::format("{}: {}\n", what, tokens);
    return;
  }
  const OrderedJson& run = r["run"];
  const double seconds = run["seconds"];
  std::cout << fmt::format("{}: {} in {:.2f} days ({}), {:.1f} GPU-hours", what, tokens, seconds / kSecondsADay,
                           format_duration(seconds), run["gpu_hours"].get<double>());
  if (run.contains("dollars")) {
    std::cout << fmt::format(", {:.2f} dollars; {:.2f} dollars a billion tokens", run["dollars"].get<double>(),
                             r["dollars_per_billion_tokens"].get<double>());
  }
  std::cout << "\n";
  print_goodput(r["goodput"]);
}

void print_flops(const OrderedJson& report) {
  std::cout << fmt::format("FLOPs a token: {:.4g} G as mfu counts them; causal:",
                           report["flops_per_token"].get<double>() / 1e9);
  for (const auto& [part, flops] : report["flops_by_part"].items()) {
    std::cout << fmt::format("  {} {:.3g} G", part, flops.get<double>() / 1e9);
  }
  std::cout << "\n\n";
}

}  // namespace

OrderedJson plan_json(const PlanReport& report, const PlanTarget& target) {
  const Plan& plan = report.plan;
  const Config& config = plan.config;
  OrderedJson json{{"parameters", config.model.num_parameters()},
                   {"linear", precision_name(config.precision)},
                   {"lm_head", traits(config.precision.lm_head).name},
                   {"ranks", target.gpus},
                   {"device", target.machine ? target.machine->device : "cpu"},
                   {"mesh", mesh_json(plan.mesh)},
                   {"seq_len", config.data.seq_len},
                   {"micro_batch_size", config.training.micro_batch_size},
                   {"global_batch_size", config.training.global_batch_size},
                   {"steps", num_steps(config)},
                   {"tokens", num_tokens(config)},
                   {"flops_per_token", config.model.flops_per_token(config.data.seq_len)}};
  if (!report.mesh_reason.empty()) json["mesh_reason"] = report.mesh_reason;
  for (const TokenFlops& part : flops_by_part(config.model, config.data.seq_len)) {
    json["flops_by_part"][part.part] = part.flops;
  }
  if (config.stage.number > 0) json["stage"] = config.stage.number;
  json["memory"] = memory_json(plan.memory);
  json["prediction"] = plan.prediction ? prediction_json(*plan.prediction) : OrderedJson();
  if (plan.prediction) json["run"] = run_json(config, *plan.prediction, target.gpus, report.price_per_gpu_hour);
  if (plan.prediction) json["goodput"] = goodput_json(config, *plan.prediction, target.gpus, report);
  if (report.price_per_gpu_hour > 0 && plan.prediction) {
    json["dollars_per_billion_tokens"] = cost_of_billion(report.price_per_gpu_hour, plan.prediction->wps);
  }
  json["advice"] = report.advice.empty() ? OrderedJson() : OrderedJson(report.advice);
  if (report.advice_wps > 0) json["advice_wps"] = report.advice_wps;
  for (const Plan& found : report.found) {
    OrderedJson row{{"changes", differences(plan, found)},
                    {"mesh", mesh_json(found.mesh)},
                    {"micro_batch_size", found.config.training.micro_batch_size},
                    {"checkpointing", name_of(config_names::kMode, found.memory.checkpointing.mode)},
                    {"ratio", found.memory.checkpointing.ratio},
                    {"reshard_after_forward", found.memory.sharding.reshard_after_forward},
                    {"accumulate_unsharded", found.memory.sharding.accumulate_unsharded},
                    {"total_bytes", found.memory.total_bytes()},
                    {"step_ms", found.prediction->step_s * 1e3},
                    {"wps", found.prediction->wps},
                    {"mfu", found.prediction->mfu},
                    {"bound", cost_kind_name(found.prediction->bound)}};
    if (report.price_per_gpu_hour > 0)
      row["dollars_per_billion_tokens"] = cost_of_billion(report.price_per_gpu_hour, found.prediction->wps);
    json["search"].push_back(row);
  }
  return json;
}

void print_plan(const OrderedJson& r, bool all) {
  print_verdict(r);
  if (r.contains("stage"))
    std::cout << fmt::format("stage {}, which takes the most memory of all\n", r["stage"].get<int64_t>());
  print_set_up(r);
  print_memory(r["memory"], all);
  if (!r["prediction"].is_null()) print_prediction(r["prediction"], all);
  print_flops(r);
  print_run(r);
}

void print_search(const OrderedJson& r) {
  std::string axes;
  for (const MeshAxis& axis : kMeshAxes) axes += fmt::format("  {}", axis.name);
  std::cout << fmt::format("{:>10}{:>8}{}  {:<14}{:<6}{:<8}{:>11}{:>11}{:>8}{:>13}  {}\n", "wps", "mfu", axes,
                           "recompute", "anew", "reduced", "micro-batch", "step ms", "GiB", "dollars/1e9",
                           "most of it");
  for (const OrderedJson& row : r["search"]) {
    std::string mesh;  // under the names of the axes
    for (const auto& [name, size] : row["mesh"].items()) {
      mesh += fmt::format("{:>{}}", size.get<int64_t>(), name.size() + 2);
    }
    const auto mode = row["checkpointing"].get<std::string>();
    const std::string dollars = row.contains("dollars_per_billion_tokens")
                                    ? fmt::format("{:.2f}", row["dollars_per_billion_tokens"].get<double>())
                                    : "-";
    std::cout << fmt::format("{:>10}{:>7.1f}%{}  {:<14}{:<6}{:<8}{:>11}{:>11.1f}{:>8.1f}{:>13}  {}\n",
                             thousands(row["wps"]), 100 * row["mfu"].get<double>(), mesh,
                             mode + ratio_text(mode, row["ratio"]), row["reshard_after_forward"] ? "yes" : "no",
                             row["accumulate_unsharded"] ? "once" : "each", row["micro_batch_size"].get<int64_t>(),
                             row["step_ms"].get<double>(), gib(row["total_bytes"]), dollars,
                             row["bound"].get<std::string>());
  }
}

}  // namespace octavo
