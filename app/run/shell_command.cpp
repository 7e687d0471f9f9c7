#include "app/run/shell_command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <utility>

#include "app/process/startup_timer.h"

namespace octavo {

namespace fs = std::filesystem;

namespace {

// Returns the environment of this process, without the variables that tell its place in MPI and Slurm, and `added`.
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
                                          "OCTAVO_EVENT=",
                                          "OCTAVO_MESSAGE=",
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

// Starts a command in `folder` and in its own process group, without blocked signals or open files. Returns its process
// id, or -1 with the reason in errno.
pid_t spawn_shell(const std::string& command, const fs::path& folder, const fs::path& output,
                  std::vector<std::string> environment) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
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

}  // namespace

ShellCommand::ShellCommand(std::string key, std::string command, double timeout_s, fs::path folder)
    : key_(std::move(key)), command_(std::move(command)), timeout_s_(timeout_s), folder_(std::move(folder)) {}

ShellCommand::~ShellCommand() { kill(); }

std::string ShellCommand::start(std::vector<std::string> variables, const fs::path& output) {
  timed_out_ = false;
  began_ = std::chrono::steady_clock::now();
  pid_ = spawn_shell(command_, folder_, output, environment_with(std::move(variables)));
  return pid_ >= 0 ? "" : std::strerror(errno);
}

std::optional<ShellCommand::End> ShellCommand::poll() {
  if (pid_ < 0) return std::nullopt;
  siginfo_t info{};
  const int error = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
  if (info.si_pid == pid_ || (error != 0 && errno != EINTR)) return finish();
  if (timeout_s_ > 0 && seconds_since(began_) > timeout_s_) {
    timed_out_ = true;
    ::kill(-pid_, SIGKILL);
  }
  return std::nullopt;
}

// Collects the status of the ended command, and kills processes that it left in the background.
ShellCommand::End ShellCommand::finish() {
  const int status = kill();
  const double seconds = seconds_since(began_);
  if (timed_out_) return {true, fmt::format("was ended after {}_timeout_s ({:g} s)", key_, timeout_s_)};
  return {status != 0, WIFEXITED(status)
                           ? fmt::format("ended with exit code {} after {:.1f} s", WEXITSTATUS(status), seconds)
                           : fmt::format("was killed by signal {} after {:.1f} s", WTERMSIG(status), seconds)};
}

int ShellCommand::kill() {
  if (pid_ < 0) return 0;
  int status = 0;
  ::kill(-pid_, SIGKILL);
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return status;
}

}  // namespace octavo
