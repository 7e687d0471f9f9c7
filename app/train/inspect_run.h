// What `octavo inspect RUN` says of the folder of a run.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace octavo {

// Whether `dir` has the metrics of a run.
bool is_run_folder(const std::string& dir);

// run: the folder; step, loss, tokens and the other numbers of its last step, as the newest line of it has them;
// goodput: shares and seconds (app/records/goodput.h), where they were written. InputError naming a file that cannot be
// read.
nlohmann::ordered_json inspect_run(const std::string& dir);

}  // namespace octavo
