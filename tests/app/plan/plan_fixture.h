// Makes plans of configs for tests, and compares tables of docs/ with plans.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "app/config/config_check.h"
#include "app/plan/plan_search.h"
#include "app/predict/machine_rates.h"
#include "app/resolve/resolve.h"
#include "core/files/input_file.h"

namespace octavo {

// Returns GPUs of a machine, as `octavo plan --gpus N --machine NAME` plans for them.
inline PlanTarget gpus_of(const std::string& machine, int64_t gpus, const NetworkRates& network = {}) {
  PlanTarget target{.place = {.ranks = gpus}, .machine = find_machine(machine), .network = network};
  target.place.multiprocessors = static_cast<int>(target.machine->multiprocessors);
  target.place.memory_bytes = target.machine->gpu_memory_bytes;
  return target;
}

// Makes the rates those of cuDNN's attention. In a step it had 507 TFLOP/s forward and 407 backward on an H200, where
// attention has 627 and 495 now.
inline void use_cudnn_attention(MachineRates& machine) {
  machine.attention.forward_flops *= 507.0 / 627;
  machine.attention.backward_flops *= 407.0 / 495;
}

// Returns the arguments of a command for a file in configs/ with overrides that spaces separate.
inline ConfigArguments arguments_of(std::string_view config, std::string_view overrides) {
  ConfigArguments arguments{.path = fmt::format("{}/configs/{}", OCTAVO_SOURCE_DIR, config), .overrides = {}};
  std::istringstream words{std::string(overrides)};
  for (std::string word; words >> word;) arguments.overrides.push_back(word);
  arguments.overrides.emplace_back("device=cuda");
  return arguments;
}

// Returns the config of a run on GPUs.
inline Config load_for_gpus(std::string_view config, std::string_view overrides, int64_t gpus) {
  return load_planned_config(arguments_of(config, overrides), gpus_of("h200", gpus));
}

// Returns the job of a config on GPUs with these choices.
inline Job job_on(Config config, int64_t gpus, const ShardingOptions& sharding = {},
                  const ActivationCheckpointing& checkpointing = {.mode = ActivationCheckpointing::Mode::kNone}) {
  config.activation_checkpointing = checkpointing;
  config.parallel.reshard_after_forward = auto_bool(sharding.reshard_after_forward);
  config.parallel.accumulate_unsharded = auto_bool(sharding.accumulate_unsharded);
  return draft(StageConfig(config), {.ranks = gpus}, {config.parallel.mesh_shape(gpus), ""});
}

// Returns the plan of a config whose mesh does not depend on memory.
inline Plan plan_on(const Config& config, const PlanTarget& target) {
  return make_plan(StageConfig(config), {config.parallel.mesh_shape(target.place.ranks), ""}, target);
}

using TableRow = std::vector<std::string>;

// Returns the rows of the table in a page of docs/ whose header begins with `header`, each as its cells.
inline std::vector<TableRow> documented_table(const char* page, const std::string& header) {
  std::istringstream lines(read_input_file(fmt::format("{}/docs/{}", OCTAVO_SOURCE_DIR, page)));
  std::string line;
  while (std::getline(lines, line) && !line.starts_with(header)) continue;
  std::getline(lines, line);  // The line between header and rows.
  std::vector<TableRow> rows;
  while (std::getline(lines, line) && line.starts_with("| ")) {
    rows.emplace_back();
    for (size_t begin = 2, end = 0; (end = line.find(" |", begin)) != std::string::npos; begin = end + 3) {
      rows.back().push_back(line.substr(begin, end - begin));
    }
  }
  EXPECT_GT(rows.size(), 3u) << "no table " << header << " in docs/" << page;
  return rows;
}

// Expects that the cells of a row from `first` on are these.
inline void expect_cells(const TableRow& row, size_t first, const TableRow& cells) {
  const auto begin = row.begin() + static_cast<std::ptrdiff_t>(first);
  EXPECT_EQ(TableRow(begin, begin + std::ssize(cells)), cells) << fmt::format("{}", fmt::join(row, " | "));
}

// Returns the number in a cell such as "1,024".
inline double number_in(std::string cell) {
  std::erase(cell, ',');
  return std::stod(cell);
}

}  // namespace octavo
