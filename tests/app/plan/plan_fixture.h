// Makes plans of configs for tests, and compares tables of plans with the documentation.
#pragma once

#include <gtest/gtest.h>

#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "app/plan/machine_files.h"
#include "app/plan/plan_search.h"
#include "core/files/input_file.h"

namespace octavo {

// Returns GPUs of a machine, as `octavo plan --gpus N --machine NAME` plans for them.
inline PlanTarget gpus_of(std::string_view machine, int64_t gpus, const Cluster& cluster = {}) {
  PlanTarget target{.gpus = gpus, .device = {}, .machine = find_machine(std::string(machine)), .cluster = cluster};
  target.device.device = Device::kCuda;
  target.device.gpus_per_node = target.cluster.gpus_per_node;
  target.device.multiprocessors = static_cast<int>(target.machine->multiprocessors);
  target.device.memory_bytes = target.machine->gpu_memory_bytes;
  return target;
}

// Returns the arguments of a command for a file in configs/ with overrides that spaces separate.
inline ConfigArguments arguments_of(std::string_view config, std::string_view overrides) {
  ConfigArguments arguments{.path = fmt::format("{}/configs/{}", OCTAVO_SOURCE_DIR, config), .overrides = {}};
  std::istringstream words{std::string(overrides)};
  for (std::string word; words >> word;) arguments.overrides.push_back(word);
  arguments.overrides.emplace_back("device=cuda");
  return arguments;
}

// Prints the rows of a table and expects that a page of docs/ contains each of them.
inline void expect_documented(const std::vector<std::string>& rows, const char* file) {
  const std::string page = read_input_file(fmt::format("{}/docs/{}", OCTAVO_SOURCE_DIR, file));
  for (const std::string& row : rows) {
    std::cout << row << "\n";
    EXPECT_NE(page.find("\n" + row + "\n"), std::string::npos) << "docs/" << file << " does not have the row above";
  }
}

}  // namespace octavo
