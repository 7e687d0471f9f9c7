#include "app/run/checkpoint_command.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "app/process/events.h"
#include "app/process/startup_timer.h"
#include "checkpoint/checkpoint_format.h"
#include "core/log.h"

namespace octavo {

namespace fs = std::filesystem;

namespace {

constexpr int kMaxDepth = 16;  // Numbers in objects that are nested deeper are not read.

void add_numbers(const nlohmann::json& object, const std::string& prefix, NumbersByName& numbers) {
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::any_of(key, [](unsigned char c) { return std::iscntrl(c) != 0; })) continue;
    if (value.is_object()) add_numbers(value, prefix + key + "/", numbers);
    if (value.is_number()) numbers.emplace_back(prefix + key, value.get<double>());
  }
}

// Returns the environment of the command: that of this process without its place in MPI and Slurm, and `added`.
std::vector<std::string> environment_with(std::vector<std::string> added) {
  constexpr std::string_view kPlaces[] = {"OMPI_COMM",
                                          "OMPI_UNIVERSE",
                                          "OMPI_FIRST_RANKS",
                                          "OMPI_APP_CTX",
                                          "OMPI_NUM_APP",
                                          "OMPI_FILE_LOCATION",
                                          "OMPI_ARGV",
                                          "OMPI_MCA_ess",
                                          "OMPI_MCA_orte",
                                          "OMPI_MCA_pmix",
                                          "OMPI_MCA_initial_wdir",
                                          "PMIX",
                                          "PMI_",
                                          "SLURM_",
                                          "OCTAVO_CHECKPOINT=",
                                          "OCTAVO_STEP=",
                                          "OCTAVO_LOSS=",
                                          "OCTAVO_RUN="};
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

// Starts a command in `folder` and in a process group of its own, without blocked signals or open files. Returns its
// process id, or -1 and errno.
pid_t spawn_shell(const std::string& command, const fs::path& folder, const fs::path& output,
                  std::vector<std::string> environment) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
  posix_spawn_file_actions_addchdir_np(&files, folder.c_str());
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

// Returns the last MiB of a file.
std::string end_of(const fs::path& path) {
  constexpr uintmax_t kBytes = 1 << 20;
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (!error && size > kBytes) file.seekg(static_cast<std::streamoff>(size - kBytes));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

NumbersByName numbers_in(const std::string& output) {
  NumbersByName numbers;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const auto is_shallow = [](int depth, nlohmann::json::parse_event_t, const auto&) { return depth <= kMaxDepth; };
    const nlohmann::json found = nlohmann::json::parse(line, is_shallow, /*allow_exceptions=*/false);
    if (!found.is_object()) continue;
    numbers.clear();
    add_numbers(found, "", numbers);
  }
  return numbers;
}

CheckpointCommand::CheckpointCommand(const Config& config)
    : command_(config.checkpoint.command),
      timeout_s_(config.checkpoint.command_timeout_s),
      checkpoints_(fs::absolute(config.checkpoint.dir)),
      run_(fs::absolute(config.logging.dir)) {}

CheckpointCommand::~CheckpointCommand() { end("the run ended"); }

fs::path CheckpointCommand::output_of(int64_t step) const {
  return run_ / "checkpoint_commands" / (step_directory_name(step) + ".log");
}

void CheckpointCommand::set_loss(int64_t step, double loss) { losses_[step] = loss; }

void CheckpointCommand::start(int64_t step) {
  if (waiting_) {
    log_event(EventKind::kWarning, *waiting_,
              "checkpoint.command does not run for step {}, because that of step {} still runs and step {} is saved",
              *waiting_, running_, step);
  }
  waiting_ = step;
  poll();
}

void CheckpointCommand::spawn(int64_t step) {
  running_ = step;
  timed_out_ = false;
  began_ = std::chrono::steady_clock::now();
  const fs::path output = output_of(step);
  const auto loss = losses_.find(step);
  std::error_code error;
  fs::create_directories(output.parent_path(), error);
  pid_ =
      spawn_shell(command_, run_, output,
                  environment_with({"OCTAVO_CHECKPOINT=" + (checkpoints_ / step_directory_name(step)).string(),
                                    fmt::format("OCTAVO_STEP={}", step),
                                    fmt::format("OCTAVO_LOSS={}", loss == losses_.end() ? std::nan("") : loss->second),
                                    "OCTAVO_RUN=" + run_.string()}));
  losses_.erase(losses_.begin(), losses_.upper_bound(step));
  if (pid_ >= 0) return;
  log_event(EventKind::kWarning, step, "checkpoint.command cannot be started for step {}: {}", step,
            std::strerror(errno));
}

bool CheckpointCommand::poll() {
  if (pid_ >= 0) {
    siginfo_t info{};
    const int error = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
    if (info.si_pid == pid_ || (error != 0 && errno != EINTR)) {
      finish();
    } else if (timeout_s_ > 0 && seconds_since(began_) > timeout_s_) {
      timed_out_ = true;
      ::kill(-pid_, SIGKILL);
    }
  }
  if (pid_ < 0 && waiting_) spawn(*std::exchange(waiting_, std::nullopt));
  return pid_ >= 0;
}

// Ends the background processes of the command too.
void CheckpointCommand::finish() {
  const int status = kill_group();
  const fs::path output = output_of(running_);
  const double seconds = seconds_since(began_);
  const std::string how = timed_out_ ? fmt::format("was ended after checkpoint.command_timeout_s ({:g} s)", timeout_s_)
                          : WIFEXITED(status)
                              ? fmt::format("ended with exit code {} after {:.1f} s", WEXITSTATUS(status), seconds)
                              : fmt::format("was killed by signal {} after {:.1f} s", WTERMSIG(status), seconds);
  const bool failed = timed_out_ || status != 0;
  NumbersByName values = failed ? NumbersByName() : numbers_in(end_of(output));
  std::string text;
  for (const auto& [name, value] : values) text += fmt::format("  {} {:g}", name, value);
  log_event(failed ? EventKind::kWarning : EventKind::kNote, running_, "checkpoint.command of step {} {}; {}{}",
            running_, how, output.string(), text);
  if (!values.empty()) numbers_.push_back({running_, std::move(values)});
}

std::optional<CheckpointCommand::Numbers> CheckpointCommand::next_numbers() {
  if (numbers_.empty()) return std::nullopt;
  Numbers numbers = std::move(numbers_.front());
  numbers_.pop_front();
  return numbers;
}

// Ends the command and its processes. Returns its status (waitpid).
int CheckpointCommand::kill_group() {
  int status = 0;
  ::kill(-pid_, SIGKILL);
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return status;
}

void CheckpointCommand::end(const std::string& reason) {
  if (waiting_) {
    log_event(EventKind::kWarning, *waiting_, "checkpoint.command does not run for step {}, because {}", *waiting_,
              reason);
  }
  waiting_.reset();
  if (pid_ < 0) return;
  kill_group();
  log_event(EventKind::kWarning, running_, "checkpoint.command of step {} was ended, because {}", running_, reason);
}

}  // namespace octavo
