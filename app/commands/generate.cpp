#include "app/commands/generate.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
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
#include "app/process/exit_codes.h"
#include "app/text/cached_model.h"
#include "app/text/sampling.h"
#include "app/text/text_stream.h"
#include "app/text/tokenizer.h"
#include "checkpoint/hf_format.h"
#include "core/error.h"
#include "core/log.h"
#include "core/printable.h"
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

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

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
  for (const CarriedFileInfo& file : checkpoint.files()) {
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
    group.agree_on_files("reading the tokenizer", [&] {
      if (group.is_root()) model.tokenizer = tokenizer_of(*model.checkpoint);
    });
    return model;
  }
  const std::unique_ptr<WeightSource> weights = open_same_weights(found.path, group);
  group.agree_on_files("reading the tokenizer", [&] {
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

// Converts an id or a list of ids. Any other JSON gives an empty list.
std::vector<int32_t> token_ids(const nlohmann::json& json) {
  std::vector<int32_t> ids;
  for (const nlohmann::json& id : json.is_array() ? json : nlohmann::json::array({json})) {
    if (id.is_number_integer() && id >= 0 && id <= std::numeric_limits<int32_t>::max()) ids.push_back(id);
  }
  return ids;
}

std::vector<int32_t> prompt_ids(const Config& config, const TextEnds& ends, const std::string& prompt,
                                TextTokenizer& tokenizer) {
  std::vector<int32_t> ids = tokenizer.encode(prompt);
  // The prompt may name the bos itself.
  if (ends.bos && (ids.empty() || ids.front() != *ends.bos)) ids.insert(ids.begin(), *ends.bos);
  CHECK_INPUT(!ids.empty(), "--prompt is empty and the checkpoint's config has no data.bos_id to start from");
  for (const int32_t id : ids) {
    CHECK_INPUT(id >= 0 && id < config.model.vocab_size, "the prompt has token {}, but the model's vocabulary is {}",
                id, config.model.vocab_size);
  }
  return ids;
}

void check_lengths(size_t prompt_length, int64_t max_tokens) {
  const int64_t capacity = kMaxSeqLen - static_cast<int64_t>(prompt_length);
  CHECK_INPUT(capacity > 0, "the prompt has {} tokens, expected fewer than {}", prompt_length, kMaxSeqLen);
  CHECK_INPUT(max_tokens <= capacity, "--max-tokens is {}, expected at most {}: a sequence has {} tokens at most",
              max_tokens, capacity, kMaxSeqLen);
}

// Writes samples to standard output one after the other, each after its prompt, with a line --- between them. The first
// sample that has not ended is written as it grows, and each later one when the samples before it have ended.
class SampleWriter {
 public:
  SampleWriter(std::string prompt, int64_t samples)
      : prompt_(std::move(prompt)), texts_(static_cast<size_t>(samples)), ended_(texts_.size(), false) {
    begin();
  }

  void add(size_t sample, const std::string& text) {
    if (sample == current_) return print(printable_lines(text));
    texts_[sample] += text;
  }
  void end(size_t sample) {
    ended_[sample] = true;
    while (current_ < ended_.size() && ended_[current_]) {
      print("\n");
      ++current_;
      if (current_ == ended_.size()) return;
      print("---\n");
      begin();
    }
  }

 private:
  void begin() { print(printable_lines(prompt_ + texts_[current_])); }
  static void print(const std::string& text) {
    std::cout << text << std::flush;
    CHECK(std::cout.good(), "standard output cannot be written");
  }

  std::string prompt_;
  std::vector<std::string> texts_;  // Texts of the samples that cannot be written yet.
  std::vector<bool> ended_;
  size_t current_ = 0;
};

// The samples, which rank 0 draws and writes.
class Samples {
 public:
  Samples(const GenerateArguments& a, const std::vector<int32_t>& prompt, std::vector<int32_t> eos,
          TextTokenizer& tokenizer)
      : eos_(std::move(eos)), writer_(a.prompt, a.samples), tokens_(static_cast<size_t>(a.samples), 0) {
    samples_.reserve(tokens_.size());
    for (int64_t i = 0; i < a.samples; ++i) {
      samples_.push_back(
          {Sampler(a.sampling, a.seed + static_cast<uint64_t>(i)), TextStream(tokenizer, prompt, a.stop)});
    }
  }

  // Draws the next token of each sample that has not ended, from its row of `logits`, or from the only row.
  void draw(std::span<const float> logits, size_t vocab_size) {
    for (size_t i = 0; i < samples_.size(); ++i) {
      Sample& sample = samples_[i];
      if (sample.ended) continue;
      const size_t row = logits.size() == vocab_size ? 0 : i;
      tokens_[i] = sample.sampler.draw(logits.subspan(row * vocab_size, vocab_size));
      ++drawn_;
      const bool ends = std::find(eos_.begin(), eos_.end(), tokens_[i]) != eos_.end();
      if (!ends) writer_.add(i, sample.text.push(tokens_[i]));
      if (ends || sample.text.stopped()) end(i);
    }
  }
  // Ends all samples, because they have reached the maximum length.
  void end_all() {
    for (size_t i = 0; i < samples_.size(); ++i) {
      if (!samples_[i].ended) end(i);
    }
  }

  bool ended() const {
    return std::all_of(samples_.begin(), samples_.end(), [](const Sample& sample) { return sample.ended; });
  }
  int64_t drawn() const { return drawn_; }
  // Returns the last token of each sample. Samples that have ended stay in the batch.
  const std::vector<int32_t>& tokens() const { return tokens_; }

 private:
  struct Sample {
    Sampler sampler;
    TextStream text;
    bool ended = false;
  };

  void end(size_t i) {
    if (!samples_[i].text.stopped()) writer_.add(i, samples_[i].text.finish());
    samples_[i].ended = true;
    writer_.end(i);
  }

  std::vector<int32_t> eos_;
  SampleWriter writer_;
  std::vector<Sample> samples_;
  std::vector<int32_t> tokens_;
  int64_t drawn_ = 0;
};

// Returns rank 0's list on every rank.
std::vector<int32_t> broadcast(const std::vector<int32_t>& list, ProcessGroup& group) {
  const std::string bytes(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(int32_t));
  const std::string received = group.broadcast(bytes);
  std::vector<int32_t> result(received.size() / sizeof(int32_t));
  std::copy_n(received.data(), received.size(), reinterpret_cast<char*>(result.data()));
  return result;
}

std::string rate(int64_t tokens, double seconds) {
  return fmt::format("{} tokens in {:.3f} s ({:.1f} tokens/s)", tokens, seconds,
                     seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0);
}

// Processes the prompt, and then one token of each sample at a time. All ranks compute; only rank 0 has samples and
// decides the next tokens.
void generate(CachedModel& model, std::span<const int32_t> prompt, int64_t max_tokens, Samples* samples,
              ProcessGroup& group) {
  const auto start = Clock::now();
  std::span<const float> logits = model.read_prompt(prompt);
  const double prefill_seconds = seconds_since(start);
  const size_t vocab_size = logits.size();
  for (int64_t i = 1;; ++i) {
    if (samples != nullptr) samples->draw(logits, vocab_size);
    const bool goes_on = samples != nullptr && i < max_tokens && !samples->ended();
    const std::vector<int32_t> tokens = broadcast(goes_on ? samples->tokens() : std::vector<int32_t>{}, group);
    if (tokens.empty()) break;
    logits = model.step(tokens);
  }
  if (samples == nullptr) return;
  samples->end_all();
  const double decode_seconds = seconds_since(start) - prefill_seconds;
  std::fputs(fmt::format("prompt {}, generated {}\n", rate(static_cast<int64_t>(prompt.size()), prefill_seconds),
                         rate(samples->drawn(), decode_seconds))
                 .c_str(),
             stderr);
}

// Prints to standard error, because standard output contains only the generated text.
void print_weights(const GivenModel& model) {
  const std::string step = model.checkpoint ? fmt::format(", step {}", model.checkpoint->step()) : "";
  std::fputs(fmt::format("weights of {}{}\n", printable(model.path), step).c_str(), stderr);
}

int run_generate(const GenerateArguments& arguments, ProcessGroup& group) {
  GivenModel given = open_given_model(arguments.model, group);
  Config config;
  TextEnds ends;
  std::unique_ptr<TextTokenizer> tokenizer;
  std::vector<int32_t> prompt;
  const SavedWeights which = arguments.ema ? SavedWeights::kEma : SavedWeights::kMaster;
  group.agree([&] {
    CHECK_INPUT(given.checkpoint || !arguments.ema, "--ema needs a checkpoint, but {} is a Hugging Face directory",
                given.path);
    // Throws if the checkpoint lacks these weights, before the model is built.
    if (given.checkpoint) (void)given.checkpoint->prefix(which);
    config = inference_config(given, arguments);
    if (!group.is_root()) return;
    tokenizer = open_tokenizer(given.tokenizer);
    ends = text_ends(given.meta, config.data, *tokenizer);
    prompt = prompt_ids(config, ends, arguments.prompt, *tokenizer);
    check_lengths(prompt.size(), arguments.max_tokens);
  });
  prompt = broadcast(prompt, group);
  const auto prompt_length = static_cast<int64_t>(prompt.size());

  Runtime runtime(config, group);
  CachedModel model(config,
                    {.sequences = arguments.samples,
                     .prompt_length = prompt_length,
                     .capacity = prompt_length + arguments.max_tokens},
                    runtime);
  model.load(config, given.checkpoint ? &*given.checkpoint : nullptr, which);
  if (group.is_root()) print_weights(given);
  std::optional<Samples> samples;
  if (group.is_root()) samples.emplace(arguments, prompt, ends.eos, *tokenizer);
  generate(model, prompt, arguments.max_tokens, samples ? &*samples : nullptr, group);
  return kExitDone;
}

}  // namespace

TextEnds text_ends(const nlohmann::json& meta, const DataConfig& data, const TextTokenizer& tokenizer) {
  TextEnds ends = tokenizer.ends();
  const auto add = [&](const std::vector<int32_t>& ids) { ends.eos.insert(ends.eos.end(), ids.begin(), ids.end()); };
  const nlohmann::json::json_pointer bos_id("/config/data/bos_id");
  const bool is_trained = meta.contains(bos_id) && meta.at(bos_id) != "auto";
  if (is_trained) ends.bos = data.bos_id;
  if (data.eos_id) add({*data.eos_id});
  if (meta.contains(kHfMetaKey)) {
    const HfMetadata metadata = parse_hf_metadata(meta.at(kHfMetaKey));
    add(token_ids(metadata.eos_token_id));
    const std::vector<int32_t> bos = token_ids(metadata.bos_token_id);
    // The byte tokenizer has no files that say what transformers does. Octavo trains its models with bos.
    if (!is_trained && tokenizer.is_byte() && !bos.empty()) ends.bos = bos.front();
  }
  return ends;
}

void add_generate(CommandLine& line) {
  auto& arguments = line.arguments<GenerateArguments>();
  CLI::App* generate = line.add(
      "generate", "generate text with a model", [&](ProcessGroup& group) { return run_generate(arguments, group); },
      "octavo generate runs/quickstart --prompt 'static int ' --temperature 0.5");
  generate->add_option("model", arguments.model, kModelHelp)->required();
  generate->add_option("--prompt", arguments.prompt, "text to continue")->required();
  generate->add_option("--max-tokens", arguments.max_tokens, "maximum number of tokens to generate per sample")
      ->check(integer(int64_t{1}, kMaxTokens));
  generate
      ->add_option("--samples", arguments.samples,
                   "number of samples, computed together and printed with a line --- between them")
      ->check(integer(int64_t{1}, kMaxSamples));
  SamplingOptions& sampling = arguments.sampling;
  generate
      ->add_option("--temperature", sampling.temperature,
                   "temperature of the distribution; 0 always takes the most likely token")
      ->check(number(0, 1e6));
  generate->add_option("--top-k", sampling.top_k, "draw only from the k most likely tokens; 0 means all")
      ->check(integer(int64_t{0}, kMaxTokens));
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
      ->check(integer(uint64_t{0}, std::numeric_limits<uint64_t>::max()));
  generate->add_option("--device", arguments.device, "device: auto, cpu or cuda")
      ->check(one_of({"auto", "cpu", "cuda"}));
  generate->add_flag("--ema", arguments.ema, kEmaHelp);
}

}  // namespace octavo
