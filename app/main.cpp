// The program octavo: starts the process, runs the command of the command line (app/commands/command_line.h), and
// prints errors.
#include <fcntl.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>
#include <optional>
#include <string>

#include "app/commands/command_line.h"
#include "app/config/error_list.h"
#include "app/process/console.h"
#include "app/process/cores.h"
#include "app/process/exit_codes.h"
#include "build_config.h"
#include "core/commit.h"
#include "core/error.h"
#include "core/log.h"
#include "core/printable.h"

namespace octavo {

namespace {

// Writes the log to the console, except for debug messages, which only the log files have.
class ConsoleSink : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  ConsoleSink() { set_level(spdlog::level::info); }
  Console& console() { return console_; }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    console_.print({message.payload.data(), message.payload.size()}, message.level >= spdlog::level::warn);
  }
  void flush_() override {}

 private:
  Console console_{STDOUT_FILENO};
};

// Prints each sentence of the message on its own line. Uses std::fputs, because fmt::print throws if standard error
// cannot be written.
void print_error(const std::string& message) {
  for_each_sentence(message, [](const std::string& sentence) {
    std::fputs(fmt::format("octavo: {}\n", printable(sentence)).c_str(), stderr);
  });
}

// Opens /dev/null for standard streams that are closed (`>&-`). Otherwise the next opened files would get their
// descriptors and receive the output. /dev/null is opened for reading, so that writing to such a stream still fails.
void occupy_standard_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    if (::open("/dev/null", O_RDONLY) != descriptor) return;  // The lowest free descriptor.
  }
}

// Makes OpenMP's waiting threads sleep. By default they spin. If other processes use the machine, spinning takes the
// cores from the threads that are waited for, which made generating text 50 times slower. OpenMP reads its environment
// at load time, so the program executes itself again, unless the user has chosen a policy or uses one thread.
void let_waiting_threads_sleep(char** argv) {
  const Environment environment = process_environment();
  if (environment("OMP_WAIT_POLICY") || environment("GOMP_SPINCOUNT") || environment("OMP_NUM_THREADS") == "1") return;
  std::error_code error;  // If the path of the program is unknown, the program continues with spinning threads.
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error && ::setenv("OMP_WAIT_POLICY", "passive", 1) == 0) ::execv(program.c_str(), argv);
}

// Prints the error once and returns the exit code. Only rank 0 prints an error that all ranks share. An error that
// other ranks do not know about ends them too.
int fail(ProcessGroup& group, const std::exception& error, int exit_code) {
  if (group.shares(error)) {
    if (group.is_root()) print_error(failure_text(error));
    return exit_code;
  }
  print_error(fmt::format("rank {}: {}", group.rank(), failure_text(error)));
  group.abort(exit_code);
}

// Prints a sentence and ends the process after a failure that nobody can catch: in a thread, in a destructor, or before
// the ranks are connected.
[[noreturn]] void end_process() {
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
    std::fputs("octavo: an internal error ended the process\n", stderr);
  } catch (const std::bad_alloc&) {  // There is no memory for a better message.
    std::fputs("octavo: out of host memory\n", stderr);
  } catch (const std::exception& error) {
    print_error(error.what());
  }
  std::_Exit(kExitFailed);
}

int run_command(const Command& command, ProcessGroup& group) {
  try {
    const int exit_code = command(group);
    group.throw_on_all_ranks([&] { CHECK(std::cout.flush().good(), "standard output cannot be written"); });
    return exit_code;
  } catch (const InputError& error) {
    return fail(group, error, kExitBadInput);
  } catch (const std::exception& error) {
    return fail(group, error, kExitFailed);
  }
}

int main(int argc, char** argv) {
  std::set_terminate(end_process);
  let_waiting_threads_sleep(argv);
  StartupTimer timer;
  occupy_standard_streams();
  // Exceeding the limit of a file's size becomes an error of the write, as on a full disk, instead of a signal that
  // ends the process.
  std::signal(SIGXFSZ, SIG_IGN);
  const auto sink = std::make_shared<ConsoleSink>();
  start_log(sink);

  CLI::App app("Octavo pretrains Llama-3-family language models.", "octavo");
  app.set_version_flag("--version",
                       fmt::format("octavo {} ({}, commit {})", kVersion, kHasCuda ? "CUDA" : "CPU", build_commit()));
  CommandLine line(app, timer, sink->console());
  std::optional<ProcessGroup> connected;
  try {
    connected.emplace();
  } catch (const InputError& error) {  // Every rank prints this error, because the ranks cannot communicate.
    if (ProcessGroup::launcher_rank() == 0) print_error(error.what());
    return kExitBadInput;
  }
  timer.mark("MPI");
  ProcessGroup& group = *connected;
  if (argc == 1) {  // Without a command, prints the help.
    const auto print = [&](const ProcessGroup& ranks) {
      if (ranks.is_root()) std::cout << app.help();
      return static_cast<int>(kExitBadInput);
    };
    return run_command(print, group);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // Not an error, but the option --help or --version.
      const auto print = [&](const ProcessGroup& ranks) { return ranks.is_root() ? app.exit(error) : kExitDone; };
      return run_command(print, group);
    }
    if (group.is_root()) print_error(line.describe(error, argc > 1 ? argv[1] : ""));
    return kExitBadInput;
  }
  if (line.prints_json()) spdlog::set_level(spdlog::level::off);
  return run_command(line.command(), group);
}

}  // namespace

}  // namespace octavo

int main(int argc, char** argv) { return octavo::main(argc, argv); }
