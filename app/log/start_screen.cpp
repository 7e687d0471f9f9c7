#include "app/log/start_screen.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <ranges>
#include <utility>

#include "app/config/config_names.h"
#include "app/resolve/memory_choice.h"
#include "app/resolve/mesh_choice.h"
#include "build_config.h"
#include "core/commit.h"
#include "core/format.h"

namespace octavo {

namespace {

constexpr size_t kColumns = 100;
constexpr size_t kLabelColumns = 14;
constexpr size_t kMaxDatasets = 10;
constexpr size_t kLongestName = 32;

// Returns the end of a path that is longer than `most` characters, because the end distinguishes paths better than the
// beginning.
std::string shortened(const std::string& text, size_t most) {
  return text.size() <= most ? text : "..." + text.substr(text.size() - most + 3);
}

std::string model_text(const Config& config) {
  const ModelConfig& m = config.model;
  return fmt::format(
      "{}{} parameters: {} layers, hidden {}, MLP {}, {} heads of {} ({} kv), "
      "vocabulary {}{}",
      config.preset.empty() ? "" : config.preset + ", ", with_unit(m.num_parameters()), m.num_layers, m.hidden_size,
      m.intermediate_size, m.num_heads, m.head_dim, m.num_kv_heads, m.vocab_size,
      m.tie_word_embeddings ? ", tied" : "");
}

std::string weights_text(const StartFacts& facts) {
  if (!facts.resumes_from.empty()) {
    return fmt::format("of step {}, {} tokens", facts.step, with_thousands_separators(facts.tokens));
  }
  if (!facts.job.config.init_from.empty()) return "of " + facts.job.config.init_from;
  return fmt::format("random, seed {}", facts.job.config.training.seed);
}

// Returns a table of the datasets with the largest weights.
std::vector<std::string> data_texts(std::vector<DatasetUse> datasets) {
  double weights = 0;
  for (const DatasetUse& one : datasets) weights += one.weight;
  std::ranges::stable_sort(datasets, std::greater(), &DatasetUse::weight);
  const auto shown = datasets.begin() + static_cast<std::ptrdiff_t>(std::min(datasets.size(), kMaxDatasets));
  size_t name_columns = 0;
  size_t token_columns = 0;
  for (auto one = datasets.begin(); one != shown; ++one) {
    one->name = shortened(one->name, kLongestName);
    name_columns = std::max(name_columns, one->name.size());
    token_columns = std::max(token_columns, with_thousands_separators(one->tokens).size());
  }
  std::vector<std::string> texts;
  for (auto one = datasets.begin(); one != shown; ++one) {
    texts.push_back(fmt::format("{:<{}}  {:>{}} tokens  weight {:>5.1f}%  epochs {:.3f} to {:.3f}", one->name,
                                name_columns, with_thousands_separators(one->tokens), token_columns,
                                100 * one->weight / weights, one->epochs, one->epochs_at_end));
  }
  if (shown != datasets.end()) {
    const int64_t tokens = std::accumulate(shown, datasets.end(), int64_t{0},
                                           [](int64_t sum, const DatasetUse& one) { return sum + one.tokens; });
    texts.push_back(fmt::format("and {} more, {} tokens", datasets.end() - shown, with_thousands_separators(tokens)));
  }
  return texts;
}

std::string documents_text(const DataConfig& data) {
  if (!data.bos_id && !data.eos_id)
    return "documents: no separators inserted, so they run together unless they contain some";
  const auto text = [](const std::optional<int32_t>& id) { return id ? std::to_string(*id) : "none"; };
  return fmt::format("documents: bos {}, eos {}", text(data.bos_id), text(data.eos_id));
}

std::string validation_text(const StartFacts& facts) {
  const ValidationConfig& validation = facts.job.config.validation;
  if (facts.validation.empty()) return "none";
  const auto name = [](const ValidationSet::Dataset& one) { return shortened(one.name, kLongestName); };
  const std::string names = fmt::format("{}", fmt::join(facts.validation | std::views::transform(name), ", "));
  if (validation.every == 0) return names + ": never";
  return fmt::format("{}: {} batches every {} steps and at the end", names, validation.batches, validation.every);
}

std::string steps_text(const StartFacts& facts) {
  const TrainingConfig& training = facts.job.config.training;
  const int64_t seq_len = facts.job.config.data.seq_len;
  const BatchSchedule batches = training.batch_schedule();
  const int64_t batch_size = batches.batch_size(training.steps);  // Batch size of the last step.
  const int64_t more = (batches.samples(training.steps) - batches.samples(facts.step)) * seq_len;
  std::string text = fmt::format("{} to {}, {} {} x {} = {} tokens: {} tokens", facts.step + 1, training.steps,
                                 training.batch_size_warmup.empty() ? "each" : "in the end", batch_size, seq_len,
                                 with_thousands_separators(batch_size * seq_len), with_thousands_separators(more));
  if (facts.tokens > 0) text += fmt::format(" more, {} in all", with_thousands_separators(facts.tokens + more));
  return text;
}

std::string schedule_text(const StageConfig& config) {
  const OptimizerConfig& optimizer = config.optimizer;
  const int64_t steps = config.training.steps;
  return fmt::format("{}: {} steps of warm-up to {:g}, {:.3g} at step {}; weight decay {:g}, {}",
                     name_of(config_names::kSchedule, optimizer.schedule), optimizer.warmup_steps, optimizer.lr,
                     config.learning_rate(steps), steps, optimizer.weight_decay,
                     optimizer.grad_clip > 0 ? fmt::format("clip {:g}", optimizer.grad_clip) : "no clipping");
}

std::vector<std::string> mesh_texts(const StartFacts& facts) {
  const Job& job = facts.job;
  const int64_t micro_batches = job.micro_batches();
  std::vector<std::string> texts = {fmt::format("{}; {}; {} micro-batch{} of {}", facts.runs_on,
                                                describe(job.mesh.shape), micro_batches, micro_batches == 1 ? "" : "es",
                                                job.config.training.micro_batch_size)};
  if (!job.mesh.reason.empty()) texts.push_back(job.mesh.reason);
  return texts;
}

std::string recipe_text(const Job& job) {
  const PrecisionConfig& precision = job.stated.precision;
  std::string text = fmt::format("{} linears", precision_name(precision));
  if (is_fp8(precision.linear) && precision.bf16_first_layers + precision.bf16_last_layers > 0) {
    text += fmt::format(", the first {} and last {} layers in bfloat16", precision.bf16_first_layers,
                        precision.bf16_last_layers);
  }
  const LmHeadPrecision lm_head = precision.lm_head;
  if (is_fp8(lm_head)) text += fmt::format(", lm_head {}", traits(lm_head).name);
  text += fmt::format("; {} elsewhere, gradients reduced in {}", dtype_name(precision.compute),
                      dtype_name(precision.exchanged_gradients()));
  return in_fallback(job) ? text + "; now in bfloat16, because precision.guard fell back to it" : text;
}

std::string memory_text(const Job& job) {
  const MemoryBudget& budget = job.memory.budget;
  std::string text = fmt::format("{:.2f} GiB per rank planned", gib(job.memory.arena_bytes));
  if (budget.outside > 0) text += fmt::format(", {:.1f} for libraries", gib(budget.outside));
  const bool known = budget.available > 0 && budget.available < int64_t{1} << 60;
  if (known) text += fmt::format(", of {:.1f}; {:.1f} kept free", gib(budget.available), gib(budget.margin));
  return text + "; activation checkpointing: " + describe_choice(job);
}

std::string checkpoints_text(const CheckpointConfig& checkpoint) {
  std::string when;
  if (checkpoint.every > 0) when = fmt::format("every {} steps and ", checkpoint.every);
  if (checkpoint.every_minutes > 0) when += fmt::format("every {:g} minutes and ", checkpoint.every_minutes);
  const std::string kept = checkpoint.keep == 0 ? "all" : fmt::format("the last {}", checkpoint.keep);
  return fmt::format("{}: {}at the end; {} are kept", checkpoint.dir, when, kept);
}

}  // namespace

std::vector<std::string> labeled_lines(const std::string& label, const std::string& text) {
  const std::string indent(kLabelColumns, ' ');
  std::vector<std::string> lines;
  std::string line = fmt::format("{:<{}}", label.empty() ? "" : "  " + label, kLabelColumns);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    // Keeps consecutive spaces, which align the columns of a table.
    const size_t next = std::min(text.find_first_not_of(' ', end), text.size());
    const std::string word = shortened(text.substr(begin, end - begin), kColumns - kLabelColumns);
    if (line.size() > kLabelColumns && line.size() + word.size() > kColumns) {
      lines.push_back(line.substr(0, line.find_last_not_of(' ') + 1));
      line = indent;
    }
    line += word + text.substr(end, next - end);
    begin = next;
  }
  lines.push_back(line.substr(0, line.find_last_not_of(' ') + 1));
  return lines;
}

