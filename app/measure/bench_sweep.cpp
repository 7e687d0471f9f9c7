#include "app/measure/bench_sweep.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <utility>

#include "app/config/config_check.h"
#include "app/measure/bench.h"
#include "app/memory/mesh_choice.h"
#include "app/process/exit_codes.h"
#include "core/error.h"
#include "core/format.h"

namespace octavo {

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kLinearKey = "precision.linear";
constexpr const char* kBaseline = "bfloat16";
constexpr const char* kGlobalBatchKey = "training.global_batch_size";

std::string full_key(const std::string& name, const std::string& argument) {
  static const std::map<std::string, std::string> kShortNames{
      {"micro_batch_size", "training.micro_batch_size"}, {"seq_len", "data.seq_len"}, {"linear", kLinearKey}};
  if (const auto found = kShortNames.find(name); found != kShortNames.end()) return found->second;
  CHECK_INPUT(name.find('.') != std::string::npos,
              "--sweep {}: unknown key '{}', expected micro_batch_size, seq_len, linear or a config key section.key",
              argument, name);
  return name;
}

SweepAxis parse_axis(const std::string& argument) {
  const size_t equals = argument.find('=');
  CHECK_INPUT(equals != std::string::npos && equals > 0, "--sweep {}: expected KEY=VALUE,VALUE,...", argument);
  SweepAxis axis{.name = argument.substr(0, equals), .key = {}, .values = {}};
  axis.key = full_key(axis.name, argument);
  CHECK_INPUT(axis.key != kGlobalBatchKey,
              "--sweep {}: the sweep sets {} itself, to one micro-batch a rank; expected another key", argument,
              kGlobalBatchKey);
  for (size_t begin = equals + 1; begin <= argument.size();) {
    const size_t end = std::min(argument.find(',', begin), argument.size());
    axis.values.push_back(argument.substr(begin, end - begin));
    CHECK_INPUT(!axis.values.back().empty(), "--sweep {}: has an empty value, expected KEY=VALUE,VALUE,...", argument);
    begin = end + 1;
  }
  CHECK_INPUT(!axis.values.empty() && argument.back() != ',',
              "--sweep {}: has an empty value, expected KEY=VALUE,VALUE,...", argument);
  return axis;
}

std::vector<std::string> overrides_of(const BenchArguments& arguments, const std::vector<SweepAxis>& axes,
                                      const std::vector<std::string>& values) {
  std::vector<std::string> overrides = arguments.config.overrides;
  for (size_t i = 0; i < axes.size(); ++i) overrides.push_back(axes[i].key + "=" + values[i]);
  return overrides;
}

// A key or a value that no config takes is an error of the command line, not a combination that is refused.
void check_values(const BenchArguments& arguments, const std::vector<SweepAxis>& axes) {
  for (const SweepAxis& axis : axes) {
    for (const std::string& value : axis.values) {
      std::vector<std::string> overrides = arguments.config.overrides;
      overrides.push_back(axis.key + "=" + value);
      load_config(arguments.config.path, overrides);
    }
  }
}

// The config of a combination: one micro-batch a step of each rank that has samples of its own.
Config combination_config(const BenchArguments& arguments, std::vector<std::string> overrides, ProcessGroup& group) {
  int64_t sequences = 0;
  group.agree([&] { sequences = smallest_batch(load_config(arguments.config.path, overrides), group.size()); });
  overrides.push_back(fmt::format("{}={}", kGlobalBatchKey, sequences));
  return load_run_config({arguments.config.path, overrides}, group, Purpose::kSynthetic);
}

// Everything it allocates is freed on return.
OrderedJson run_combination(const BenchArguments& arguments, const std::vector<std::string>& overrides,
                            ProcessGroup& group, std::string& device) {
  Config config = combination_config(arguments, overrides, group);
  Runtime runtime(config, group, nullptr, copies_that_fit(config, group));
  device = runtime.describe();
  const MemoryPlan plan = planned_memory(config, runtime);
  if (group.all_reduce_max(plan.fits() ? 0 : 1) != 0) {
    return {{"status", "out of memory"},
            {"reason", fmt::format("needs {:.1f} GiB, {:.1f} GiB are free", gib(plan.room.needed(plan.arena_bytes)),
                                   gib(plan.room.available))}};
  }
  Bench bench(config, runtime);
  OrderedJson result = {{"status", "ok"}};
  result.update(throughput_json(config, runtime, bench.time_steps(arguments.warmup, arguments.steps)));
  return result;
}

// A combination that is refused or fails does not end the sweep, unless it leaves other ranks waiting.
OrderedJson try_combination(const BenchArguments& arguments, const std::vector<std::string>& overrides,
                            ProcessGroup& group, std::string& device) {
  try {
    return run_combination(arguments, overrides, group, device);
  } catch (const InputError& error) {
    if (!group.shares(error)) throw;
    return {{"status", "refused"}, {"reason", error.what()}};
  } catch (const Error& error) {
    if (!group.shares(error)) throw;
    return {{"status", "failed"}, {"reason", error.what()}};
  }
}

// Gives each run that has one its speedup over the run that differs in being bfloat16 only.
void add_speedups(OrderedJson& runs, const std::vector<SweepAxis>& axes,
                  const std::vector<std::vector<std::string>>& all) {
  const auto linear = std::find_if(axes.begin(), axes.end(), [](const SweepAxis& a) { return a.key == kLinearKey; });
  if (linear == axes.end()) return;
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<std::string> baseline = all[i];
    baseline[static_cast<size_t>(linear - axes.begin())] = kBaseline;
    const auto found = std::find(all.begin(), all.end(), baseline);
    if (found == all.end() || *found == all[i]) continue;
    const OrderedJson& other = runs[static_cast<size_t>(found - all.begin())];
    if (runs[i]["status"] == "ok" && other["status"] == "ok") {
      runs[i]["speedup"] = runs[i]["wps"].get<double>() / other["wps"].get<double>();
    }
  }
}

