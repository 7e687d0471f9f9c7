#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <set>
#include <thread>

#include "app/commands/commands.h"
#include "app/report/pages.h"
#include "core/error.h"
#include "core/files/output_file.h"
#include "core/printable.h"

namespace octavo {

namespace {

constexpr int64_t kMaxWatchSeconds = 86400;

struct ReportArguments {
  std::vector<std::string> runs;  // logging.dir of each run.
  std::string output;
  std::string csv;
  bool each_seed = false;
  int64_t watch_s = 0;
};

// Reads the runs in the folders `dirs`, each run once. A folder that is no run stands for the runs below it. Runs that
// cannot be read or have no step yet are named in `left_out`, with the reason.
std::vector<RunRecords> read_runs(const std::vector<std::string>& dirs, std::vector<std::string>& left_out) {
  std::vector<RunRecords> runs;
  std::set<std::filesystem::path> seen;
  for (const std::string& dir : dirs) {
    for (const std::string& folder : run_folders(dir)) {
      std::error_code error;
      if (!seen.insert(std::filesystem::weakly_canonical(folder, error)).second) continue;
      try {
        RunRecords run = read_run(folder);
        CHECK_INPUT(!run.metrics.empty(), "{}/metrics.jsonl has no step", folder);
        runs.push_back(std::move(run));
      } catch (const InputError& refusal) {
        if (folder == dir) throw;
        left_out.emplace_back(refusal.what());
      }
    }
  }
  CHECK_INPUT(!runs.empty(), "{} contains no run that has a step", fmt::join(dirs, ", "));
  return runs;
}

// Returns whether a run has not yet logged the last step of its config, or has no config.
bool goes_on(const RunRecords& run) { return run.total_steps() == 0 || run.last_step < run.total_steps(); }

// Groups runs that differ only in their seeds. If `each` is true, each run is a group of its own.
std::vector<RunGroup> groups_of(const std::vector<RunRecords>& runs, bool each) {
  if (!each) return group_runs(runs);
  std::vector<RunGroup> groups;
  for (size_t run = 0; run < runs.size(); ++run) groups.push_back({run});
  return groups;
}

// Prints the file that was written, if any, the table of several runs, and the folders that were left out.
void print(const ReportArguments& arguments, const std::vector<RunRecords>& runs, const std::vector<RunGroup>& groups,
           const std::vector<std::string>& left_out, size_t page_bytes, bool watches) {
  if (page_bytes > 0) {
    std::cout << fmt::format("{}: {} run{}, {:.1f} MB{}\n", printable(arguments.output), runs.size(),
                             runs.size() == 1 ? "" : "s", static_cast<double>(page_bytes) / 1e6,
                             watches ? ", written again until the runs have done all steps; Ctrl-C ends it" : "");
  }
  for (const std::string& reason : left_out) std::cout << fmt::format("left out: {}\n", printable(reason));
  if (runs.size() > 1 || page_bytes == 0) std::cout << comparison_table(runs, groups);
  std::cout << std::flush;
}

int run_report(const ReportArguments& arguments) {
  const bool has_page = !arguments.output.empty();
  for (bool first = true;; first = false) {
    if (has_page) check_output(arguments.output, kReportPage);
    if (!arguments.csv.empty()) check_output(arguments.csv, kReportTable);
    std::vector<std::string> left_out;
    const std::vector<RunRecords> runs = read_runs(arguments.runs, left_out);
    const bool watches = arguments.watch_s > 0 && std::ranges::any_of(runs, goes_on);
    const std::vector<RunGroup> groups = groups_of(runs, arguments.each_seed);
    const std::string page = has_page ? report_page(runs, groups, watches ? arguments.watch_s : 0) : "";
    if (has_page) write_output_file(arguments.output, kReportPage, page);
    if (!arguments.csv.empty()) write_output_file(arguments.csv, kReportTable, comparison_csv(runs, groups));
    if (first || !watches) print(arguments, runs, groups, left_out, page.size(), watches);
    if (!watches) return kExitDone;
    std::this_thread::sleep_for(std::chrono::seconds(arguments.watch_s));
  }
}

}  // namespace

void add_report(CommandLine& line) {
  const auto [report, arguments] =
      line.add<ReportArguments>("report", "compare runs: a table, and charts as one HTML file", run_report);
  report
      ->add_option(
          "runs", arguments.runs,
          "RUN..., the logging.dir of each run, or a folder above them; losses are compared with the first run")
      ->required();
  auto* output = report->add_option("--output", arguments.output, "FILE.html to write, a page with charts");
  report->add_option("--csv", arguments.csv, "FILE.csv to write, the table with a line per run");
  report->add_flag("--each-seed", arguments.each_seed,
                   "show runs that differ only in their seeds separately, not as a mean with a band");
  report
      ->add_option(
          "--watch", arguments.watch_s,
          "SECONDS between two writes of the file, until all runs have done their steps; the page reloads itself")
      ->check(integer(1, kMaxWatchSeconds))
      ->needs(output);
}

}  // namespace octavo
