// Formats the table that `octavo inspect RUN` prints on a terminal.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "app/report/run_records.h"

namespace octavo {

// Returns one line per fact about the run: steps, tokens, the last loss as in a report, the last validation loss with
// the smoothed loss at its step, goodput, and the number of warnings with the newest one. `goodput` is the content of
// goodput.json, or null if there is no such file. Unknown values are shown as "-". Text from files is made printable.
std::string run_table(const RunRecords& run, const nlohmann::ordered_json& goodput);

}  // namespace octavo
