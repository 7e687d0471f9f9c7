#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "app/commands/commands.h"
#include "app/commands/import_export.h"
#include "app/inputs/same_files.h"
#include "app/inputs/tokenizer_source.h"
#include "app/resolve/inference.h"
#include "app/text/sampling.h"
#include "app/text/text_stream.h"
#include "app/text/tokenizer.h"
#include "core/error.h"
#include "core/log.h"
#include "core/printable.h"
#include "core/profiler.h"
#include "data/tokenizer_identity.h"

namespace octavo {

namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 31;

struct GenerateArguments {
  std::string model;  // Path of the model (app/inputs/model_path.h).
  std::string prompt;
  int64_t max_tokens = 256;
  int64_t samples = 1;
  SamplingOptions sampling;
  std::vector<std::string> stop;  // Texts that end a sample and are not part of it.
  uint64_t seed = 0;              // Seed of the first sample. The other samples use the following numbers.
  std::string device = "auto";
  bool ema = false;  // Use the moving average of the weights.
};

// The model that generates: a checkpoint, or a Hugging Face directory with the metadata that an import would record.
struct GivenModel {
  std::string path;
  std::optional<Checkpoint> checkpoint;
  ModelConfig shape;
  nlohmann::json meta;
  std::string tokenizer;  // "byte", or the path of a tokenizer.json. Only set on rank 0.
};

// Returns the tokenizer of a checkpoint: the one that it contains, or else the one that its run was trained with.
std::string tokenizer_of(Checkpoint& checkpoint) {
  for (const ListedFile& file : checkpoint.files()) {
    if (file.name != kTokenizerName) continue;
    checkpoint.read_file(file);  // Verifies the checksum.
    return (checkpoint.path() / file.name).string();
  }
  const std::string name = tokenizer_of_checkpoint(checkpoint).name;
  CHECK_INPUT(name != kUnknownTokenizer,
              "{}: has no tokenizer, which octavo generate needs; import a Hugging Face directory that has a {}, or "
              "train with data.tokenizer",
              checkpoint.path().string(), kTokenizerName);
  return name;
}

GivenModel open_given_model(const std::string& path, ProcessGroup& group) {
  const ModelPath found = resolve_same_model(path, group);
  GivenModel model{.path = found.path, .checkpoint = {}, .shape = {}, .meta = {}, .tokenizer = {}};
  if (found.is_checkpoint) {
    model.checkpoint.emplace(open_same_checkpoint(found.path, group));
    model.shape = model.checkpoint->model_config();
    model.meta = model.checkpoint->meta();
    group.throw_file_errors_on_all_ranks("reading the tokenizer", [&] {
      if (group.is_root()) model.tokenizer = tokenizer_of(*model.checkpoint);
    });
    return model;
  }
  const std::unique_ptr<WeightSource> weights = open_same_weights(found.path, group);
  group.throw_file_errors_on_all_ranks("reading the tokenizer", [&] {
    model.shape = weights->model_config();
    if (group.is_root()) model.tokenizer = tokenizer_of_directory(found.path).name;
    model.meta = import_meta(found.path, weights->hugging_face(), {});
    for (const std::string& note : weights->notes()) {
      if (group.is_root()) log_line(LogLevel::kWarning, note);
    }
  });
  return model;
}

// Returns the config that the checkpoint was trained with, with all matmuls in the compute dtype. In FP8, the scale of
// a token would depend on the other tokens that are computed together with it.
Config inference_config(const GivenModel& model, const GenerateArguments& arguments) {
  Config config;
  if (model.meta.contains("config")) config = config_from_json(model.meta.at("config"), model.path);
  config.model = model.shape;
  config.init_from = model.checkpoint ? "" : model.path;
  config.parallel = {};
  config.precision = without_fp8(config.precision);
  config.compute_given = false;
  config.device = arguments.device == "cpu"    ? DeviceChoice::kCpu
                  : arguments.device == "cuda" ? DeviceChoice::kCuda
                                               : DeviceChoice::kAuto;
  return config;
}

// Returns the tokens of the prompt. Throws an InputError if the model cannot continue them by --max-tokens tokens.
std::vector<int32_t> prompt_ids(const Config& config, const TextEnds& ends, const GenerateArguments& arguments,
                                TextTokenizer& tokenizer) {
  std::vector<int32_t> ids = tokenizer.encode(arguments.prompt);
  // The prompt may name the bos itself.
  if (ends.bos && (ids.empty() || ids.front() != *ends.bos)) ids.insert(ids.begin(), *ends.bos);
  CHECK_INPUT(!ids.empty(), "--prompt is empty and the checkpoint's config has no data.bos_id to start from");
  for (const int32_t id : ids) {
    CHECK_INPUT(id >= 0 && id < config.model.vocab_size, "the prompt has token {}, but the model's vocabulary is {}",
                id, config.model.vocab_size);
  }
  const int64_t capacity = kMaxSeqLen - std::ssize(ids);
  CHECK_INPUT(capacity > 0, "the prompt has {} tokens, expected fewer than {}", ids.size(), kMaxSeqLen);
  CHECK_INPUT(arguments.max_tokens <= capacity,
              "--max-tokens is {}, expected at most {}: a sequence has {} tokens at most", arguments.max_tokens,
              capacity, kMaxSeqLen);
  return ids;
}

// A generated text, which rank 0 draws and writes to standard output after its prompt.
class GeneratedText {
 public:
  GeneratedText(const GenerateArguments& a, int64_t number, const std::vector<int32_t>& prompt,
                std::vector<int32_t> eos, TextTokenizer& tokenizer)
      : eos_(std::move(eos)),
        sampler_(a.sampling, a.seed + static_cast<uint64_t>(number)),
        text_(tokenizer, prompt, a.stop),
        left_(a.max_tokens) {
    print((number > 0 ? "---\n" : "") + printable_lines(a.prompt));
  }

