// Checks and messages that `octavo train` and its dry run share before the first step.
#pragma once

#include <cstdint>
#include <string>

#include "app/config/config.h"
#include "app/log/start_screen.h"
#include "app/plan/predictor.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

// Throws InputError where a stage would train on a file that data.validation holds out, or where a rank sees other data
// than rank 0. A collective.
void check_data(const Config& config, ProcessGroup& group);

// Returns the time on the start screen: when the steps for `samples` sequences end by the rates of the machine.
std::string predicted_time(const PredictedRun& run, const MachineRates& machine, const Cluster& cluster,
                           int64_t samples);
// Returns the text for a run on a CPU, for which nothing is predicted.
std::string time_on_cpu();

// Logs the start screen and the warnings on the config (app/log/config_warnings.h).
void log_start_screen(const StartFacts& facts);

}  // namespace octavo
