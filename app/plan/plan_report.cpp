#include "app/plan/plan_report.h"

#include <cmath>
#include <iostream>

#include "app/config/config_check.h"
#include "app/config/config_names.h"
#include "app/run/runtime.h"
#include "core/error.h"
#include "core/format.h"

namespace octavo {

namespace {

using OrderedJson = nlohmann::ordered_json;

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

void print_memory(const OrderedJson& memory) {
  std::cout << fmt::format("{:<32}{:>7}{:>11}{:>8}  {}\n", "memory, one rank", "count", "GiB", "share", "needed for");
  const double total = memory["total_bytes"].get<double>();
  const auto row = [&](const std::string& name, const std::string& count, const OrderedJson& bytes,
                       const std::string& note) {
    std::cout << fmt::format("{:<32}{:>7}{:>11.3f}{:>7.1f}%  {}\n", name, count, gib(bytes),
                             100 * bytes.get<double>() / total, note);
  };
  for (const OrderedJson& item : memory["items"]) {
    row(item["name"], std::to_string(item["count"].get<int64_t>()), item["bytes"], item["lifetime"]);
  }
  for (const OrderedJson& item : memory["overlaid"]) {
    std::cout << fmt::format("{:<32}{:>7}{:>11}{:>8}  {}\n", item["name"].get<std::string>(),
                             item["count"].get<int64_t>(), fmt::format("({:.3f})", gib(item["bytes"])), "",
                             "in memory of the above, at other times");
  }
  row("allocated at the start", "", memory["allocated_bytes"], "");
  if (memory["outside_bytes"] != 0) row("outside of it, an estimate", "", memory["outside_bytes"], "CUDA, libraries");
  if (memory["available_bytes"].is_null()) {
    std::cout << fmt::format("{:.2f} GiB\n\n", gib(memory["total_bytes"]));
    return;
  }
  std::cout << fmt::format("{:.2f} of {:.2f} GiB, {:.2f} to be left free: {}\n\n", gib(memory["total_bytes"]),
                           gib(memory["available_bytes"]), gib(memory["margin_bytes"]),
                           memory["fits"].get<bool>() ? "fits" : "does not fit");
}

void print_prediction(const OrderedJson& report) {
  const OrderedJson& p = report["prediction"];
  const double step_ms = p["step_ms"];
  std::cout << fmt::format("{:<40}{:>11}{:>8}{:>17}\n", "step", "ms", "share", "rate");
  for (const OrderedJson& part : p["parts"]) {
    const double ms = part["ms"];
    if (ms < 5e-4 * step_ms) continue;
    std::string rate;
    if (part["flops"] > 0) rate = fmt::format("{:.0f} TFLOP/s", part["flops"].get<double>() / ms / 1e9);
    std::cout << fmt::format("{:<40}{:>11.3f}{:>7.1f}%{:>17}\n", part["name"].get<std::string>(), ms,
                             100 * ms / step_ms, rate);
  }
  std::cout << "\n";
  for (const auto& [kind, ms] : p["ms_by_kind"].items()) {
    std::cout << fmt::format("{:<40}{:>11.3f}{:>7.1f}%\n", kind, ms.get<double>(), 100 * ms.get<double>() / step_ms);
  }
  std::cout << fmt::format("\npredicted: step {:.1f} ms  wps {}  mfu {:.1f}%; products and attention alone {:.1f} ms\n",
                           step_ms, thousands(p["wps"]), 100 * p["mfu"].get<double>(), p["floor_ms"].get<double>());
  std::cout << fmt::format("most of it: {}\n", p["bound"].get<std::string>());
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

const std::vector<PublishedSetup>& published_setups() {
  static const std::vector<PublishedSetup> kSetups = {
      {"llama3_8b", 128, 1, 10000}, {"llama3_70b", 256, 1, 1430}, {"llama3_405b", 512, 4, 227}};
  return kSetups;
}

OrderedJson plan_json(const PlanReport& report, const PlanTarget& target) {
  const Plan& plan = report.plan;
  const Config& config = plan.config;
  OrderedJson json{{"parameters", config.model.num_parameters()},
                   {"linear", precision_name(config.precision)},
                   {"ranks", target.gpus},
                   {"device", target.machine ? target.machine->device : "cpu"},
                   {"mesh", mesh_json(plan.mesh)},
                   {"seq_len", config.data.seq_len},
                   {"micro_batch_size", config.training.micro_batch_size},
                   {"global_batch_size", config.training.global_batch_size},
                   {"flops_per_token", config.model.flops_per_token(config.data.seq_len)}};
  for (const TokenFlops& part : flops_by_part(config.model, config.data.seq_len)) {
    json["flops_by_part"][part.part] = part.flops;
  }
  json["memory"] = memory_json(plan.memory);
  json["prediction"] = plan.prediction ? prediction_json(*plan.prediction) : OrderedJson();
  if (report.price > 0 && plan.prediction) {
    json["dollars_per_billion_tokens"] = cost_of_billion(report.price, plan.prediction->wps);
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
    if (report.price > 0) row["dollars_per_billion_tokens"] = cost_of_billion(report.price, found.prediction->wps);
    json["search"].push_back(row);
  }
  return json;
}

void print_plan(const OrderedJson& r) {
  std::cout << fmt::format("{} parameters, {} linears, micro-batch {} x {} tokens, {} sequences a step\n",
                           thousands(r["parameters"]), r["linear"].get<std::string>(),
                           r["micro_batch_size"].get<int64_t>(), r["seq_len"].get<int64_t>(),
                           r["global_batch_size"].get<int64_t>());
  const OrderedJson& mesh = r["mesh"];
  const bool anew = r["memory"]["reshard_after_forward"];
  const OrderedJson& checkpointing = r["memory"]["activation_checkpointing"];
  const auto mode = checkpointing["mode"].get<std::string>();
  std::cout << fmt::format(
      "{} x {}: {} replicas x {} shards x {} tensor-parallel ranks, {}, activation checkpointing {}{}\n\n",
      r["ranks"].get<int64_t>(), r["device"].get<std::string>(), mesh["replicate"].get<int64_t>(),
      mesh["shard"].get<int64_t>(), mesh["tensor"].get<int64_t>(),
      anew ? "full weights gathered anew in backward" : "full weights kept", mode,
      ratio_text(mode, checkpointing["ratio"]));
  print_memory(r["memory"]);
  print_flops(r);
  if (r["prediction"].is_null()) {
    std::cout << "no prediction: that takes a machine file of this CPU (octavo doctor --save FILE, --machine FILE)\n";
  } else {
    print_prediction(r);
  }
  if (r.contains("dollars_per_billion_tokens")) {
    std::cout << fmt::format("{:.2f} dollars a billion tokens\n", r["dollars_per_billion_tokens"].get<double>());
  }
  if (r.contains("advice_wps")) {
    std::cout << fmt::format("faster, {} wps: {}\n", thousands(r["advice_wps"]), r["advice"].get<std::string>());
  }
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

void print_published(const OrderedJson& rows) {
  std::cout << fmt::format("{:<14}{:>6}{:>8}{:>13}{:>15}{:>15}{:>9}  {}\n", "model", "GPUs", "tensor", "micro-batch",
                           "published wps", "predicted wps", "GiB", "memory");
  for (const OrderedJson& row : rows) {
    std::cout << fmt::format(
        "{:<14}{:>6}{:>8}{:>13}{:>15}{:>15}{:>9.1f}  {}\n", row["model"].get<std::string>(), row["gpus"].get<int64_t>(),
        row["tensor"].get<int64_t>(), row["micro_batch_size"].get<int64_t>(), thousands(row["published_wps"]),
        thousands(row["wps"]), gib(row["total_bytes"]), row["fits"].get<bool>() ? "fits" : "does not fit");
  }
}

}  // namespace octavo