// A value of an axis as JSON: numbers as such.
OrderedJson value_json(const std::string& text) {
  const OrderedJson value = OrderedJson::parse(text, nullptr, false);
  return value.is_number() ? value : OrderedJson(text);
}

std::string cell(const std::string& text) { return fmt::format(" {:>16}", text); }

void print_header(const std::vector<SweepAxis>& axes) {
  std::string line;
  for (const SweepAxis& axis : axes) line += cell(axis.name);
  std::cout << line << fmt::format(" {:>10} {:>10} {:>10} {:>7} {:>8}", "computing", "wps", "step ms", "mfu", "mem GiB")
            << std::endl;
}

void print_run(const std::vector<std::string>& values, const OrderedJson& run) {
  std::string line;
  for (const std::string& value : values) line += cell(value);
  if (run["status"] != "ok") {
    line += fmt::format("  {}: {}", run["status"].get<std::string>(), run["reason"].get<std::string>());
  } else {
    line += fmt::format(" {:>10} {:>10} {:>10.2f} {:>7} {:>8.1f}", run["compute"].get<std::string>(),
                        with_thousands_separators(static_cast<int64_t>(run["wps"].get<double>())),
                        run["step_ms"].get<double>(),
                        run.contains("mfu") ? fmt::format("{:.1f}%", 100 * run["mfu"].get<double>()) : "-",
                        run["memory_gib"].get<double>());
  }
  std::cout << line << std::endl;
}

