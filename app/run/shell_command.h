// Runs a shell command of the config with a time limit while the run continues, one at a time. The command starts in
// its own process group. It does not get the environment variables by which MPI and Slurm identify the process, so that
// it can itself start MPI and Slurm programs.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace octavo {

class ShellCommand {
 public:
  struct End {
    bool failed = false;
    std::string how = {};  // "ended with exit code 7 after 0.1 s"
  };

  // `key` is the config key of the command, and KEY_timeout_s that of its time limit, which 0 disables. `folder` is the
  // working directory.
  ShellCommand(std::string key, std::string command, double timeout_s, std::filesystem::path folder);
  // Kills a command that still runs.
  ~ShellCommand();
  ShellCommand(const ShellCommand&) = delete;
  ShellCommand& operator=(const ShellCommand&) = delete;

  // Starts the command with additional environment variables ("NAME=VALUE"). Its output is appended to `output`.
  // Returns the reason if the system refuses to start it, or else an empty string.
  // Requires: no command runs.
  std::string start(std::vector<std::string> variables, const std::filesystem::path& output);
  bool is_running() const { return pid_ >= 0; }
  // Returns how the command ended, once, and nothing before and after. Kills a command that has exceeded its time
  // limit. Never waits.
  std::optional<End> poll();
  // Kills the running command and its processes. Returns its status from waitpid(), or 0 if no command runs.
  int kill();

 private:
  End finish();

  const std::string key_;
  const std::string command_;
  const double timeout_s_;
  const std::filesystem::path folder_;
  pid_t pid_ = -1;  // Process group of the command that runs. -1 means that none runs.
  std::chrono::steady_clock::time_point began_ = {};
  bool timed_out_ = false;
};

}  // namespace octavo
