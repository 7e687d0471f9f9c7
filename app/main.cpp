// octavo: the command line. Subcommands are in app/commands.h.
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <functional>
#include <iostream>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/console.h"
#include "app/import_export.h"
#include "build_config.h"
#include "core/commit.h"
#include "core/error.h"
#include "core/format.h"
#include "core/nearest_name.h"
#include "core/printable.h"
#include "data/pack.h"

namespace octavo {

namespace {

constexpr int kMaxSteps = 1'000'000;  // of a benchmark

// What the command line says; each subcommand reads its own part.
struct CommandLine {
  ConfigArguments config;
  BenchArguments bench;
  DoctorArguments doctor;
  PlanArguments plan;
  ConfigCommandArguments keys;
  GenerateArguments generate;
  InspectArguments inspect;
  PackOptions pack;
  std::string source, destination, dtype = "float32", shard_size = "5GB";
  bool force = false;
};

using Command = std::function<int(ProcessGroup&)>;

// A command that works on files alone: under mpirun rank 0 does it, and the others share its outcome.
Command on_root(std::function<int()> work) {
  return [work = std::move(work)](ProcessGroup& group) {
    int exit_code = kExitDone;
    group.agree([&] {
      if (!group.is_root()) return;
      exit_code = work();
      std::cout.flush();
      CHECK(std::cout.good(), "standard output cannot be written");
    });
    return static_cast<int>(group.all_reduce_max(exit_code));
  };
}

void add_config(CLI::App* command, ConfigArguments& arguments, const char* what = "CONFIG.yaml") {
  command->add_option("config", arguments.path, what)->required();
  command->add_option("overrides", arguments.overrides, "section.key=value, in place of the file's");
}

void add_compute_commands(CLI::App& app, CommandLine& line, StartupTimer& timer, Command& run) {
  auto* train = app.add_subcommand("train", "train a model; under mpirun for several ranks; resumes by itself");
  add_config(train, line.config);
  train->callback([&] { run = [&](ProcessGroup& group) { return train_command(line.config, group, timer); }; });

  auto* evaluate = app.add_subcommand("evaluate", "validation loss and perplexity of a checkpoint");
  add_config(evaluate, line.config, "CONFIG.yaml, or a checkpoint whose own config is taken");
  evaluate->callback([&] { run = [&](ProcessGroup& group) { return evaluate_command(line.config, group); }; });

  auto* bench = app.add_subcommand("bench", "throughput on synthetic tokens, with a breakdown by op");
  add_config(bench, line.bench.config);
  bench->add_option("--warmup", line.bench.warmup, "steps before the clock starts")->check(CLI::Range(0, kMaxSteps));
  bench->add_option("--steps", line.bench.steps, "timed steps; the median counts")->check(CLI::Range(1, kMaxSteps));
  auto* ops = bench->add_flag("--ops", line.bench.ops, "every op beside its floor, at rates measured on this device");
  bench->add_option("--sweep", line.bench.sweep, "KEY=V1,V2,... for several keys: throughput of every combination")
      ->excludes(ops);
  bench->add_flag("--data", line.bench.data, "the loader alone, on the config's data, without a model")->excludes(ops);
  bench->add_flag("--json", line.bench.json, "print JSON");
  bench->callback([&] { run = [&](ProcessGroup& group) { return bench_command(line.bench, group); }; });

  auto* doctor = app.add_subcommand("doctor", "what this machine is, how fast, and what hinders training on it");
  doctor->add_flag("--json", line.doctor.json, "print JSON");
  doctor->add_option("--save", line.doctor.save, "FILE to write the measured rates to, as JSON");
  doctor->add_option("--disk", line.doctor.disk, "directory whose write speed is measured");
  doctor->callback([&] { run = [&](ProcessGroup& group) { return doctor_command(line.doctor, group); }; });

  auto* generate = app.add_subcommand("generate", "sample text from a checkpoint");
  generate->add_option("checkpoint", line.generate.checkpoint, "checkpoint, or directory of them")->required();
  generate->add_option("--prompt", line.generate.prompt, "text to continue")->required();
  generate->add_option("--max-tokens", line.generate.max_tokens, "tokens to add")->check(CLI::PositiveNumber);
  generate->add_option("--temperature", line.generate.temperature, "0: the most likely token")
      ->check(CLI::NonNegativeNumber);
  generate->add_option("--top-k", line.generate.top_k, "among the k most likely; 0: all")
      ->check(CLI::NonNegativeNumber);
  generate->add_option("--top-p", line.generate.top_p, "among those that make up this probability")
      ->check(CLI::Range(0.0, 1.0));
  generate->add_option("--seed", line.generate.seed, "of the sampling");
  generate->add_option("--device", line.generate.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  generate->callback([&] { run = [&](ProcessGroup& group) { return generate_command(line.generate, group); }; });
}

int run_pack(const PackOptions& options) {
  const PackSummary s = pack(options);
  std::cout << fmt::format("{}: {} documents, {} tokens from {} files\n", options.output, s.documents, s.tokens,
                           s.files);
  if (options.hold_out_every > 0) {
    std::cout << fmt::format("held out: {} documents, {} tokens\n", s.held_out_documents, s.held_out_tokens);
  }
  const auto unreadable = static_cast<int64_t>(s.unreadable.size());
  if (unreadable + s.binary_files + s.empty_documents > 0) {
    std::cout << fmt::format("left out: {} unreadable files, {} binary files, {} empty documents\n", unreadable,
                             s.binary_files, s.empty_documents);
  }
  for (const std::string& file : s.unreadable) std::cout << fmt::format("unreadable: {}\n", printable(file));
  return kExitDone;
}

int run_export(const CommandLine& line) {
  const DType dtype = line.dtype == "bfloat16" ? DType::kBFloat16 : DType::kFloat32;
  const ExportReport report =
      export_hf(line.source, line.destination,
                {.dtype = dtype, .max_shard_bytes = parse_bytes(line.shard_size, "--shard-size"), .force = line.force});
  std::cout << fmt::format("{}: step {}, {} parameters in {}, {:.3f} GB, {} files\n", line.destination, report.step,
                           with_thousands_separators(report.parameters), line.dtype,
                           static_cast<double>(report.bytes) / 1e9, report.files.size());
  if (!report.tokenizer_elsewhere.empty()) {
    std::cout << fmt::format("the checkpoint carries no tokenizer, so none was copied; it was {}\n",
                             report.tokenizer_elsewhere);
  }
  return kExitDone;
}

void add_plan_command(CLI::App& app, CommandLine& line, Command& run) {
  auto* plan = app.add_subcommand("plan", "memory per GPU, FLOPs and predicted throughput, without running");
  add_config(plan, line.plan.config);
  plan->add_option("--gpus", line.plan.gpus, "ranks of the run")->check(CLI::Range(1, 1 << 20));
  plan->add_option("--gpu-memory", line.plan.gpu_memory, "of one GPU, as 80GiB or 80GB; default: the machine's");
  plan->add_option("--machine", line.plan.machine, "h200, h100 or a FILE of octavo doctor --save");
  plan->add_option("--gpus-per-node", line.plan.gpus_per_node, "that NVLink connects")->check(CLI::Range(1, 1 << 20));
  plan->add_option("--network-gbps", line.plan.network_gbps, "Gbit/s of each GPU to other nodes")
      ->check(CLI::PositiveNumber);
  plan->add_option("--network-latency-us", line.plan.network_latency_us, "of one hop between nodes")
      ->check(CLI::NonNegativeNumber);
  plan->add_flag("--search", line.plan.search, "the ten fastest meshes, micro-batches and modes that fit");
  plan->add_flag("--published", line.plan.published, "predictions beside published set-ups");
  plan->add_option("--price", line.plan.price, "dollars of a GPU hour: cost of a billion tokens")
      ->check(CLI::PositiveNumber);
  plan->add_flag("--json", line.plan.json, "print JSON");
  plan->callback([&] { run = [&](ProcessGroup& group) { return plan_command(line.plan, group); }; });
}

void add_config_command(CLI::App& app, CommandLine& line, Command& run) {
  auto* config = app.add_subcommand("config", "every key of a config, or all values of one with its defaults, as YAML");
  auto* path = config->add_option("config", line.keys.config.path, "CONFIG.yaml");
  config->add_option("overrides", line.keys.config.overrides, "section.key=value, in place of the file's");
  config->add_flag("--markdown", line.keys.markdown, "the keys as docs/config.md")->excludes(path);
  config->callback([&] { run = on_root([&] { return config_command(line.keys); }); });
}

void add_file_commands(CLI::App& app, CommandLine& line, Command& run) {
  auto* pack = app.add_subcommand("pack", "text, JSONL or source trees -> PREFIX.bin/.idx, with the byte tokenizer");
  pack->add_option("--input", line.pack.inputs, "files and directories");
  pack->add_option("--input-list", line.pack.input_list, "a file naming one input a line");
  pack->add_option("--output", line.pack.output, "PREFIX of the token file")->required();
  pack->add_option("--hold-out-every", line.pack.hold_out_every, "every n-th document goes to a second token file")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  pack->add_option("--hold-out-output", line.pack.hold_out_output, "PREFIX of that one; default OUTPUT_held_out");
  pack->callback([&] { run = on_root([&] { return run_pack(line.pack); }); });

  auto* inspect =
      app.add_subcommand("inspect", "what is in a token file, a checkpoint or a run, and whether it is intact");
  inspect
      ->add_option("target", line.inspect.target,
                   "PREFIX, CHECKPOINT, the logging.dir of a run, or CONFIG.yaml with --samples")
      ->required();
  inspect->add_option("--samples", line.inspect.samples, "A:B, global samples A to B-1 of a config as JSON lines");
  inspect->add_option("overrides", line.inspect.overrides, "section.key=value, with --samples");
  inspect->callback([&] { run = on_root([&] { return inspect_command(line.inspect); }); });

  auto* import_command = app.add_subcommand("import", "Hugging Face safetensors -> checkpoint");
  import_command->add_option("hf_dir", line.source, "HF_DIR")->required();
  import_command->add_option("checkpoint", line.destination, "CHECKPOINT")->required();
  import_command->callback([&] {
    run = on_root([&] {
      const ImportReport report = import_hf(line.source, line.destination);
      std::cout << fmt::format("{}: step 0, {} parameters, {}\n", line.destination,
                               with_thousands_separators(report.parameters),
                               report.tokenizer ? "with its tokenizer" : "without a tokenizer");
      return kExitDone;
    });
  });

  auto* export_command = app.add_subcommand("export", "checkpoint -> Hugging Face safetensors and config.json");
  export_command->add_option("checkpoint", line.source, "CHECKPOINT")->required();
  export_command->add_option("hf_dir", line.destination, "HF_DIR")->required();
  export_command->add_option("--dtype", line.dtype, "float32 or bfloat16")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  export_command->add_option("--shard-size", line.shard_size, "tensors of a file at most, as 5GB or 500MiB");
  export_command->add_flag("--force", line.force, "replace a model in HF_DIR that octavo did not export");
  export_command->callback([&] { run = on_root([&] { return run_export(line); }); });
}

// Not fmt::print(), which throws where standard error cannot be written.
void print_error(const std::string& message) {
  std::fputs(fmt::format("octavo: {}\n", printable(message)).c_str(), stderr);
}

// Standard input, output and error that are closed (`>&-`) would be the next files opened, and be written to as such.
// Opened for reading, an output stays one that cannot be written.
void occupy_standard_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    if (::open("/dev/null", O_RDONLY) != descriptor) return;  // the lowest one that is free
  }
}

// Prints the error once and returns the exit code. A failure that all ranks share is rank 0's to print; one that the
// others cannot know of ends them too.
int fail(ProcessGroup& group, const std::exception& error, int exit_code) {
  if (group.shares(error)) {
    if (group.is_root()) print_error(error.what());
    return exit_code;
  }
  print_error(fmt::format("rank {}: {}", group.rank(), error.what()));
  group.abort(exit_code);
}

int run_command(const Command& command, ProcessGroup& group) {
  try {
    return command(group);
  } catch (const InputError& error) {
    return fail(group, error, kExitBadInput);
  } catch (const std::bad_alloc&) {
    return fail(group, Error("the memory of this machine does not suffice"), kExitFailed);
  } catch (const std::exception& error) {
    return fail(group, error, kExitFailed);
  }
}

// What CLI11 says, but of a command that there is not, the nearest that there is.
std::string complaint(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  const std::string written = argc > 1 ? argv[1] : "";
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands({})) commands.push_back(command->get_name());
  const bool is_command = std::find(commands.begin(), commands.end(), written) != commands.end();
  if (written.empty() || written.front() == '-' || is_command) return error.what();
  const std::string message = fmt::format("there is no command {}", written);
  if (const std::optional<std::string> meant = nearest_name(written, commands)) {
    return fmt::format("{}; did you mean {}?", message, *meant);
  }
  return fmt::format("{}, expected {}", message, fmt::join(commands, ", "));
}

