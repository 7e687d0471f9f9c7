#include "app/config/unknown_keys.h"

#include <algorithm>
#include <sstream>

#include "core/error.h"
#include "core/suggestions.h"

namespace octavo {

namespace {

constexpr const char* kNoDropout = "Octavo trains without dropout";
constexpr const char* kNoExperts = "Octavo has no mixture of experts";
constexpr const char* kRatio = "which is relative to optimizer.lr";

// A row of the table: names in other programs, separated by spaces, that mean the same key with the same note.
struct OtherNames {
  const char* key;
  const char* names;
  const char* note;
};

constexpr OtherNames kOtherNames[] = {
    {"model.num_layers", "num_hidden_layers n_layers n_layer", ""},
    {"model.hidden_size", "n_embd dim d_model", ""},
    {"model.num_heads", "num_attention_heads n_heads", ""},
    {"model.num_kv_heads", "num_key_value_heads num_query_groups n_kv_heads", ""},
    {"model.intermediate_size", "ffn_hidden_size", ""},
    {"model.head_dim", "kv_channels", ""},
    {"model.rope_theta", "rotary_base", ""},
    {"model.rms_norm_eps", "norm_epsilon layernorm_epsilon norm_eps", ""},
    {"model.tie_word_embeddings", "untie_embeddings_and_output_weights", "which means the opposite"},
    {"model.preset", "model.name model.flavor", ""},
    {"model.init_from", "model_name_or_path pretrained_checkpoint initial_load_path", ""},
    {"data.seq_len",
     "seq_length sequence_length max_seq_length max_seq_len max_length block_size max_position_embeddings "
     "training.seq_len",
     ""},
    {"data.train", "data_path train_data_path dataset dataset_path", ""},
    {"data.validation", "valid_data_path", ""},
    {"data.tokenizer", "tokenizer_model tokenizer_path", ""},
    {"data.document_mask", "reset_attention_mask", ""},
    {"data.seed", "data_seed shuffle_seed", ""},
    {"data.reader_threads", "dataloader_num_workers num_workers", ""},
    {"training.steps", "train_iters max_steps max_iters num_steps", ""},
    {"training.steps", "train_samples", "which counts steps of training.global_batch_size sequences each"},
    {"training.steps", "num_train_epochs epochs", "which counts steps; the start screen prints the number of epochs"},
    {"training.global_batch_size", "train_batch_size", ""},
    {"training.micro_batch_size", "local_batch_size train_micro_batch_size_per_gpu per_device_train_batch_size", ""},
    {"training.batch_size_warmup", "rampup_batch_size", ""},
    {"optimizer.lr", "optimizer.learning_rate learning_rate lr max_lr", ""},
    {"optimizer.min_lr_ratio", "min_lr", kRatio},
    {"optimizer.min_lr_ratio", "min_lr_factor", ""},
    {"optimizer.warmup_steps", "lr_warmup_iters lr_scheduler.warmup_steps warmup_iters warmup", ""},
    {"optimizer.warmup_steps", "warmup_ratio", "which counts steps"},
    {"optimizer.schedule", "lr_decay_style lr_scheduler_type", ""},
    {"optimizer.decay_type", "decay_type", ""},
    {"optimizer.decay_steps", "lr_wsd_decay_iters", ""},
    {"optimizer.decay_steps", "decay_ratio", "which counts steps"},
    {"optimizer.decay_type", "lr_wsd_decay_style", ""},
    {"optimizer.type", "optimizer.name optim", ""},
    {"optimizer.betas", "adam_beta1 adam_beta2 beta1 beta2", "which is a pair, [0.9, 0.95]"},
    {"optimizer.eps", "adam_eps adam_epsilon", ""},
    {"optimizer.grad_clip", "clip_grad max_norm max_grad_norm gradient_clipping gradient_clip_val", ""},
    {"precision.linear", "fp8 fp8_format fp8_recipe recipe_name", ""},
    {"precision.compute", "bf16 mixed_precision dtype torch_dtype mixed_precision_param", ""},
    {"precision.reduce", "mixed_precision_reduce", ""},
    {"precision.amax_history", "fp8_amax_history_len", ""},
    {"precision.amax_margin", "fp8_margin", ""},
    {"precision.fp8_all_gather", "enable_fsdp_float8_all_gather", ""},
    {"parallel.data_parallel_shard", "data_parallel_shard_degree", ""},
    {"parallel.data_parallel_replicate", "data_parallel_replicate_degree", ""},
    {"parallel.tensor_parallel", "tensor_parallel_degree tensor_model_parallel_size", ""},
    {"parallel.tensor_parallel", "sequence_parallel", "which includes sequence parallelism"},
    {"parallel.context_parallel", "context_parallel_degree context_parallel_size", ""},
    {"parallel.reshard_after_forward", "fsdp_reshard_after_forward", ""},
    {"parallel.timeout_s", "init_timeout_seconds train_timeout_seconds", ""},
    {"parallel.timeout_s", "distributed_timeout_minutes", "which counts seconds"},
    {"activation_checkpointing.mode",
     "recompute_granularity gradient_checkpointing activation_checkpoint selective_ac_option", ""},
    {"activation_checkpointing.ratio", "recompute_num_layers", "which is the share of recomputed blocks in mode block"},
    {"checkpoint.dir", "save checkpoint.folder", ""},
    {"checkpoint.every", "checkpoint.interval save_interval save_steps", ""},
    {"checkpoint.keep", "keep_latest_k save_total_limit", ""},
    {"checkpoint.async", "async_mode async_save", ""},
    {"checkpoint.resume", "load resume_from_checkpoint", ""},
    {"logging.every", "log_interval log_freq logging.interval logging_steps", ""},
    {"logging.dir", "output_dir dump_folder tensorboard_dir", ""},
    {"logging.tensorboard", "enable_tensorboard", ""},
    {"validation.every", "eval_interval eval_steps validation.interval validation.freq", ""},
    {"validation.batches", "eval_iters validation.steps", ""},
    {"", "gradient_accumulation_steps",
     "the number of accumulation steps follows from training.global_batch_size, training.micro_batch_size and the "
     "number of ranks"},
    {"", "attention_dropout hidden_dropout dropout", kNoDropout},
    {"", "expert_model_parallel_size expert_parallel_degree expert_parallel num_experts", kNoExperts},
    {"parallel.pipeline_parallel", "pipeline_parallel_degree pipeline_model_parallel_size", ""},
    {"parallel.pipeline_chunks", "virtual_pipeline_model_parallel_size", ""},
    {"", "enable_wandb", "scripts/wandb_sync.py sends the metrics of a run to Weights & Biases"},
    {"", "compile", "Octavo's kernels are compiled when it is built"},
};

// Returns whether `written` equals `name` or ends with "." and `name`.
bool names(std::string_view written, std::string_view name) {
  if (!written.ends_with(name)) return false;
  return written.size() == name.size() || written[written.size() - name.size() - 1] == '.';
}

using Kind = ConfigNode::Kind;

std::string_view section_of(std::string_view key) {
  const size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : key.substr(0, dot);
}

std::string_view last_part(std::string_view key) { return key.substr(key.rfind('.') + 1); }

std::string join(std::string_view section, std::string_view key) {
  return section.empty() ? std::string(key) : fmt::format("{}.{}", section, key);
}

// Returns the edit distance between the last parts of two full names, plus 2 if the sections differ.
size_t key_distance(std::string_view written, std::string_view known) {
  const size_t moved = section_of(written) == section_of(known) ? 0 : 2;
  return moved + name_distance(last_part(written), last_part(known));
}

bool is_section(const std::string& key, const std::vector<std::string>& known_keys) {
  return std::ranges::any_of(known_keys, [&](const std::string& known) { return known.starts_with(key + "."); });
}

// Returns the known key that is similar enough to be the one that was meant, or null.
const std::string* near_key(const std::string& key, const std::vector<std::string>& known_keys) {
  const auto nearest =
      std::ranges::min_element(known_keys, {}, [&](const std::string& known) { return key_distance(key, known); });
  return key_distance(key, *nearest) <= largest_slip(last_part(key)) ? &*nearest : nullptr;
}

// Returns a suggestion for an unknown key.
std::string hint(const std::string& key, const std::vector<std::string>& known_keys) {
  if (const OtherName* other = find_other_name(key)) {
    return with_note(*other, fmt::format("Octavo's name for it is {}", other->key));
  }
  if (const std::string* near = near_key(key, known_keys)) return fmt::format("did you mean {}?", *near);
  const std::string section(section_of(key));
  std::string siblings;
  for (const std::string& known : known_keys) {
    if (section_of(known) == section) siblings += (siblings.empty() ? "" : ", ") + std::string(last_part(known));
  }
  if (siblings.empty()) return hint(section, known_keys);  // There is no such section.
  return fmt::format("{} has the keys {}", section.empty() ? "a config" : section, siblings);
}

// Returns whether a section that Octavo does not have contains keys for which a suggestion exists.
bool is_foreign_section(const ConfigNode& node, const std::string& name, const std::vector<std::string>& known_keys) {
  if (node.kind != Kind::kMap || find_other_name(name) != nullptr) return false;
  const std::string* near = near_key(name, known_keys);
  if (near != nullptr && section_of(*near) == section_of(name)) return false;
  return std::ranges::any_of(node.keys, [&](const std::string& key) {
    const auto is_same_last_part = [&](const std::string& known) { return last_part(known) == key; };
    return find_other_name(join(name, key)) != nullptr || std::ranges::any_of(known_keys, is_same_last_part);
  });
}

// Returns whether merge keys (<<) merge `node`, or all its children, into other maps. Those maps then have its keys, so
// unknown keys are reported there.
bool is_merged(const ConfigNode& node) {
  const auto is_source = [](const ConfigNode& one) { return one.is_merged; };
  return node.is_merged || (!node.children.empty() && std::ranges::all_of(node.children, is_source));
}

void find_below(const ConfigNode& node, const std::string& name, const std::vector<std::string>& known_keys,
                ErrorList& errors) {
  for (size_t i = 0; i < node.children.size(); ++i) {
    const ConfigNode& child = node.children[i];
    // All items of a list have the same keys, so one known key covers all of them.
    const std::string key = node.kind == Kind::kList ? name : join(name, node.keys[i]);
    const bool has_keys = is_section(key, known_keys);
    const bool is_known = std::ranges::find(known_keys, key) != known_keys.end();
    // The key's own rule checks the value.
    if (node.kind == Kind::kMap && !has_keys && is_known) continue;
    if (node.kind == Kind::kMap && !has_keys && is_merged(child)) continue;
    if (node.kind == Kind::kMap && !has_keys && !is_foreign_section(child, key, known_keys)) {
      errors.add(fmt::format("{}: unknown key {}; {}", child.where, key, hint(key, known_keys)));
    } else {
      find_below(child, key, known_keys, errors);
    }
  }
}

}  // namespace

std::span<const OtherName> other_names() {
  static const std::vector<OtherName> all = [] {
    std::vector<OtherName> each;
    for (const OtherNames& row : kOtherNames) {
      std::istringstream words(row.names);
      for (std::string name; words >> name;) each.push_back({name, row.key, row.note});
    }
    return each;
  }();
  return all;
}

const OtherName* find_other_name(std::string_view written) {
  std::string key(written);
  std::ranges::replace(key, '-', '_');
  const OtherName* found = nullptr;
  for (const OtherName& row : other_names()) {
    const bool is_better = found == nullptr || row.name.size() > found->name.size();
    if (names(key, row.name) && is_better) found = &row;
  }
  return found;
}

std::string with_note(const OtherName& row, const std::string& text) {
  const std::string note = row.note;
  if (std::string_view(row.key).empty()) return note;
  return note.empty() ? text : text + ", " + note;
}

void find_unknown_keys(const ConfigNode& root, const std::vector<std::string>& known_keys, ErrorList& errors) {
  find_below(root, "", known_keys, errors);
}

}  // namespace octavo