  // Draws the next token. Returns an empty list if the sample has ended with it.
  std::vector<int32_t> draw(std::span<const float> logits) {
    const int32_t token = sampler_.draw(logits);
    const bool is_eos = std::ranges::find(eos_, token) != eos_.end();
    if (!is_eos) print(printable_lines(text_.push(token)));
    --left_;
    if (!is_eos && !text_.stopped() && left_ > 0) return {token};
    print((text_.stopped() ? "" : printable_lines(text_.finish())) + "\n");
    return {};
  }

 private:
  static void print(const std::string& text) {
    std::cout << text << std::flush;
    CHECK(std::cout.good(), "standard output cannot be written");
  }

  std::vector<int32_t> eos_;
  Sampler sampler_;
  TextStream text_;
  int64_t left_;  // Maximum number of tokens that may still be drawn.
};

// Returns rank 0's list on every rank.
std::vector<int32_t> broadcast(const std::vector<int32_t>& list, ProcessGroup& group) {
  return nlohmann::json::parse(group.broadcast(nlohmann::json(list).dump()));
}

std::string rate(int64_t tokens, double seconds) {
  return fmt::format("{} tokens in {:.3f} s ({:.1f} tokens/s)", tokens, seconds,
                     seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0);
}

// Generates the samples one after the other, and computes the logits of the whole sequence for each new token. All
// ranks compute. Only rank 0 has a tokenizer, and it decides the next tokens.
void generate(InferenceModel& model, const std::vector<int32_t>& prompt, const GenerateArguments& arguments,
              const std::vector<int32_t>& eos, TextTokenizer* tokenizer, ProcessGroup& group) {
  const double start_ms = host_clock_ms();
  double prompt_ms = 0;
  int64_t drawn = 0;
  for (int64_t number = 0; number < arguments.samples; ++number) {
    std::optional<GeneratedText> sample;
    if (tokenizer != nullptr) sample.emplace(arguments, number, prompt, eos, *tokenizer);
    std::vector<int32_t> tokens = prompt;
    for (std::vector<int32_t> next = prompt; !next.empty(); ++drawn) {
      const std::span<const float> logits = model.logits_after(tokens);
      if (drawn == 0) prompt_ms = host_clock_ms() - start_ms;
      next = broadcast(sample ? sample->draw(logits) : std::vector<int32_t>(), group);
      tokens.insert(tokens.end(), next.begin(), next.end());
    }
  }
  if (tokenizer == nullptr) return;
  log_info("prompt {}, generated {}", rate(static_cast<int64_t>(prompt.size()), prompt_ms / 1e3),
           rate(drawn, (host_clock_ms() - start_ms - prompt_ms) / 1e3));
}

int run_generate(const GenerateArguments& arguments, ProcessGroup& group) {
  GivenModel given = open_given_model(arguments.model, group);
  Config config;
  TextEnds ends;
  std::unique_ptr<TextTokenizer> tokenizer;
  std::vector<int32_t> prompt;
  const SavedWeights which = arguments.ema ? SavedWeights::kEma : SavedWeights::kMaster;
  group.throw_on_all_ranks([&] {
    CHECK_INPUT(given.checkpoint || !arguments.ema, "--ema needs a checkpoint, but {} is a Hugging Face directory",
                given.path);
    // Throws if the checkpoint lacks these weights, before the model is built.
    if (given.checkpoint) (void)given.checkpoint->prefix(which);
    config = inference_config(given, arguments);
    if (!group.is_root()) return;
    tokenizer = open_tokenizer(given.tokenizer);
    ends = text_ends(given.meta, config.data, *tokenizer);
    prompt = prompt_ids(config, ends, arguments, *tokenizer);
  });
  prompt = broadcast(prompt, group);
  const auto prompt_length = static_cast<int64_t>(prompt.size());

  const Setting setting = observe_setting(std::move(config), group);
  Runtime runtime(setting, group);
  InferenceModel model(setting.run, prompt_length + arguments.max_tokens, runtime);
  model.load(setting.run, given.checkpoint ? &*given.checkpoint : nullptr, which);
  const std::string step = given.checkpoint ? fmt::format(", step {}", given.checkpoint->step()) : "";
  if (group.is_root()) log_info("weights of {}{}", given.path, step);
  generate(model, prompt, arguments, ends.eos, tokenizer.get(), group);
  return kExitDone;
}

}  // namespace

