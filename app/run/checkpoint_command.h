// Runs checkpoint.command, a shell command, on rank 0's machine for each complete checkpoint while the run continues.
// The command gets these environment variables
//
//   OCTAVO_CHECKPOINT   absolute path of the checkpoint
//   OCTAVO_STEP         its step
//   OCTAVO_LOSS         training loss of that step, or "nan" if it is not known
//   OCTAVO_RUN          absolute path of the run's folder, which is also the working directory
//
// One command runs at a time (app/run/shell_command.h). A checkpoint that is completed while a command runs waits until
// the command ends. Only the newest waiting checkpoint gets a command. Output goes to
// RUN/checkpoint_commands/step_00000500.log. Numbers in the last line of the output that is a JSON object become
// metrics (app/run/metric_table.h, "evaluation").
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "app/config/config.h"
#include "app/run/metric_table.h"
#include "app/run/shell_command.h"

namespace octavo {

// Returns the numbers in the last line of `output` that is a JSON object. A number in a nested object has the keys of
// all levels in its name, with "/" between them.
NumbersByName numbers_in(const std::string& output);

class CheckpointCommand {
 public:
  // Numbers that a command has printed about a checkpoint.
  struct Numbers {
    int64_t step = 0;
    NumbersByName values = {};
  };

  explicit CheckpointCommand(const Config& config);
  // Ends a command that still runs.
  ~CheckpointCommand();
  CheckpointCommand(const CheckpointCommand&) = delete;
  CheckpointCommand& operator=(const CheckpointCommand&) = delete;

  // Sets the loss of a step whose state is about to be saved.
  void set_loss(int64_t step, double loss);
  // Runs the command for the complete checkpoint of a step, at once or after the running command.
  void start(int64_t step);
  // Logs the end of a command as an event, ends a command that has exceeded its time limit, and starts the next one.
  // Returns whether a command runs. Never waits.
  bool poll();
  // Ends the running command, and forgets the checkpoint that waits.
  void end(const std::string& reason);
  // Returns the numbers of the earliest command whose numbers have not been returned yet, if there is one.
  std::optional<Numbers> next_numbers();

 private:
  void spawn(int64_t step);
  void finish(const ShellCommand::End& end);
  std::filesystem::path output_of(int64_t step) const;

  const std::filesystem::path checkpoints_;  // checkpoint.dir
  const std::filesystem::path run_;          // logging.dir
  ShellCommand command_;
  int64_t running_ = 0;  // Step of the command that runs.
  std::optional<int64_t> waiting_ = {};
  std::map<int64_t, double> losses_ = {};  // Losses of steps whose command has not started.
  std::deque<Numbers> numbers_ = {};
};

}  // namespace octavo
