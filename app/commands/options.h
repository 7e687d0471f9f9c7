// Rules for the values of command-line options, and options that several subcommands have.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "app/inputs/run_config.h"

namespace octavo {

inline constexpr const char* kModelHelp =
    "MODEL: a checkpoint, a directory of checkpoints or a run folder (their newest one), or a Hugging Face directory";
inline constexpr const char* kEmaHelp = "use the moving average of the weights (optimizer.ema_decay)";
// Maximum value of --document-length.
inline constexpr int kMaxDocumentLength = 1'000'000'000;

// Rules for values. They are used instead of CLI11's rules, which differ from those of config keys: CLI11 reads 010 as
// eight and -1 as a large seed, and accepts NaN. Bounds are inclusive.
CLI::Validator number(double least, double most);
template <typename Integer>  // Integer is int, int64_t or uint64_t.
CLI::Validator integer(Integer least, Integer most);
CLI::Validator one_of(const std::vector<std::string>& choices);

void add_overrides(CLI::App* command, std::vector<std::string>& overrides, const char* what);
void add_config_arguments(CLI::App* command, ConfigArguments& arguments, const char* what = "CONFIG.yaml");

// Throws an InputError if there are several ranks, because `command` plans the run for the ranks of --gpus. A
// collective.
void check_one_process(const char* command, ProcessGroup& group);

}  // namespace octavo
