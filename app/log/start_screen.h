// The start screen: the first lines in the log of a run, which describe what the run will do. After it come warnings
// about values of the config that are valid but probably a mistake.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "app/job/job.h"
#include "app/log/data_report.h"
#include "data/validation_set.h"

namespace octavo {

struct StartFacts {
  const Job& job;
  std::string runs_on;  // Result of Runtime::describe().
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

// Number of epochs over a dataset above which a run warns unless the dataset sets max_epochs. Up to four epochs lower
// the loss almost as much as new tokens (Muennighoff et al., arXiv 2305.16264, section 6).
inline constexpr double kManyEpochs = 4;

// Returns one sentence per mistake: a warm-up of the learning rate or batch size that the run does not complete, more
// than kManyEpochs epochs over a dataset without max_epochs, and validation datasets that are never used. `datasets`
// are those of config.data.train, in its order.
std::vector<std::string> config_warnings(const StageConfig& config, std::span<const DatasetUse> datasets);

}  // namespace octavo
