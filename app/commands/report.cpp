#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <iostream>
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
  int64_t watch_s = 0;
};

// Reads the runs in the folders `dirs`. A folder that is no run stands for the runs in its folders. Those that have no
// step yet are added to `left_out`.
std::vector<RunRecords> read_runs(const std::vector<std::string>& dirs, std::vector<std::string>& left_out) {
  std::vector<RunRecords> runs;
  for (const std::string& dir : dirs) {
    for (const std::string& folder : run_folders(dir)) {
      RunRecords run = read_run(folder);
      CHECK_INPUT(!run.metrics.empty() || folder != dir, "{}/metrics.jsonl has no step", folder);
      if (run.metrics.empty()) {
        left_out.push_back(folder);
      } else {
        runs.push_back(std::move(run));
      }
    }
  }
  CHECK_INPUT(!runs.empty(), "{} contains no run that has a step", fmt::join(dirs, ", "));
  return runs;
}

// Whether a run has not logged the last step of its config yet.
bool goes_on(const RunRecords& run) { return run.total_steps() == 0 || run.last_step < run.total_steps(); }

int run_report(const ReportArguments& arguments) {
  for (bool first = true;; first = false) {
    OutputFile file(arguments.output, kReportPage);
    std::vector<std::string> left_out;
    const std::vector<RunRecords> runs = read_runs(arguments.runs, left_out);
    const bool watches = arguments.watch_s > 0 && std::ranges::any_of(runs, goes_on);
    const std::string page = report_page(runs, watches ? arguments.watch_s : 0);
    file.write(page);
    file.finish();
    file.rename();
    if (first || !watches) {
      std::cout << fmt::format("{}: {} run{}, {:.1f} MB{}", printable(arguments.output), runs.size(),
                               runs.size() == 1 ? "" : "s", static_cast<double>(page.size()) / 1e6,
                               watches ? ", written again until the runs have done all steps; Ctrl-C ends it" : "")
                << "\n";
      for (const std::string& folder : left_out)
        std::cout << fmt::format("{} is left out, because its metrics.jsonl has no step\n", printable(folder));
      std::cout << std::flush;
    }
    if (!watches) return kExitDone;
    std::this_thread::sleep_for(std::chrono::seconds(arguments.watch_s));
  }
}

}  // namespace

void add_report(CommandLine& line) {
  const auto [report, arguments] =
      line.add<ReportArguments>("report", "write charts of one or several runs as one HTML file", run_report);
  report
      ->add_option(
          "runs", arguments.runs,
          "RUN..., the logging.dir of each run, or a folder that contains them; losses are compared with the first run")
      ->required();
  report->add_option("--output", arguments.output, "FILE.html to write")->required();
  report
      ->add_option(
          "--watch", arguments.watch_s,
          "SECONDS between two writes of the file, until all runs have done their steps; the page reloads itself")
      ->check(integer(1, kMaxWatchSeconds));
}

}  // namespace octavo