std::string start_title(const std::string& config_path) {
  const std::string command = "octavo train ";
  return command + shortened(config_path, kColumns - command.size());
}

std::vector<std::string> start_screen(const StartFacts& facts) {
  const StageConfig& config = facts.job.config;
  std::vector<std::string> data = data_texts(facts.datasets);
  data.push_back(documents_text(config.data));
  for (const std::string& note : facts.data_notes) data.push_back("documents: " + note);
  if (config.data.resume_from_sample == facts.next_sample) {
    data.push_back(fmt::format("data.resume_from_sample: the data continues at sample {}", facts.next_sample));
  }
  // Labels, and the texts that follow each label. Each text begins a new line.
  const std::vector<std::pair<const char*, std::vector<std::string>>> rows = {
      {"octavo", {fmt::format("{}, commit {}", kVersion, build_commit())}},
      {"model", {model_text(config)}},
      {"weights", {weights_text(facts)}},
      {"data", data},
      {"validation", {validation_text(facts)}},
      {"steps", {steps_text(facts)}},
      {"schedule", {schedule_text(config)}},
      {"mesh", mesh_texts(facts)},
      {"recipe", {recipe_text(facts.job)}},
      {"memory", {memory_text(facts.job)}},
      {"time", {facts.time}},
      {"checkpoints", {checkpoints_text(config.checkpoint)}},
      {"run folder", {config.logging.dir + ": log.txt, metrics.jsonl, config.yaml"}}};
  std::vector<std::string> lines;
  for (const auto& [label, texts] : rows) {
    for (const std::string& text : texts) {
      const bool first = &text == &texts.front();
      for (std::string& line : labeled_lines(first ? label : "", text)) lines.push_back(std::move(line));
    }
  }
  return lines;
}

