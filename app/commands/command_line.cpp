#include "app/commands/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <iostream>
#include <limits>
#include <optional>
#include <system_error>

#include "app/commands/manual.h"
#include "core/error.h"
#include "core/nearest_name.h"

namespace octavo {

namespace {

constexpr int kMaxTimedSteps = 1'000'000;
constexpr int64_t kMaxTokens = int64_t{1} << 31;
constexpr const char* kModelHelp =
    "MODEL: a checkpoint, a directory of checkpoints or a run folder (their newest one), or a Hugging Face directory";
constexpr const char* kEmaHelp = "the moving average of the weights (optimizer.ema_decay)";

// What a value may be. CLI11's own rules and sentences are others than those of the config's keys: it reads 010 as
// eight and -1 as a large seed, and lets NaN pass. What stands behind the option's name when `allows` refuses a value;
// `type` stands in the help.
template <typename Allows>
CLI::Validator value(const Allows& allows, const std::string& expected, const std::string& type) {
  const auto check = [=](const std::string& text) {
    return allows(text) ? "" : fmt::format("is '{}', expected {}", text, expected);
  };
  return CLI::Validator(check, type);
}

// The whole text as a number in plain decimal digits.
template <typename Number>
std::optional<Number> parse(const std::string& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

CLI::Validator number(double least, double most) {
  const std::string range = fmt::format("from {:g} to {:g}", least, most);
  const auto allows = [=](const std::string& text) {
    const std::optional<double> number = parse<double>(text);
    return number && least <= *number && *number <= most;
  };
  return value(allows, "a number " + range, range);
}

template <typename Integer>
CLI::Validator integer(Integer least, Integer most) {
  const std::string range = fmt::format("from {} to {}", least, most);
  const auto allows = [=](const std::string& text) {
    const std::optional<Integer> number = parse<Integer>(text);
    const bool is_plain = text.size() == 1 || (!text.starts_with('0') && !text.starts_with("-0"));
    return number && is_plain && least <= *number && *number <= most;
  };
  return value(allows, "an integer " + range, range);
}

CLI::Validator one_of(const std::vector<std::string>& choices) {
  const auto allows = [=](const std::string& text) {
    return std::find(choices.begin(), choices.end(), text) != choices.end();
  };
  return value(allows, fmt::format("one of {}", fmt::join(choices, ", ")),
               fmt::format("{{{}}}", fmt::join(choices, ",")));
}

// A command that works on files alone: under mpirun rank 0 does it, and the others share its outcome.
Command on_root(std::function<int()> work) {
  return [work = std::move(work)](ProcessGroup& group) {
    int exit_code = kExitDone;
    group.agree([&] {
      if (group.is_root()) exit_code = work();
    });
    return static_cast<int>(group.all_reduce_max(exit_code));
  };
}

void add_overrides(CLI::App* command, std::vector<std::string>& overrides, const char* what) {
  command->add_option("overrides", overrides, what)->default_str("");
}

void add_config(CLI::App* command, ConfigArguments& arguments, const char* what = "CONFIG.yaml") {
  command->add_option("config", arguments.path, what)->required();
  add_overrides(command, arguments.overrides, "section.key=value, in place of the file's");
}

// At the end of the command's help.
void add_example(CLI::App* command, const std::string& example) { command->footer("Example:\n  " + example); }

void add_compute_commands(CLI::App& app, CommandLine& line) {
  auto* train = app.add_subcommand("train", "train a model; under mpirun for several ranks; resumes by itself");
  add_config(train, line.config);
  add_example(train, "mpirun -n 8 octavo train configs/llama3_8b_8gpu.yaml training.steps=1000 logging.dir=runs/mine");
  auto* dry_run = train->add_flag("--dry-run", line.is_dry_run,
                                  "check everything, print the start screen and what would be resumed, and write "
                                  "nothing; needs no GPU");
  train->add_option("--gpus", line.dry_run.gpus, "with --dry-run: ranks of the run")
      ->check(integer(1, 1 << 20))
      ->default_str("as octavo plan")
      ->needs(dry_run);
  train->add_option("--gpus-per-node", line.dry_run.gpus_per_node, "with --dry-run: GPUs that NVLink connects")
      ->check(integer(1, 1 << 20))
      ->needs(dry_run);
  train->add_option("--machine", line.dry_run.machine, "with --dry-run: h200, h100 or a FILE of octavo doctor --save")
      ->default_str("as octavo plan")
      ->needs(dry_run);
  train->callback([&] {
    line.dry_run.config = line.config;
    line.command = [&](ProcessGroup& group) {
      return line.is_dry_run ? dry_run_command(line.dry_run, group)
                             : train_command(line.config, group, line.timer, line.console);
    };
  });

  auto* evaluate = app.add_subcommand("evaluate", "validation loss and perplexity of a checkpoint");
  add_config(
      evaluate, line.evaluate.config,
      "CONFIG.yaml, or MODEL: a checkpoint, a directory of checkpoints, a run folder (each with its own config) or a "
      "Hugging Face directory");
  evaluate->add_flag("--ema", line.evaluate.ema, kEmaHelp);
  add_example(evaluate, "octavo evaluate runs/quickstart validation.batches=10");
  evaluate->callback(
      [&] { line.command = [&](ProcessGroup& group) { return evaluate_command(line.evaluate, group); }; });

  auto* bench = app.add_subcommand(
      "bench",
      "throughput on synthetic tokens, with the config's batch and with one micro-batch a step, and a breakdown by op");
  add_config(bench, line.bench.config);
  add_example(bench, "octavo bench configs/llama3_1.8b_1gpu.yaml --ops training.micro_batch_size=2");
  bench->add_option("--warmup", line.bench.warmup, "steps before the clock starts")->check(integer(0, kMaxTimedSteps));
  bench->add_option("--steps", line.bench.steps, "timed steps; the median counts")->check(integer(1, kMaxTimedSteps));
  auto* ops = bench->add_flag("--ops", line.bench.ops, "every op beside its floor, at rates measured on this device");
  auto* energy = bench->add_flag("--energy", line.bench.energy,
                                 "on GPUs: joules per token, mean clock and power over 2 s of more steps");
  auto* trace =
      bench->add_option("--trace", line.bench.trace, "FILE.json: every rank's ops over one step, for Perfetto");
  bench->add_flag("--data", line.bench.data, "the loader alone, on the config's data, without a model")
      ->excludes(ops)
      ->excludes(energy)
      ->excludes(trace);
  bench->add_flag("--json", line.bench.json, "print JSON");
  bench->callback([&] { line.command = [&](ProcessGroup& group) { return bench_command(line.bench, group); }; });

  auto* doctor = app.add_subcommand("doctor", "what this machine is, how fast, and what hinders training on it");
  doctor->add_flag("--json", line.doctor.json, "print JSON");
  auto* quick = doctor->add_flag("--quick", line.doctor.quick, "what can be told in seconds, without measuring");
  doctor
      ->add_option("--ranks-per-node", line.doctor.ranks_per_node, "of the run to come: GPUs that a machine must have")
      ->check(integer(1, 1 << 10))
      ->default_str("");
  doctor->add_option("--save", line.doctor.save, "FILE to write the measured rates to, as JSON")->excludes(quick);
  doctor->add_option("--disk", line.doctor.disk,
                     "directory whose write speed is measured; with --quick that of the checkpoints");
  add_example(doctor, "octavo doctor --save mine.json");
  doctor->callback([&] { line.command = [&](ProcessGroup& group) { return doctor_command(line.doctor, group); }; });

  auto* generate = app.add_subcommand("generate", "sample text from a checkpoint");
  generate->add_option("model", line.generate.model, kModelHelp)->required();
  generate->add_option("--prompt", line.generate.prompt, "text to continue")->required();
  generate->add_option("--max-tokens", line.generate.max_tokens, "tokens to add")
      ->check(integer(int64_t{1}, kMaxTokens));
  generate->add_option("--samples", line.generate.samples, "texts, computed together; printed with a line --- between")
      ->check(integer(int64_t{1}, kMaxSamples));
  SamplingOptions& sampling = line.generate.sampling;
  generate->add_option("--temperature", sampling.temperature, "0: the most likely token")->check(number(0, 1e6));
  generate->add_option("--top-k", sampling.top_k, "among the k most likely; 0: all")
      ->check(integer(int64_t{0}, kMaxTokens));
  generate->add_option("--top-p", sampling.top_p, "among those that make up this probability")->check(number(0, 1));
  generate->add_option("--min-p", sampling.min_p, "among those so many times as likely as the most likely")
      ->check(number(0, 1));
  generate
      ->add_option("--stop", line.generate.stop,
                   "TEXT that ends a sample and is not printed; may be given several times")
      ->expected(1)
      ->take_all()
      ->default_str("");
  generate->add_option("--seed", line.generate.seed, "of the first sample; the next has the next")
      ->check(integer(uint64_t{0}, std::numeric_limits<uint64_t>::max()));
  generate->add_option("--device", line.generate.device, "auto, cpu or cuda")->check(one_of({"auto", "cpu", "cuda"}));
  generate->add_flag("--ema", line.generate.ema, kEmaHelp);
  add_example(generate, "octavo generate runs/quickstart --prompt 'static int ' --temperature 0.5");
  generate->callback(
      [&] { line.command = [&](ProcessGroup& group) { return generate_command(line.generate, group); }; });
}

void add_plan_command(CLI::App& app, CommandLine& line) {
  auto* plan = app.add_subcommand("plan", "memory per GPU, FLOPs and predicted throughput, without running");
  add_config(plan, line.plan.config);
  plan->add_option("--gpus", line.plan.gpus, "ranks of the run")
      ->check(integer(1, 1 << 20))
      ->default_str("plan.gpus of the config");
  plan->add_option("--gpu-memory", line.plan.gpu_memory, "of one GPU, as 80GiB or 80GB")->default_str("the machine's");
  plan->add_option("--machine", line.plan.machine, "h200, h100 or a FILE of octavo doctor --save")
      ->default_str("plan.machine of the config");
  plan->add_option("--gpus-per-node", line.plan.gpus_per_node, "that NVLink connects")->check(integer(1, 1 << 20));
  plan->add_option("--network-gbps", line.plan.network_gbps, "Gbit/s of each GPU to other nodes")
      ->check(number(1e-6, 1e9));
  plan->add_option("--network-latency-us", line.plan.network_latency_us, "of one hop between nodes")
      ->check(number(0, 1e9));
  plan->add_option("--network-oversubscription", line.plan.network_oversubscription,
                   "of the links between leaf switches; 1: none")
      ->check(number(1, 1e6))
      ->default_str("the machine's, or 1");
  FailureRates& failures = line.plan.failures;
  plan->add_option("--gpu-mtbf-hours", failures.gpu_mtbf_hours, "mean time between failures of one GPU")
      ->check(number(1e-3, 1e12));
  plan->add_option("--restart-seconds", failures.restart_s, "from a failure to the next step")
      ->check(number(1e-6, 1e9))
      ->default_str("by the GPUs");
  plan->add_option("--save-seconds", failures.save_s, "that a checkpoint adds to its step")->check(number(0, 1e9));
  plan->add_flag("--search", line.plan.search, "the ten fastest meshes, micro-batches and modes that fit");
  plan->add_option("--price-per-gpu-hour", line.plan.price_per_gpu_hour, "dollars; for the price of the run")
      ->check(number(1e-6, 1e9))
      ->default_str("");
  plan->add_flag("--all", line.plan.all, "every item of the memory and of the step, not the ten largest alone");
  plan->add_option("--html", line.plan.html, "FILE.html: a picture of the memory over the time of a step");
  plan->add_flag("--json", line.plan.json, "print JSON");
  add_example(plan, "octavo plan configs/llama3_8b_8gpu.yaml --gpus 8 --price-per-gpu-hour 2.50");
  plan->callback([&] { line.command = [&](ProcessGroup& group) { return plan_command(line.plan, group); }; });
}

void add_config_command(CLI::App& app, CommandLine& line) {
  auto* config = app.add_subcommand(
      "config", "every key of a config, the keys that match a word, or all values of a config file, as YAML");
  auto* path = config->add_option("config", line.keys.config.path, "CONFIG.yaml, or a WORD to look for in the keys");
  add_overrides(config, line.keys.config.overrides, "section.key=value, in place of the file's");
  config->add_flag("--markdown", line.keys.markdown, "the keys as docs/config.md")->excludes(path);
  config->add_option("--value", line.keys.value, "a key whose value alone is printed, a text without quotes")
      ->needs(path);
  add_example(config, "octavo config configs/quickstart.yaml training.steps=100");
  config->callback([&] { line.command = on_root([&] { return config_command(line.keys); }); });
}

void add_file_commands(CLI::App& app, CommandLine& line) {
  auto* pack = app.add_subcommand("pack", "text, JSONL or source trees -> PREFIX.bin/.idx, with the byte tokenizer");
  pack->add_option("--input", line.pack.inputs, "files and directories")->default_str("");
  pack->add_option("--input-list", line.pack.input_list, "a file naming one input a line");
  pack->add_option("--output", line.pack.output, "PREFIX of the token file")->required();
  pack->add_option("--hold-out-every", line.pack.hold_out_every,
                   "every n-th document goes to a second token file; 0: none")
      ->check(integer(int64_t{0}, int64_t{1} << 40));
  pack->add_option("--hold-out-output", line.pack.hold_out_output, "PREFIX of that one")
      ->default_str("OUTPUT_held_out");
  pack->add_flag("--overwrite", line.pack.overwrite, "replace token files of these names that exist");
  add_example(pack, "octavo pack --input my_project/ --output corpus/train --hold-out-every 20");
  pack->callback([&] { line.command = on_root([&] { return pack_command(line.pack); }); });

  auto* report = app.add_subcommand("report", "a page of charts of one or several runs, as one HTML file");
  report->add_option("runs", line.report.runs, "RUN..., the logging.dir of each; gaps of losses are to the first")
      ->required();
  report->add_option("--output", line.report.output, "FILE.html")->required();
  report->callback([&] { line.command = on_root([&] { return report_command(line.report); }); });

  auto* inspect =
      app.add_subcommand("inspect", "what is in a token file, a checkpoint or a run, and whether it is intact");
  inspect
      ->add_option(
          "target", line.inspect.target,
          "PREFIX, a checkpoint or a directory of them, the logging.dir of a run, a Hugging Face directory, or "
          "CONFIG.yaml with --samples")
      ->required();
  inspect->add_flag("--json", line.inspect.json, "print JSON on a terminal as well, where a run is shown as a table");
  inspect->add_option("--samples", line.inspect.samples, "A:B, global samples A to B-1 of a config as JSON lines");
  add_overrides(inspect, line.inspect.overrides, "section.key=value, with --samples");
  add_example(inspect, "octavo inspect runs/quickstart/checkpoints/step_00000900");
  inspect->callback([&] { line.command = on_root([&] { return inspect_command(line.inspect); }); });

  auto* import_hf = app.add_subcommand("import", "Hugging Face safetensors -> checkpoint");
  import_hf->add_option("hf_dir", line.import_hf.hf_dir, "HF_DIR")->required();
  import_hf->add_option("checkpoint", line.import_hf.checkpoint, "CHECKPOINT")->required();
  import_hf->add_flag("--overwrite", line.import_hf.overwrite, "replace a checkpoint that was not imported");
  add_example(import_hf, "octavo import Llama-3.2-1B checkpoints/llama3_1b");
  import_hf->callback([&] { line.command = on_root([&] { return import_command(line.import_hf); }); });

  auto* export_hf = app.add_subcommand("export", "checkpoint -> Hugging Face safetensors and config.json");
  export_hf
      ->add_option("model", line.export_hf.model,
                   "a checkpoint, a directory of checkpoints or a run folder (their newest one)")
      ->required();
  export_hf->add_option("hf_dir", line.export_hf.hf_dir, "HF_DIR")->required();
  export_hf->add_option("--dtype", line.export_hf.dtype, "float32 or bfloat16")->check(one_of({"float32", "bfloat16"}));
  export_hf->add_option("--shard-size", line.export_hf.shard_size, "tensors of a file at most, as 5GB or 500MiB");
  export_hf->add_flag("--overwrite,--force", line.export_hf.overwrite,
                      "replace a model in HF_DIR that octavo did not export");
  export_hf->add_flag("--ema", line.export_hf.ema, kEmaHelp);
  add_example(export_hf, "octavo export runs/quickstart exported --dtype bfloat16");
  export_hf->callback([&] { line.command = on_root([&] { return export_command(line.export_hf); }); });
}

// A variable of a script that is not set must not pass for a path, or for none.
void refuse_empty_texts(CLI::App& app) {
  const auto check = [](const std::string& text) {
    return std::string(text.empty() ? "is empty, expected a text" : "");
  };
  for (CLI::App* command : app.get_subcommands({})) {
    for (CLI::Option* option : command->get_options()) {
      const bool may_be_empty = option->check_name("overrides") || option->check_name("--prompt");
      if (option->get_type_name() == "TEXT" && !may_be_empty) option->check(check);
    }
  }
}

void add_manual_command(CLI::App& app, CommandLine& line) {
  auto* manual = app.add_subcommand("manual", "the manual page, or the completion of command lines in bash");
  manual->require_option(1);
  const auto add = [&](const char* name, std::string (*write)(const CLI::App&), const char* text) {
    const auto print = [&app, write] {
      std::cout << write(app);
      return kExitDone;
    };
    manual->add_flag_callback(
        name, [&line, print] { line.command = on_root(print); }, text);
  };
  add("--man", manual_page, "octavo(1), for man");
  add("--bash", bash_completion, "the completion for bash");
}

// "there is no option --stpes; did you mean --steps?"
std::string no_such(const std::string& what, const std::string& written, const std::vector<std::string>& known) {
  const std::string message = fmt::format("there is no {} {}", what, written);
  if (const std::optional<std::string> meant = nearest_name(written, known)) {
    return fmt::format("{}; did you mean {}?", message, *meant);
  }
  return fmt::format("{}, expected {}", message, fmt::join(known, ", "));
}

// Options of earlier versions, and what replaces them.
constexpr std::pair<const char*, const char*> kRetiredOptions[] = {
    {"--failures-per-gpu-day", "--gpu-mtbf-hours"},
    {"--published", "the tables of docs/plan.md"},
    {"--sweep", "scripts/bench_sweep.py"},
};

// What `command` was given and cannot take.
std::string describe_extra(const CLI::App& command, const std::string& extra) {
  if (!extra.starts_with('-')) return fmt::format("the argument '{}' is one too many", extra);
  const std::string name = extra.substr(0, extra.find('='));
  for (const auto& [retired, replacement] : kRetiredOptions) {
    if (name == retired) return fmt::format("the option {} was removed; use {}", name, replacement);
  }
  std::vector<std::string> options;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& known : option->get_lnames()) options.push_back("--" + known);
  }
  return no_such("option", name, options);
}

// What was found wrong with what `command` was given.
std::string describe_in(const CLI::App& command, const CLI::ParseError& error) {
  std::string sentence = error.what();
  const std::string option = sentence.substr(0, sentence.find_first_of(": "));
  if (dynamic_cast<const CLI::ValidationError*>(&error) != nullptr) {
    return sentence.erase(sentence.find(':'), 1);  // of "--steps: is 'x', expected ..."
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    if (sentence.ends_with(" missing")) return option + " has no value, expected one";
    if (sentence.ends_with(" flag override")) return fmt::format("--{} has a value, expected none", option);
    return option + " is given several times, expected once";
  }
  const std::vector<std::string> extras = command.remaining();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr || extras.empty()) return sentence;
  return describe_extra(command, extras.front());
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

// `octavo help COMMAND` prints what `octavo COMMAND --help` prints.
void add_help_command(CLI::App& app, CommandLine& line) {
  auto* help = app.add_subcommand("help", "the help of a command");
  help->add_option("command", line.help_of, "the command")->default_str("");
  help->callback([&] {
    line.command = on_root([&] {
      const std::vector<std::string> names = command_names(app);
      const bool is_known = std::find(names.begin(), names.end(), line.help_of) != names.end();
      CHECK_INPUT(line.help_of.empty() || is_known, "{} (see octavo --help)", no_such("command", line.help_of, names));
      std::cout << (line.help_of.empty()
                        ? app.get_formatter()->make_help(&app, app.get_name(), CLI::AppFormatMode::Normal)
                        : app.get_subcommand(line.help_of)->help("octavo"));
      return kExitDone;
    });
  });
}

}  // namespace

std::string describe(const CLI::ParseError& error, const CLI::App& app, const std::string& first_argument) {
  const std::vector<CLI::App*> called = app.get_subcommands();
  if (!called.empty()) {
    const CLI::App& command = app.remaining().empty() ? *called.front() : app;
    return fmt::format("{} (see octavo {} --help)", describe_in(command, error), called.front()->get_name());
  }
  const std::vector<std::string> names = command_names(app);
  return (first_argument.empty() ? fmt::format("there is no command, expected {}", fmt::join(names, ", "))
                                 : no_such("command", first_argument, names)) +
         " (see octavo --help)";
}

void describe_command_line(CLI::App& app, CommandLine& line) {
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default()->disable_flag_override();
  app.footer("octavo COMMAND --help has its options, their defaults and an example.");
  add_compute_commands(app, line);
  add_plan_command(app, line);
  add_config_command(app, line);
  add_file_commands(app, line);
  add_manual_command(app, line);
  add_help_command(app, line);
  refuse_empty_texts(app);
}

}  // namespace octavo
