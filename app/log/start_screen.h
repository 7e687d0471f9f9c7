// The start screen: the first lines in the log of a run, which describe what the run will do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/log/data_report.h"
#include "app/memory/memory_budget.h"
#include "app/memory/training_options.h"
#include "data/validation_set.h"
#include "parallel/config.h"

namespace octavo {

struct StartFacts {
  const Config& config;
  std::string runs_on;  // Result of Runtime::describe().
  MeshShape mesh;
  std::string mesh_reason = {};  // Reason for the mesh. Empty if the config determines the mesh.
  // Options that determine which activations one rank saves and recomputes. planned_bytes is what the rank allocates,
  // and budget is its memory budget.
  const TrainingOptions& options;
  int64_t planned_bytes = 0;
  MemoryBudget budget;
  std::vector<DatasetUse> datasets;
  std::vector<std::string> data_notes = {};  // Sentences about the tokens around documents.
  int64_t next_sample = 0;
  std::vector<ValidationSet::Dataset> validation;
  std::string resumes_from;  // Path of the resumed checkpoint. Empty if the run starts from step 0.
  int64_t step = 0;          // Number of completed steps.
  int64_t tokens = 0;        // Number of tokens that the run was trained on so far.
  std::string time;          // Estimate of the run's duration, if known.
};

// Returns the title of the start screen, which is known before anything else: "octavo train CONFIG.yaml".
std::string start_title(const std::string& config_path);
// Returns the lines of the start screen, each with at most 100 columns.
std::vector<std::string> start_screen(const StartFacts& facts);

// Breaks `text` at spaces into lines of at most 100 columns. The first line follows `label`; the others are indented to
// the same column.
std::vector<std::string> labeled_lines(const std::string& label, const std::string& text);

}  // namespace octavo
