#include "app/config/other_names.h"

#include <algorithm>
#include <string>

namespace octavo {

namespace {

constexpr const char* kNoDropout = "Octavo trains without dropout";
constexpr const char* kNoExperts = "Octavo has no mixture of experts";
constexpr const char* kRatio = "which is relative to optimizer.lr";

constexpr OtherName kOtherNames[] = {
    {"num_hidden_layers", "model.num_layers", ""},
    {"n_layers", "model.num_layers", ""},
    {"n_layer", "model.num_layers", ""},
    {"n_embd", "model.hidden_size", ""},
    {"dim", "model.hidden_size", ""},
    {"d_model", "model.hidden_size", ""},
    {"num_attention_heads", "model.num_heads", ""},
    {"n_heads", "model.num_heads", ""},
    {"num_key_value_heads", "model.num_kv_heads", ""},
    {"num_query_groups", "model.num_kv_heads", ""},
    {"n_kv_heads", "model.num_kv_heads", ""},
    {"ffn_hidden_size", "model.intermediate_size", ""},
    {"kv_channels", "model.head_dim", ""},
    {"rotary_base", "model.rope_theta", ""},
    {"norm_epsilon", "model.rms_norm_eps", ""},
    {"layernorm_epsilon", "model.rms_norm_eps", ""},
    {"norm_eps", "model.rms_norm_eps", ""},
    {"untie_embeddings_and_output_weights", "model.tie_word_embeddings", "which means the opposite"},
    {"model.name", "model.preset", ""},
    {"model.flavor", "model.preset", ""},
    {"model_name_or_path", "model.init_from", ""},
    {"pretrained_checkpoint", "model.init_from", ""},
    {"initial_load_path", "model.init_from", ""},
    {"seq_length", "data.seq_len", ""},
    {"sequence_length", "data.seq_len", ""},
    {"max_seq_length", "data.seq_len", ""},
    {"max_seq_len", "data.seq_len", ""},
    {"max_length", "data.seq_len", ""},
    {"block_size", "data.seq_len", ""},
    {"max_position_embeddings", "data.seq_len", ""},
    {"training.seq_len", "data.seq_len", ""},
    {"data_path", "data.train", ""},
    {"train_data_path", "data.train", ""},
    {"dataset", "data.train", ""},
    {"dataset_path", "data.train", ""},
    {"valid_data_path", "data.validation", ""},
    {"tokenizer_model", "data.tokenizer", ""},
    {"tokenizer_path", "data.tokenizer", ""},
    {"reset_attention_mask", "data.document_mask", ""},
    {"data_seed", "data.seed", ""},
    {"shuffle_seed", "data.seed", ""},
    {"dataloader_num_workers", "data.reader_threads", ""},
    {"num_workers", "data.reader_threads", ""},
    {"train_iters", "training.steps", ""},
    {"max_steps", "training.steps", ""},
    {"max_iters", "training.steps", ""},
    {"num_steps", "training.steps", ""},
    {"train_samples", "training.steps", "which counts steps of training.global_batch_size sequences each"},
    {"num_train_epochs", "training.steps", "which counts steps; the start screen prints the number of epochs"},
    {"epochs", "training.steps", "which counts steps; the start screen prints the number of epochs"},
    {"train_batch_size", "training.global_batch_size", ""},
    {"local_batch_size", "training.micro_batch_size", ""},
    {"train_micro_batch_size_per_gpu", "training.micro_batch_size", ""},
    {"per_device_train_batch_size", "training.micro_batch_size", ""},
    {"rampup_batch_size", "training.batch_size_warmup", ""},
    {"optimizer.learning_rate", "optimizer.lr", ""},
    {"learning_rate", "optimizer.lr", ""},
    {"lr", "optimizer.lr", ""},
    {"max_lr", "optimizer.lr", ""},
    {"min_lr", "optimizer.min_lr_ratio", kRatio},
    {"min_lr_factor", "optimizer.min_lr_ratio", ""},
    {"lr_warmup_iters", "optimizer.warmup_steps", ""},
    {"lr_scheduler.warmup_steps", "optimizer.warmup_steps", ""},
    {"warmup_iters", "optimizer.warmup_steps", ""},
    {"warmup", "optimizer.warmup_steps", ""},
    {"warmup_ratio", "optimizer.warmup_steps", "which counts steps"},
    {"lr_decay_style", "optimizer.schedule", ""},
    {"lr_scheduler_type", "optimizer.schedule", ""},
    {"decay_type", "optimizer.decay_type", ""},
    {"lr_wsd_decay_iters", "optimizer.decay_steps", ""},
    {"decay_ratio", "optimizer.decay_steps", "which counts steps"},
    {"lr_wsd_decay_style", "optimizer.decay_type", ""},
    {"optimizer.name", "optimizer.type", ""},
    {"optim", "optimizer.type", ""},
    {"adam_beta1", "optimizer.betas", "which is a pair, [0.9, 0.95]"},
    {"adam_beta2", "optimizer.betas", "which is a pair, [0.9, 0.95]"},
    {"beta1", "optimizer.betas", "which is a pair, [0.9, 0.95]"},
    {"beta2", "optimizer.betas", "which is a pair, [0.9, 0.95]"},
    {"adam_eps", "optimizer.eps", ""},
    {"adam_epsilon", "optimizer.eps", ""},
    {"clip_grad", "optimizer.grad_clip", ""},
    {"max_norm", "optimizer.grad_clip", ""},
    {"max_grad_norm", "optimizer.grad_clip", ""},
    {"gradient_clipping", "optimizer.grad_clip", ""},
    {"gradient_clip_val", "optimizer.grad_clip", ""},
    {"fp8", "precision.linear", ""},
    {"fp8_format", "precision.linear", ""},
    {"fp8_recipe", "precision.linear", ""},
    {"recipe_name", "precision.linear", ""},
    {"bf16", "precision.compute", ""},
    {"mixed_precision", "precision.compute", ""},
    {"dtype", "precision.compute", ""},
    {"torch_dtype", "precision.compute", ""},
    {"mixed_precision_param", "precision.compute", ""},
    {"mixed_precision_reduce", "precision.reduce", ""},
    {"fp8_amax_history_len", "precision.amax_history", ""},
    {"fp8_margin", "precision.amax_margin", ""},
    {"enable_fsdp_float8_all_gather", "precision.fp8_all_gather", ""},
    {"data_parallel_shard_degree", "parallel.data_parallel_shard", ""},
    {"data_parallel_replicate_degree", "parallel.data_parallel_replicate", ""},
    {"tensor_parallel_degree", "parallel.tensor_parallel", ""},
    {"tensor_model_parallel_size", "parallel.tensor_parallel", ""},
    {"sequence_parallel", "parallel.tensor_parallel", "which includes sequence parallelism"},
    {"context_parallel_degree", "parallel.context_parallel", ""},
    {"context_parallel_size", "parallel.context_parallel", ""},
    {"fsdp_reshard_after_forward", "parallel.reshard_after_forward", ""},
    {"init_timeout_seconds", "parallel.timeout_s", ""},
    {"train_timeout_seconds", "parallel.timeout_s", ""},
    {"distributed_timeout_minutes", "parallel.timeout_s", "which counts seconds"},
    {"recompute_granularity", "activation_checkpointing.mode", ""},
    {"gradient_checkpointing", "activation_checkpointing.mode", ""},
    {"activation_checkpoint", "activation_checkpointing.mode", ""},
    {"selective_ac_option", "activation_checkpointing.mode", ""},
    {"recompute_num_layers", "activation_checkpointing.ratio", "which is the share of recomputed blocks in mode block"},
    {"save", "checkpoint.dir", ""},
    {"checkpoint.folder", "checkpoint.dir", ""},
    {"checkpoint.interval", "checkpoint.every", ""},
    {"save_interval", "checkpoint.every", ""},
    {"save_steps", "checkpoint.every", ""},
    {"keep_latest_k", "checkpoint.keep", ""},
    {"save_total_limit", "checkpoint.keep", ""},
    {"async_mode", "checkpoint.async", ""},
    {"async_save", "checkpoint.async", ""},
    {"load", "checkpoint.resume", ""},
    {"resume_from_checkpoint", "checkpoint.resume", ""},
    {"log_interval", "logging.every", ""},
    {"log_freq", "logging.every", ""},
    {"logging.interval", "logging.every", ""},
    {"logging_steps", "logging.every", ""},
    {"output_dir", "logging.dir", ""},
    {"dump_folder", "logging.dir", ""},
    {"tensorboard_dir", "logging.dir", ""},
    {"enable_tensorboard", "logging.tensorboard", ""},
    {"eval_interval", "validation.every", ""},
    {"eval_steps", "validation.every", ""},
    {"validation.interval", "validation.every", ""},
    {"validation.freq", "validation.every", ""},
    {"eval_iters", "validation.batches", ""},
    {"validation.steps", "validation.batches", ""},
    {"gradient_accumulation_steps", "",
     "the number of accumulation steps follows from training.global_batch_size, training.micro_batch_size and the "
     "number of ranks"},
    {"attention_dropout", "", kNoDropout},
    {"hidden_dropout", "", kNoDropout},
    {"dropout", "", kNoDropout},
    {"expert_model_parallel_size", "", kNoExperts},
    {"expert_parallel_degree", "", kNoExperts},
    {"expert_parallel", "", kNoExperts},
    {"num_experts", "", kNoExperts},
    {"pipeline_parallel_degree", "parallel.pipeline_parallel", ""},
    {"pipeline_model_parallel_size", "parallel.pipeline_parallel", ""},
    {"virtual_pipeline_model_parallel_size", "parallel.pipeline_chunks", ""},
    {"enable_wandb", "", "scripts/wandb_sync.py sends the metrics of a run to Weights & Biases"},
    {"compile", "", "Octavo's kernels are compiled when it is built"},
};

// Returns whether `written` equals `name` or ends with "." and `name`.
bool names(std::string_view written, std::string_view name) {
  if (!written.ends_with(name)) return false;
  return written.size() == name.size() || written[written.size() - name.size() - 1] == '.';
}

}  // namespace

std::span<const OtherName> other_names() { return kOtherNames; }

const OtherName* find_other_name(std::string_view written) {
  std::string key(written);
  std::replace(key.begin(), key.end(), '-', '_');
  const OtherName* found = nullptr;
  for (const OtherName& row : kOtherNames) {
    const bool is_better = found == nullptr || std::string_view(row.name).size() > std::string_view(found->name).size();
    if (names(key, row.name) && is_better) found = &row;
  }
  return found;
}

std::string with_note(const OtherName& row, const std::string& text) {
  const std::string note = row.note;
  if (std::string_view(row.key).empty()) return note;
  return note.empty() ? text : text + ", " + note;
}

}  // namespace octavo
