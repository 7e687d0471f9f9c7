#include "data/inspect.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <limits>
#include <regex>

#include "app/commands/commands.h"
#include "app/config/stages.h"
#include "app/inputs/model_path.h"
#include "app/inputs/tokenizer_source.h"
#include "app/report/run_records.h"
#include "app/text/tokenizer.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weight_source.h"
#include "core/error.h"
#include "core/files/input_file.h"
#include "core/files/json_input.h"

namespace octavo {

namespace {

struct InspectArguments {
  std::string target;   // Token file, model (app/inputs/model_path.h), run folder, or with `samples` a config.
  std::string samples;  // Range "A:B" of global samples.
  std::vector<std::string> overrides;
  bool text = false;  // Print samples as text.
  bool json = false;  // Print JSON for a run even on a terminal.
};

// Parses the value "A:B" of --samples.
SampleRange parse_samples(const std::string& text) {
  static const std::regex pattern(R"((\d{1,18}):(\d{1,18}))");
  std::smatch ends;
  const bool is_range = std::regex_match(text, ends, pattern);
  const SampleRange range{is_range ? std::stoll(ends[1]) : 1, is_range ? std::stoll(ends[2]) : 0};
  CHECK_INPUT(range.begin <= range.end, "--samples is '{}', expected A:B with 0 <= A <= B", text);
  return range;
}

void inspect_samples(const InspectArguments& arguments) {
  const auto [begin, end] = parse_samples(arguments.samples);
  Config config = load_config(arguments.target, arguments.overrides);
  const std::optional<Checkpoint> resumed = checkpoint_to_resume(config.checkpoint);
  resolve_document_tokens(config, Purpose::kTrain, resumed);
  if (arguments.text) resolve_tokenizer(config, Purpose::kTrain, resumed);
  const std::unique_ptr<TextTokenizer> tokenizer = arguments.text ? open_tokenizer(config.data.tokenizer) : nullptr;
  const std::vector<StageConfig> stages = stage_configs(config);
  for (size_t i = 0; i < stages.size(); ++i) {
    const DataConfig& data = stages[i].data;
    const int64_t first = data.origin.sample;
    const int64_t next = i + 1 < stages.size() ? stages[i + 1].data.origin.sample : std::numeric_limits<int64_t>::max();
    if (begin != end && (begin >= next || end <= first)) continue;
    const SampleRange shown{std::clamp(begin, first, next), std::clamp(end, first, next)};
    if (!tokenizer) {
      write_samples(data, shown.begin, shown.end, std::cout);
      continue;
    }
    const auto decode = [&](const std::vector<int32_t>& ids) { return tokenizer->decode(ids); };
    write_sample_texts(data, shown.begin, shown.end, decode, std::cout);
  }
}

// Describes a checkpoint or a Hugging Face directory. Throws an InputError if a tensor of the directory's model is
// missing or has another shape.
nlohmann::ordered_json describe_model(const std::string& target) {
  const ModelPath model = resolve_model(target);
  if (model.is_checkpoint) return Checkpoint(model.path).describe();
  const HfWeights weights(model.path);
  nlohmann::json description{{"path", model.path},
                             {"format", "Hugging Face"},
                             {"model", model_config_to_json(weights.model_config())},
                             {"parameters", weights.model_config().num_parameters()},
                             {"intact", true}};
  if (!weights.notes().empty()) description["notes"] = weights.notes();
  return description;
}

int run_inspect(const InspectArguments& arguments) {
  if (!arguments.samples.empty()) {
    inspect_samples(arguments);
    return kExitDone;
  }
  const bool is_config = arguments.target.ends_with(".yaml") || arguments.target.ends_with(".yml");
  CHECK_INPUT(arguments.overrides.empty() && !is_config, "inspecting the config {} needs --samples A:B",
              arguments.target);
  if (is_directory_at(arguments.target) && path_exists(arguments.target + "/metrics.jsonl")) {
    const RunRecords run = read_run(arguments.target);
    const nlohmann::ordered_json goodput = read_goodput(arguments.target);
    const bool for_people = !arguments.json && ::isatty(STDOUT_FILENO) == 1;
    const std::string text =
        for_people ? run_table(run, goodput) : printable_json(describe_run(run, goodput), 2) + "\n";
    std::cout << text << std::flush;
    return kExitDone;
  }
  const nlohmann::ordered_json description =
      is_directory_at(arguments.target) ? describe_model(arguments.target) : inspect_token_file(arguments.target);
  std::cout << printable_json(description, 2) << std::endl;
  return description.value("intact", false) ? kExitDone : kExitBadInput;
}

}  // namespace

void add_inspect(CommandLine& line) {
  const auto [inspect, arguments] = line.add<InspectArguments>(
      "inspect", "describe a token file, a checkpoint or a run, and check whether it is intact", run_inspect,
      "octavo inspect runs/quickstart/checkpoints/step_00000900");
  inspect
      ->add_option(
          "target", arguments.target,
          "PREFIX, a checkpoint or a directory of them, the logging.dir of a run, a Hugging Face directory, or "
          "CONFIG.yaml with --samples")
      ->required();
  inspect->add_flag("--json", arguments.json,
                    "print JSON also on a terminal, where a run is otherwise shown as a table");
  CLI::Option* samples = inspect->add_option("--samples", arguments.samples,
                                             "A:B, print the global samples A to B-1 of a config as JSON lines");
  inspect->add_flag("--text", arguments.text, "print the samples as text, decoded with data.tokenizer")->needs(samples);
  add_overrides(inspect, arguments.overrides, "section.key=value, overrides the config; with --samples");
}

}  // namespace octavo
