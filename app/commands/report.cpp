#include <iostream>

#include "app/commands/commands.h"
#include "app/process/exit_codes.h"
#include "app/report/report_page.h"
#include "core/error.h"
#include "core/files/output_file.h"

namespace octavo {

namespace {

struct ReportArguments {
  std::vector<std::string> runs;  // logging.dir of each run.
  std::string output;
};

int run_report(const ReportArguments& arguments) {
  OutputFile file(arguments.output, kReportPage);
  std::vector<RunRecords> runs;
  runs.reserve(arguments.runs.size());
  for (const std::string& dir : arguments.runs) {
    runs.push_back(read_run(dir));
    CHECK_INPUT(!runs.back().metrics.empty(), "{}/metrics.jsonl has no step", dir);
  }
  const std::string page = report_page(runs);
  file.write(page);
  file.finish();
  file.rename();
  std::cout << fmt::format("{}: {} run{}, {:.1f} MB\n", arguments.output, runs.size(), runs.size() == 1 ? "" : "s",
                           static_cast<double>(page.size()) / 1e6);
  return kExitDone;
}

}  // namespace

void add_report(CommandLine& line) {
  auto& arguments = line.arguments<ReportArguments>();
  CLI::App* report = line.add("report", "write charts of one or several runs as one HTML file",
                              on_root([&] { return run_report(arguments); }));
  report
      ->add_option("runs", arguments.runs,
                   "RUN..., the logging.dir of each run; losses are compared with the first run")
      ->required();
  report->add_option("--output", arguments.output, "FILE.html to write")->required();
}

}  // namespace octavo