// A table a recipe: the last of the other axes across, the combinations of the rest down.
void print_speedups(const std::vector<SweepAxis>& axes, const std::vector<std::vector<std::string>>& all,
                    const OrderedJson& runs) {
  std::vector<SweepAxis> others;
  SweepAxis linear;
  for (const SweepAxis& axis : axes) (axis.key == kLinearKey ? linear : others.emplace_back()) = axis;
  const bool compared =
      std::any_of(runs.begin(), runs.end(), [](const OrderedJson& run) { return run.contains("speedup"); });
  if (others.empty()) others.push_back({.name = "", .key = "", .values = {""}});
  if (!compared) return;

  const SweepAxis across = others.back();
  others.pop_back();
  // The speed-up of a run by its values without regard to the order of the axes.
  std::map<std::map<std::string, std::string>, std::string> speedups;
  for (size_t i = 0; i < all.size(); ++i) {
    std::map<std::string, std::string> values;
    for (size_t k = 0; k < axes.size(); ++k) values[axes[k].key] = all[i][k];
    if (runs[i].contains("speedup")) speedups[values] = fmt::format("{:.3f}", runs[i]["speedup"].get<double>());
  }
  for (const std::string& recipe : linear.values) {
    if (recipe == kBaseline) continue;
    std::cout << fmt::format("\nspeed-up of {} over {}{}{}\n", recipe, kBaseline,
                             across.name.empty() ? "" : ", across: ", across.name);
    std::string header;
    for (const SweepAxis& axis : others) header += cell(axis.name);
    for (const std::string& value : across.values) header += cell(value);
    std::cout << header << "\n";
    for (const std::vector<std::string>& down : combinations(others)) {
      std::map<std::string, std::string> values{{linear.key, recipe}};
      std::string line;
      for (size_t k = 0; k < others.size(); ++k) {
        values[others[k].key] = down[k];
        line += cell(down[k]);
      }
      for (const std::string& value : across.values) {
        if (!across.key.empty()) values[across.key] = value;
        const auto found = speedups.find(values);
        line += cell(found == speedups.end() ? "-" : found->second);
      }
      std::cout << line << "\n";
    }
  }
}

}  // namespace

std::vector<SweepAxis> parse_sweep(std::span<const std::string> arguments) {
  std::vector<SweepAxis> axes;
  for (const std::string& argument : arguments) {
    SweepAxis axis = parse_axis(argument);
    for (const SweepAxis& other : axes) {
      CHECK_INPUT(axis.key != other.key, "--sweep {}: {} is given twice, expected each key once", argument, axis.key);
    }
    axes.push_back(std::move(axis));
  }
  return axes;
}

std::vector<std::vector<std::string>> combinations(const std::vector<SweepAxis>& axes) {
  std::vector<std::vector<std::string>> all{{}};
  for (const SweepAxis& axis : axes) {
    std::vector<std::vector<std::string>> longer;
    for (const std::vector<std::string>& values : all) {
      for (const std::string& value : axis.values) {
        longer.push_back(values);
        longer.back().push_back(value);
      }
    }
    all = std::move(longer);
  }
  return all;
}

int bench_sweep_command(const BenchArguments& arguments, ProcessGroup& group) {
  std::vector<SweepAxis> axes;
  group.agree([&] {
    axes = parse_sweep(arguments.sweep);
    check_values(arguments, axes);
  });
  const std::vector<std::vector<std::string>> all = combinations(axes);
  const bool prints = group.is_root() && !arguments.json;
  OrderedJson runs = OrderedJson::array();
  std::string device;
  for (size_t i = 0; i < all.size(); ++i) {
    OrderedJson run;
    for (size_t k = 0; k < axes.size(); ++k) run[axes[k].name] = value_json(all[i][k]);
    run.update(try_combination(arguments, overrides_of(arguments, axes, all[i]), group, device));
    if (prints && i == 0) {
      std::cout << device << ", one micro-batch a step\n\n";
      print_header(axes);
    }
    if (prints) print_run(all[i], run);
    runs.push_back(std::move(run));
  }
  add_speedups(runs, axes, all);
  if (prints) print_speedups(axes, all, runs);
  if (group.is_root() && arguments.json) {
    std::cout << OrderedJson{{"device", device}, {"combinations", runs}}.dump(2) << std::endl;
  }
  return kExitDone;
}

}  // namespace octavo