std::vector<std::string> config_warnings(const StageConfig& config, std::span<const DatasetUse> datasets) {
  std::vector<std::string> warnings;
  const auto [begin, end] = config.schedule_steps();
  if (config.optimizer.warmup_steps > end - begin) {
    warnings.push_back(
        fmt::format("optimizer.warmup_steps is {}, but the schedule has {} steps, so the learning rate never reaches "
                    "optimizer.lr {:g}",
                    config.optimizer.warmup_steps, end - begin, config.optimizer.lr));
  }
  int64_t smaller_batches = 0;
  for (const BatchPhase& phase : config.training.batch_size_warmup) smaller_batches += phase.steps;
  if (smaller_batches > 0 && smaller_batches >= config.stage.run_steps) {
    warnings.push_back(fmt::format(
        "training.batch_size_warmup has {} steps, but the run has {} steps, so the batch size never reaches "
        "training.global_batch_size {}",
        smaller_batches, config.stage.run_steps, config.training.global_batch_size));
  }
  for (size_t i = 0; i < datasets.size(); ++i) {
    const DatasetUse& dataset = datasets[i];
    if (config.data.train[i].max_epochs > 0 || dataset.epochs_at_end <= kManyEpochs) continue;
    warnings.push_back(
        fmt::format("this run trains {:.1f} epochs over the dataset {}, and more than {:g} epochs seldom help; use "
                    "fewer training.steps or more data, or set the dataset's max_epochs if this is intended",
                    dataset.epochs_at_end, dataset.name, kManyEpochs));
  }
  if (!config.data.validation.empty() && config.validation.every == 0) {
    warnings.emplace_back(
        "data.validation names datasets, but validation.every is 0, so the run never computes a validation loss");
  }
  return warnings;
}

}  // namespace octavo
