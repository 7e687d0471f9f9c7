// Checks and messages before the first step that `octavo train` and its dry run share.
#pragma once

#include <cstdint>
#include <string>

#include "app/config/config.h"
#include "app/log/start_screen.h"
#include "app/plan/plan_search.h"
#include "app/plan/predictor.h"
#include "parallel/ranks/process_group.h"

namespace octavo {

// Throws an InputError if a stage trains on a file that data.validation holds out, a later stage has less data than a
// window, or a rank sees other data than rank 0. A collective.
void check_data(const Config& config, ProcessGroup& group);

// Returns the sentence on the start screen that predicts when `samples` sequences will be trained on, from the rates of
// the machine.
std::string predicted_time(const PredictedRun& run, const MachineRates& machine, const Cluster& cluster,
                           int64_t samples);
// Returns the sentence that the start screen shows on a CPU instead of a predicted time.
std::string time_on_cpu();

// Logs the start screen and the warnings about the config.
void log_start_screen(const StartFacts& facts);

// Implements `octavo train --dry-run`. Checks everything that a run of the config needs, and prints its start screen
// and the checkpoint that it would resume. Writes nothing, and needs neither GPUs nor several ranks. Returns the exit
// code.
int dry_run(const TargetArguments& arguments, ProcessGroup& group);

}  // namespace octavo
