#include "app/run/checkpoint_command.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "app/process/events.h"
#include "checkpoint/checkpoint_format.h"
#include "core/log.h"

namespace octavo {

namespace fs = std::filesystem;

namespace {

constexpr const char* kFolder = "checkpoint_commands";

void add_numbers(const nlohmann::json& object, const std::string& prefix,
                 std::vector<std::pair<std::string, double>>& numbers) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) add_numbers(value, prefix + key + "/", numbers);
    if (value.is_number()) numbers.emplace_back(prefix + key, value.get<double>());
  }
}

// Returns the environment of the command: that of this process without its place in MPI and Slurm, and `added`.
std::vector<std::string> environment_with(std::vector<std::string> added) {
  constexpr std::string_view kPlaces[] = {"OMPI_COMM", "OMPI_MCA_ess", "OMPI_MCA_orte",     "PMIX",
                                          "PMI_",      "SLURM_",       "OCTAVO_CHECKPOINT="};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (std::ranges::none_of(kPlaces, [&](std::string_view place) { return text.starts_with(place); })) {
      added.emplace_back(text);
    }
  }
  return added;
}

// Returns the pointers that posix_spawn() takes, with the null at the end.
std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Starts a command in a process group of its own, without blocked signals. Returns its process id, or -1 and errno.
pid_t spawn_shell(const std::string& command, const fs::path& output, std::vector<std::string> environment) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  posix_spawn_file_actions_addchdir_np(&files, output.parent_path().parent_path().c_str());
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::vector<std::string> arguments = {"/bin/sh", "-c", command};
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, "/bin/sh", &files, &attributes, pointers_to(arguments).data(),
                                  pointers_to(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  errno = error;
  return error == 0 ? pid : -1;
}

std::string content_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace

std::vector<std::pair<std::string, double>> numbers_in(const std::string& output) {
  std::vector<std::pair<std::string, double>> numbers;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json found = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!found.is_object()) continue;
    numbers.clear();
    add_numbers(found, "", numbers);
  }
  return numbers;
}

CheckpointCommand::CheckpointCommand(const CheckpointConfig& config, const std::string& run_folder)
    : command_(config.command), timeout_s_(config.command_timeout_s), folder_(fs::absolute(run_folder) / kFolder) {}

CheckpointCommand::~CheckpointCommand() { end("the run ended"); }

void CheckpointCommand::start(int64_t step, const fs::path& checkpoint, double loss) {
  if (command_.empty()) return;
  if (waiting_) {
    log_event(EventKind::kWarning, waiting_->step,
              "checkpoint.command does not run for step {}, because that of step {} still runs and step {} is saved",
              waiting_->step, running_.step, step);
  }
  waiting_ = Job{step, fs::absolute(checkpoint), loss};
  poll();
}

void CheckpointCommand::spawn(const Job& job) {
  running_ = job;
  timed_out_ = false;
  began_ = std::chrono::steady_clock::now();
  std::error_code error;
  fs::create_directories(folder_, error);
  pid_ = spawn_shell(
      command_, folder_ / (step_directory_name(job.step) + ".log"),
      environment_with({"OCTAVO_CHECKPOINT=" + job.checkpoint.string(), fmt::format("OCTAVO_STEP={}", job.step),
                        fmt::format("OCTAVO_LOSS={}", job.loss), "OCTAVO_RUN=" + folder_.parent_path().string()}));
  if (pid_ >= 0) return;
  log_event(EventKind::kWarning, job.step, "checkpoint.command cannot be started for step {}: {}", job.step,
            std::strerror(errno));
}

bool CheckpointCommand::poll() {
  if (pid_ >= 0) {
    int status = 0;
    const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
    if (ended == pid_ || (ended < 0 && errno != EINTR)) {
      finish(status);
    } else if (timeout_s_ > 0 &&
               std::chrono::steady_clock::now() - began_ > std::chrono::duration<double>(timeout_s_)) {
      timed_out_ = true;
      ::kill(-pid_, SIGKILL);
    }
  }
  if (pid_ < 0 && waiting_) spawn(*std::exchange(waiting_, std::nullopt));
  return pid_ >= 0;
}

// Background processes that the command has left behind are ended too.
void CheckpointCommand::finish(int status) {
  ::kill(-std::exchange(pid_, -1), SIGKILL);
  const fs::path output = folder_ / (step_directory_name(running_.step) + ".log");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  const std::string how = timed_out_ ? fmt::format("was ended after checkpoint.command_timeout_s ({:g} s)", timeout_s_)
                          : WIFEXITED(status)
                              ? fmt::format("ended with exit code {} after {:.1f} s", WEXITSTATUS(status), seconds)
                              : fmt::format("was killed by signal {} after {:.1f} s", WTERMSIG(status), seconds);
  const bool failed = timed_out_ || status != 0;
  std::vector<std::pair<std::string, double>> values =
      failed ? std::vector<std::pair<std::string, double>>() : numbers_in(content_of(output));
  std::string text;
  for (const auto& [name, value] : values) text += fmt::format("  {} {:g}", name, value);
  log_event(failed ? EventKind::kWarning : EventKind::kNote, running_.step, "checkpoint.command of step {} {}; {}{}",
            running_.step, how, output.string(), text);
  if (!values.empty()) numbers_.push_back({running_.step, std::move(values)});
}

std::optional<CheckpointCommand::Numbers> CheckpointCommand::next_numbers() {
  if (numbers_.empty()) return std::nullopt;
  Numbers numbers = std::move(numbers_.front());
  numbers_.pop_front();
  return numbers;
}

void CheckpointCommand::end(const std::string& reason) {
  if (waiting_) {
    log_event(EventKind::kWarning, waiting_->step, "checkpoint.command does not run for step {}, because {}",
              waiting_->step, reason);
  }
  waiting_.reset();
  if (pid_ < 0) return;
  ::kill(-pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  log_event(EventKind::kWarning, running_.step, "checkpoint.command of step {} was ended, because {}", running_.step,
            reason);
}

}  // namespace octavo
