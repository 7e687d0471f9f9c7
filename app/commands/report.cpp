#include <iostream>

#include "app/commands/commands.h"
#include "app/report/report_page.h"
#include "core/error.h"
#include "core/files/output_file.h"

namespace octavo {

int report_command(const ReportArguments& arguments) {
  OutputFile file(arguments.output, kReportPage);
  std::vector<RunRecords> runs;
  runs.reserve(arguments.runs.size());
  for (const std::string& dir : arguments.runs) runs.push_back(read_run(dir));
  const std::string page = report_page(runs);
  file.write(page);
  file.finish();
  file.rename();
  std::cout << fmt::format("{}: {} run{}, {:.1f} MB\n", arguments.output, runs.size(), runs.size() == 1 ? "" : "s",
                           static_cast<double>(page.size()) / 1e6);
  return kExitDone;
}

}  // namespace octavo
