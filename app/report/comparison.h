// Comparison of runs: which runs repeat each other with other seeds, what differs in their configs, and their losses.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "app/report/run_records.h"

namespace octavo {

// Indices of the runs that share one line of the charts and of the table.
using RunGroup = std::vector<size_t>;

// Groups runs whose configs have equal values, apart from training.seed, data.seed and keys that do not affect what a
// run computes (logging, checkpoint, plan). The groups are in the order of their first runs. A run starts a group of
// its own if it has no config, or if a run of the group already has its seeds.
std::vector<RunGroup> group_runs(std::span<const RunRecords> runs);

// Returns the name of the only run, or "NAME and 2 other seeds" with the name of the first one. Runs that share a name
// are told apart by their folders.
std::string group_name(std::span<const RunRecords> runs, const RunGroup& group);

// Series of the mean, the smallest and the largest value of several runs at the steps that all of them have.
struct Band {
  Series mean, low, high;
};
Band band_of(std::span<const Series> runs);

// Returns the table that `octavo report` prints, with a line per group: the values of the keys that differ, apart from
// those that group_runs() ignores, and the last and the smallest loss in training and validation. The last training
// loss is that of describe_run(), and the smallest one is the minimum of the smoothed losses. The losses of a group are
// means and standard deviations over its runs, up to the last step that all of them have.
std::string comparison_table(std::span<const RunRecords> runs, std::span<const RunGroup> groups);

inline constexpr const char* kComparisonHead = "run,folder,group,steps,loss,least_loss,validation_loss,";
// Returns the same numbers for programs as CSV, with a line per run. The seeds are among the keys that differ.
std::string comparison_csv(std::span<const RunRecords> runs, std::span<const RunGroup> groups);

}  // namespace octavo
