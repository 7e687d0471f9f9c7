// The start screen: the first lines of the log of a run, which say what it is about to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/log/data_report.h"
#include "app/memory/memory_room.h"
#include "app/memory/training_options.h"
#include "data/validation_set.h"
#include "parallel/config.h"

namespace octavo {

struct StartFacts {
  const Config& config;
  std::string runs_on;  // Runtime::describe()
  MeshShape mesh;
  std::string mesh_reason = {};  // why it is that one, where the config leaves it
  // The activations that one rank saves and recomputes, the bytes that it allocates, and the memory budget that it had.
  const TrainingOptions& options;
  int64_t planned_bytes = 0;
  MemoryRoom room;
  std::vector<DatasetUse> datasets;
  int64_t next_sample = 0;
  std::vector<ValidationSet::Dataset> validation;
  std::string resumes_from;  // a checkpoint; empty if the run begins
  int64_t step = 0;          // done
  int64_t tokens = 0;        // seen
  std::string time;          // what is known of how long it takes
};

// Its title, known before all else: "octavo train CONFIG.yaml".
std::string start_title(const std::string& config_path);
// Lines of at most 100 columns.
std::vector<std::string> start_screen(const StartFacts& facts);

// `text` in lines of at most 100 columns, cut at spaces: the first behind `label`, the others below its beginning.
std::vector<std::string> labeled_lines(const std::string& label, const std::string& text);

}  // namespace octavo