void add_generate(CommandLine& line) {
  const auto run = [&line](const GenerateArguments& given, ProcessGroup& group) {
    line.console().write_to(STDERR_FILENO);  // Standard output contains only the generated text.
    return run_generate(given, group);
  };
  const auto [generate, arguments] =
      line.add<GenerateArguments>("generate", "generate text with a model", run,
                                  "octavo generate runs/quickstart --prompt 'static int ' --temperature 0.5");
  generate->add_option("model", arguments.model, kModelHelp)->required();
  generate->add_option("--prompt", arguments.prompt, "text to continue")->required();
  generate->add_option("--max-tokens", arguments.max_tokens, "maximum number of tokens to generate per sample")
      ->check(integer(1, kMaxTokens));
  generate->add_option("--samples", arguments.samples, "number of samples, printed with a line --- between them")
      ->check(integer(1, kMaxSamples));
  SamplingOptions& sampling = arguments.sampling;
  generate
      ->add_option("--temperature", sampling.temperature,
                   "temperature of the distribution; 0 always takes the most likely token")
      ->check(number(0, 1e6));
  generate->add_option("--top-k", sampling.top_k, "draw only from the k most likely tokens; 0 means all")
      ->check(integer(0, kMaxTokens));
  generate
      ->add_option("--top-p", sampling.top_p,
                   "draw only from the most likely tokens that together have this probability; 1 means all")
      ->check(number(0, 1));
  generate
      ->add_option("--min-p", sampling.min_p,
                   "draw only from tokens at least this many times as likely as the most likely one; 0 means all")
      ->check(number(0, 1));
  generate
      ->add_option("--stop", arguments.stop, "TEXT that ends a sample and is not printed; may be given several times")
      ->expected(1)
      ->take_all()
      ->default_str("");
  generate->add_option("--seed", arguments.seed, "seed of the first sample; each further sample uses the next number")
      ->check(integer(0, std::numeric_limits<uint64_t>::max()));
  generate->add_option("--device", arguments.device, "device: auto, cpu or cuda")
      ->check(one_of({"auto", "cpu", "cuda"}));
  generate->add_flag("--ema", arguments.ema, kEmaHelp);
}

}  // namespace octavo