int main(int argc, char** argv) {
  StartupTimer timer;
  occupy_standard_streams();
  // A file that grows beyond the process's limit is then an error of the write, like a full disk, and not the end.
  std::signal(SIGXFSZ, SIG_IGN);
  auto logger = std::make_shared<spdlog::logger>("octavo", std::make_shared<ConsoleSink>(STDOUT_FILENO));
  logger->set_pattern("%v");
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(logger);

  CLI::App app("Octavo pretrains Llama-3-family language models.", "octavo");
  app.set_version_flag("--version",
                       fmt::format("octavo {} ({}, commit {})", kVersion, kHasCuda ? "CUDA" : "CPU", build_commit()));
  app.require_subcommand(1);
  CommandLine line;
  Command command;
  add_compute_commands(app, line, timer, command);
  add_plan_command(app, line, command);
  add_config_command(app, line, command);
  add_file_commands(app, line, command);
  std::optional<ProcessGroup> connected;
  try {
    connected.emplace();
  } catch (const InputError& error) {  // the ranks cannot reach each other: each is told of it
    if (ProcessGroup::launcher_rank() == 0) print_error(error.what());
    return kExitBadInput;
  }
  timer.mark("MPI");
  ProcessGroup& group = *connected;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool asked = error.get_exit_code() == 0;  // --help, --version
    if (asked && group.is_root()) app.exit(error);
    if (!asked && group.is_root())
      print_error(fmt::format("{} (see octavo --help)", complaint(app, error, argc, argv)));
    return asked ? kExitDone : kExitBadInput;
  }
  if (line.bench.json || line.doctor.json || line.plan.json) spdlog::set_level(spdlog::level::off);  // nothing but JSON
  return run_command(command, group);
}

}  // namespace

}  // namespace octavo

int main(int argc, char** argv) { return octavo::main(argc, argv); }
