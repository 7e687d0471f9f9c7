// The rules of the values of options, and the options that several subcommands have.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "app/inputs/run_config.h"

namespace octavo {

inline constexpr const char* kModelHelp =
    "MODEL: a checkpoint, a directory of checkpoints or a run folder (their newest one), or a Hugging Face directory";
inline constexpr const char* kEmaHelp = "use the moving average of the weights (optimizer.ema_decay)";

// The rules of values. CLI11's own rules and sentences differ from those of the config's keys: it reads 010 as eight
// and -1 as a large seed, and accepts NaN.
CLI::Validator number(double least, double most);
template <typename Integer>  // int, int64_t or uint64_t.
CLI::Validator integer(Integer least, Integer most);
CLI::Validator one_of(const std::vector<std::string>& choices);

void add_overrides(CLI::App* command, std::vector<std::string>& overrides, const char* what);
void add_config_arguments(CLI::App* command, ConfigArguments& arguments, const char* what = "CONFIG.yaml");

// Refuses several ranks for `command`, which plans a run on --gpus ranks. A collective.
void check_one_process(const char* command, ProcessGroup& group);

}  // namespace octavo
