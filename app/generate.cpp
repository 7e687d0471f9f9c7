#include <algorithm>
#include <cmath>
#include <iostream>
#include <numeric>
#include <optional>
#include <random>

#include "app/commands.h"
#include "app/memory/inference.h"
#include "app/run/same_files.h"
#include "app/run/tokenizer.h"
#include "core/error.h"
#include "core/printable.h"

namespace octavo {

namespace {

// Draws a token from softmax(logits / temperature), restricted to the top_k and top_p most likely.
int32_t sample_token(std::vector<float>& logits, const GenerateArguments& a, std::mt19937_64& random) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t x, int32_t y) {
    return logits[static_cast<size_t>(x)] > logits[static_cast<size_t>(y)];
  });
  if (a.temperature <= 0) return order[0];
  size_t kept = a.top_k > 0 ? std::min(order.size(), static_cast<size_t>(a.top_k)) : order.size();
  const double max = static_cast<double>(logits[static_cast<size_t>(order[0])]);
  std::vector<double> weights(kept);
  for (size_t i = 0; i < kept; ++i) {
    weights[i] = std::exp((static_cast<double>(logits[static_cast<size_t>(order[i])]) - max) / a.temperature);
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double mass = 0;
  for (size_t i = 0; i < kept; ++i) {
    mass += weights[i];
    if (mass >= a.top_p * total) kept = i + 1;
  }
  std::discrete_distribution<size_t> distribution(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(kept));
  return order[distribution(random)];
}

// The logits of the device as float32 on the host.
void read_logits(const Tensor& logits, std::vector<float>& host, Stream& stream) {
  host.resize(static_cast<size_t>(logits.numel()));
  if (logits.dtype() == DType::kFloat32) {
    stream.copy(host.data(), logits.raw(), logits.bytes());
    return stream.synchronize();
  }
  std::vector<BFloat16> raw(host.size());
  stream.copy(raw.data(), logits.raw(), logits.bytes());
  stream.synchronize();
  std::transform(raw.begin(), raw.end(), host.begin(), [](BFloat16 x) { return static_cast<float>(x); });
}

// The config the checkpoint was trained with, for a single sequence of `seq_len` tokens.
Config inference_config(const Checkpoint& checkpoint, const GenerateArguments& arguments, int64_t seq_len) {
  Config config;
  if (checkpoint.meta().contains("config")) {
    config = config_from_json(checkpoint.meta().at("config"), checkpoint.path().string());
  }
  config.model = checkpoint.model_config();
  config.data.seq_len = seq_len;
  config.training.micro_batch_size = 1;
  config.parallel = {};
  config.compute_given = false;
  config.device = arguments.device == "cpu"    ? DeviceChoice::kCpu
                  : arguments.device == "cuda" ? DeviceChoice::kCuda
                                               : DeviceChoice::kAuto;
  return config;
}

// The one that the checkpoint carries, or else the one that its config names.
std::string tokenizer_of(const Checkpoint& checkpoint, const Config& config) {
  for (const CarriedFileInfo& file : checkpoint.files()) {
    if (file.name != kTokenizerName) continue;
    checkpoint.read_file(file);  // compares its checksum
    return (checkpoint.path() / file.name).string();
  }
  return config.data.tokenizer;
}

// Of the buffer for the prompt and what follows: attention kernels like whole blocks. What stands behind the last token
// is irrelevant (Llama::next_token_logits).
int64_t buffer_length(size_t prompt_length, int64_t max_tokens) {
  const int64_t room = kMaxSeqLen - static_cast<int64_t>(prompt_length);
  CHECK_INPUT(max_tokens <= room, "--max-tokens is {}, expected at most {}: a sequence has {} tokens at most",
              max_tokens, room, kMaxSeqLen);
  return (kMaxSeqLen - room + max_tokens + 127) / 128 * 128;
}

std::vector<int32_t> prompt_ids(const Config& config, const std::string& prompt, TextTokenizer& tokenizer) {
  std::vector<int32_t> ids = tokenizer.encode(prompt);
  if (config.data.bos_id) ids.insert(ids.begin(), *config.data.bos_id);
  CHECK_INPUT(!ids.empty(), "--prompt is empty and the checkpoint's config has no data.bos_id to start from");
  for (const int32_t id : ids) {
    CHECK_INPUT(id >= 0 && id < config.model.vocab_size, "the prompt has token {}, but the model's vocabulary is {}",
                id, config.model.vocab_size);
  }
  return ids;
}

}  // namespace

int generate_command(const GenerateArguments& arguments, ProcessGroup& group) {
  Checkpoint checkpoint = open_same_checkpoint(arguments.checkpoint, group);
  Config config;
  std::unique_ptr<TextTokenizer> tokenizer;
  std::vector<int32_t> ids;
  group.agree([&] {
    config = inference_config(checkpoint, arguments, 1);
    tokenizer = open_tokenizer(tokenizer_of(checkpoint, config));
    ids = prompt_ids(config, arguments.prompt, *tokenizer);
    config.data.seq_len = buffer_length(ids.size(), arguments.max_tokens);
  });
  const size_t prompt_length = ids.size();

  Runtime runtime(config, group);
  InferenceModel inference(config, false, runtime);
  inference.load(config, &checkpoint);
  Stream& stream = runtime.stream();
  InferenceState& state = inference.state();
  std::mt19937_64 random(arguments.seed);
  std::vector<int32_t> padded(static_cast<size_t>(config.data.seq_len), 0);
  std::vector<float> logits;
  for (int64_t i = 0; i < arguments.max_tokens; ++i) {
    std::copy(ids.begin(), ids.end(), padded.begin());
    stream.copy(state.inputs.raw(), padded.data(), state.inputs.bytes());
    read_logits(state.model.next_token_logits(state.inputs, static_cast<int64_t>(ids.size()) - 1), logits, stream);
    const int32_t token = sample_token(logits, arguments, random);
    if (config.data.eos_id && token == *config.data.eos_id) break;
    ids.push_back(token);
  }
  const std::vector<int32_t> generated(ids.begin() + static_cast<std::ptrdiff_t>(prompt_length), ids.end());
  if (!group.is_root()) return kExitDone;
  std::cout << printable_lines(arguments.prompt + tokenizer->decode(generated)) << std::endl;
  CHECK(std::cout.good(), "standard output cannot be written");
  return kExitDone;
}

}  // namespace octavo
