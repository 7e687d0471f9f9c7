// Tests of reading a config: every key, overrides, and writing it again.
#include "app/config/config.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "app/config/config_keys.h"
#include "tests/app/config/config_fixture.h"

namespace octavo {
namespace {

constexpr const char* kEveryKey = R"(
model:
  preset: llama3_8b
  hidden_size: 1024
  intermediate_size: 2816
  num_layers: 4
  num_heads: 8
  num_kv_heads: 2
  head_dim: 64
  vocab_size: 1000
  rope_theta: 10000.0
  rope_scaling: {factor: 16.0, low_freq_factor: 2, high_freq_factor: 3, original_max_position_embeddings: 4096}
  rms_norm_eps: 1.0e-6
  tie_word_embeddings: true
  qk_norm: true
  init_from: weights/hf
data:
  train:
    - {path: data/fineweb, weight: 0.7, name: web, max_epochs: 1.5}
    - {path: [data/code, data/more], weight: 3}
  validation: [{path: data/held_out}]
  seq_len: 128
  shuffle: none
  bos_id: 1
  eos_id: 2
  document_mask: true
  on_max_epochs: error
  allow_overlap: true
  skip: [[3, 9], [20, 21]]
  resume_from_sample: 77
  reader_threads: 3
  tokenizer: tok/tokenizer.json
  seed: 18446744073709551615
training: {steps: 7, global_batch_size: 6, micro_batch_size: 3, batch_size_warmup: [{batch_size: 3, steps: 2}], seed: 9, deterministic: true, z_loss: 0.001,
           max_skipped_steps: 4, on_loss_spike: rollback, loss_spike_z: 4.5, loss_spike_window: 50, corruption_check_every: 11, on_corruption: exclude,
           locate_nonfinite: false}
optimizer:
  type: muon
  momentum: 0.9
  lr: 3.0e-3
  min_lr_ratio: 0.25
  warmup_steps: 3
  schedule: wsd
  decay_steps: 2
  decay_type: sqrt
  betas: [0.8, 0.85]
  eps: 1e-7
  weight_decay: 0
  grad_clip: 2
  state_dtype: bfloat16
  ema_decay: 0.999
precision: {compute: float32, linear: fp8_rowwise, lm_head: fp8_backward, bf16_first_layers: 1, bf16_last_layers: 2, fp8_all_gather: false,
            reduce: bfloat16, gradient_format: e4m3, fast_accumulation: all, amax_history: 8, amax_margin: 1,
            guard: {every: 5, steps: 3, tolerance: 0.5, action: bfloat16, fallback_steps: 9}}
parallel: {data_parallel_shard: 2, data_parallel_replicate: 3, tensor_parallel: 4, context_parallel: 2, reshard_after_forward: true,
           nccl_memory: registered, accumulate_unsharded: true, timeout_s: 30,
           pipeline_parallel: 3, pipeline_layers: [1, 2, 1], pipeline_schedule: zero_bubble, pipeline_chunks: 2}
activation_checkpointing: {mode: block, ratio: 0.5}
checkpoint: {dir: ck, every: 11, every_minutes: 1.5, keep: 12, keep_every: 33, max_failed_saves: 5, async: false, in_memory: true,
             in_memory_every: 7, command: 'echo "$OCTAVO_STEP" ${HOME}', command_timeout_s: 60, allow_changes: [schedule, data],
             resume: ck/step_00000011}
logging: {every: 13, dir: logs, tensorboard: false, prometheus: run.prom, fp8_stats_every: 26, slow_rank_every: 7, color: never, trace: {step: 9},
          alert_command: 'curl -d "$OCTAVO_MESSAGE" host', alert_command_timeout_s: 5}
plan: {gpus: 8, machine: h100}
validation: {every: 14, batches: 15}
device: cpu
stages: [{steps: 3, data: {seq_len: 64}}, {steps: 4, optimizer: {lr: 1.0e-3}}]
)";

TEST_F(ConfigTest, ReadsEveryKey) {
  const Config config = load(kEveryKey);
  const ModelConfig& model = config.model;
  EXPECT_EQ(config.preset, "llama3_8b");
  EXPECT_EQ(config.init_from, "weights/hf");
  EXPECT_TRUE(config.model_given());
  EXPECT_TRUE(model ==
              (ModelConfig{1024, 2816, 4, 8, 2, 64, 1000, 10000.0, RopeScaling{16, 2, 3, 4096}, 1e-6, true, true}));
  ASSERT_EQ(config.data.train.size(), 2u);
  EXPECT_EQ(config.data.train[0].paths, std::vector<std::string>{"data/fineweb"});
  EXPECT_EQ(config.data.train[0].name, "web");
  EXPECT_EQ(config.data.train[0].max_epochs, 1.5);
  EXPECT_EQ(config.data.train[1].paths, (std::vector<std::string>{"data/code", "data/more"}));
  EXPECT_EQ(config.data.train[0].weight, 0.7);
  EXPECT_EQ(config.data.train[1].weight, 3.0);
  ASSERT_EQ(config.data.validation.size(), 1u);
  EXPECT_EQ(config.data.validation[0].weight, 1.0);
  EXPECT_EQ(config.data.seq_len, 128);
  EXPECT_EQ(config.data.shuffle, Shuffle::kNone);
  EXPECT_EQ(config.data.bos_id, 1);
  EXPECT_EQ(config.data.eos_id, 2);
  EXPECT_TRUE(config.data.document_mask);
  EXPECT_EQ(config.data.on_max_epochs, OnMaxEpochs::kError);
  EXPECT_EQ(config.data.skip, (std::vector<SampleRange>{{3, 9}, {20, 21}}));
  EXPECT_EQ(config.data.resume_from_sample, 77);
  EXPECT_EQ(config.data.reader_threads, 3);
  EXPECT_EQ(config.data.tokenizer, "tok/tokenizer.json");
  EXPECT_EQ(config.data.seed, 18446744073709551615u);
  EXPECT_EQ(config.training.steps, 7);
  EXPECT_EQ(config.training.global_batch_size, 6);
  EXPECT_EQ(config.training.micro_batch_size, 3);
  EXPECT_EQ(config.training.seed, 9u);
  EXPECT_EQ(config.training.batch_size_warmup, (std::vector<BatchPhase>{{.batch_size = 3, .steps = 2}}));
  EXPECT_TRUE(config.training.deterministic);
  EXPECT_EQ(config.training.z_loss, 0.001);
  EXPECT_EQ(config.training.corruption_check_every, 11);
  EXPECT_FALSE(config.training.locate_nonfinite);
  EXPECT_EQ(config.training.on_corruption, OnCorruption::kExclude);
}

TEST_F(ConfigTest, ReadsEveryKeyOfTheOtherSections) {
  const Config config = load(kEveryKey);
  EXPECT_EQ(config.optimizer.type, OptimizerType::kMuon);
  EXPECT_EQ(config.optimizer.momentum, 0.9);
  EXPECT_EQ(config.optimizer.lr, 3e-3);
  EXPECT_EQ(config.optimizer.min_lr_ratio, 0.25);
  EXPECT_EQ(config.optimizer.warmup_steps, 3);
  EXPECT_EQ(config.optimizer.schedule, Schedule::kWsd);
  EXPECT_EQ(config.optimizer.decay_steps, 2);
  EXPECT_EQ(config.optimizer.decay_type, Decay::kSqrt);
  EXPECT_EQ(config.optimizer.beta1, 0.8);
  EXPECT_EQ(config.optimizer.beta2, 0.85);
  EXPECT_EQ(config.optimizer.eps, 1e-7);
  EXPECT_EQ(config.optimizer.weight_decay, 0.0);
  EXPECT_EQ(config.optimizer.grad_clip, 2.0);
  EXPECT_EQ(config.optimizer.state_dtype, DType::kBFloat16);
  EXPECT_EQ(config.optimizer.ema_decay, 0.999);
  EXPECT_EQ(config.precision.compute, DType::kFloat32);
  EXPECT_TRUE(config.compute_given);
  EXPECT_EQ(config.precision.linear, LinearPrecision::kFp8Rowwise);
  EXPECT_EQ(config.precision.lm_head, LmHeadPrecision::kFp8Backward);
  EXPECT_EQ(config.precision.bf16_first_layers, 1);
  EXPECT_EQ(config.precision.bf16_last_layers, 2);
  EXPECT_FALSE(config.precision.fp8_all_gather);
  EXPECT_EQ(config.precision.reduce, DType::kBFloat16);
  EXPECT_EQ(config.precision.gradient_format, DType::kFloat8E4M3);
  EXPECT_EQ(config.precision.fast_accumulation, FastAccumulation::kAll);
  EXPECT_EQ(config.precision.amax_history, 8);
  EXPECT_EQ(config.precision.amax_margin, 1);
  EXPECT_EQ(config.parallel.data_parallel_shard, 2);
  EXPECT_EQ(config.parallel.data_parallel_replicate, 3);
  EXPECT_EQ(config.parallel.tensor_parallel, 4);
  EXPECT_EQ(config.parallel.context_parallel, 2);
  EXPECT_EQ(config.parallel.reshard_after_forward, AutoBool::kTrue);
  EXPECT_EQ(config.parallel.accumulate_unsharded, AutoBool::kTrue);
  EXPECT_EQ(config.parallel.nccl_memory, NcclMemory::kRegistered);
  EXPECT_EQ(config.parallel.timeout_s, 30);
  EXPECT_EQ(config.parallel.pipeline_parallel, 3);
  EXPECT_EQ(config.parallel.pipeline_layers, (std::vector<int64_t>{1, 2, 1}));
  EXPECT_EQ(config.parallel.pipeline_schedule, PipelineSchedule::kZeroBubble);
  EXPECT_EQ(config.parallel.pipeline_chunks, 2);
  EXPECT_EQ(config.activation_checkpointing.mode, ActivationCheckpointing::Mode::kBlock);
  EXPECT_EQ(config.activation_checkpointing.ratio, 0.5);
  EXPECT_EQ(config.checkpoint.dir, "ck");
  EXPECT_EQ(config.checkpoint.every, 11);
  EXPECT_EQ(config.checkpoint.every_minutes, 1.5);
  EXPECT_EQ(config.checkpoint.keep, 12);
  EXPECT_EQ(config.checkpoint.keep_every, 33);
  EXPECT_EQ(config.checkpoint.max_failed_saves, 5);
  EXPECT_FALSE(config.checkpoint.async);
  EXPECT_EQ(config.checkpoint.command, "echo \"$OCTAVO_STEP\" ${HOME}") << "the shell replaces variables";
  EXPECT_EQ(config.checkpoint.command_timeout_s, 60);
  EXPECT_EQ(config.checkpoint.resume, "ck/step_00000011");
  EXPECT_EQ(config.logging.every, 13);
  EXPECT_EQ(config.logging.dir, "logs");
  EXPECT_FALSE(config.logging.tensorboard);
  EXPECT_EQ(config.logging.fp8_stats_every, 26);
  EXPECT_EQ(config.logging.slow_rank_every, 7);
  EXPECT_EQ(config.logging.color, LogColor::kNever);
  EXPECT_EQ(config.logging.alert_command, "curl -d \"$OCTAVO_MESSAGE\" host");
  EXPECT_EQ(config.logging.alert_command_timeout_s, 5);
  EXPECT_EQ(config.trace.step, 9);
  EXPECT_EQ(config.validation.every, 14);
  EXPECT_EQ(config.validation.batches, 15);
  EXPECT_EQ(config.device, DeviceChoice::kCpu);
}

// docs/config.md has the defaults.
TEST_F(ConfigTest, EmptySectionsAndOptionalKeysHaveTheirDefaults) {
  const Config config = load("model:\n  init_from:\ndata: ~\ntraining:\noptimizer: {}\n");
  EXPECT_EQ(to_json(config), to_json(load("device: auto\n")));
  EXPECT_FALSE(config.model_given());
  EXPECT_EQ(config.init_from, "");
  EXPECT_TRUE(config.data.bos_auto && config.data.eos_auto);
  EXPECT_EQ(config.training.steps, 2000);
}

TEST_F(ConfigTest, CheckpointsAreInTheRunFolderUnlessTheConfigNamesAnotherDirectory) {
  EXPECT_EQ(load("device: cpu\n", {"logging.dir=runs/s2"}).checkpoint.dir, "runs/s2/checkpoints");
  EXPECT_EQ(load("logging: {dir: a}\ncheckpoint: {dir: b}\n").checkpoint.dir, "b");
  EXPECT_EQ(load(to_yaml(load("device: cpu\n"))).checkpoint.dir, "runs/small/checkpoints");
}

TEST_F(ConfigTest, DocumentTokensAreAutoAnIdOrNone) {
  for (const auto& [value, written] : {std::pair("auto", "\"auto\""), {"null", "null"}, {"~", "null"}, {"7", "7"}}) {
    const Config config = load("data: {eos_id: 5}\n", {fmt::format("data.eos_id={}", value)});
    EXPECT_EQ(config.data.eos_auto, std::string_view(value) == "auto");
    EXPECT_EQ(to_json(config).at("data").at("eos_id").dump(), written);
  }
  expect_error("data: {bos_id: none}\n", {"data.bos_id is 'none'", "expected auto, null or an integer from 0"});
  const std::vector<std::string> is_empty = {"data.bos_id is empty", "expected auto, null or an integer from 0"};
  expect_error("device: cpu\n", is_empty, {"data.bos_id="});
  expect_error("data:\n  bos_id:\n  eos_id: null\n", is_empty);
  EXPECT_FALSE(load("data:\n  bos_id: null # none\n  eos_id:  ~\n").data.bos_auto);
}

TEST_F(ConfigTest, OverridesReplaceValuesAndMergeMaps) {
  const Config config =
      load(kEveryKey, {"device=cuda", "data.train=[{path: only, weight: 2}]", "model.rope_scaling.factor=8",
                       "training={steps: 50}", "stages=[]", "training.steps=60", "optimizer.betas=[0.5, 0.6]",
                       "logging.dir=a=b", "data.bos_id=null", "model.init_from=null"});
  EXPECT_EQ(config.device, DeviceChoice::kCuda);
  ASSERT_EQ(config.data.train.size(), 1u);
  EXPECT_EQ(config.data.train[0].paths, std::vector<std::string>{"only"});
  EXPECT_EQ(config.model.rope_scaling->factor, 8.0);
  EXPECT_EQ(config.model.rope_scaling->low_freq_factor, 2.0);
  EXPECT_EQ(config.training.steps, 60);
  EXPECT_EQ(config.training.global_batch_size, 6);
  EXPECT_EQ(config.optimizer.beta1, 0.5);
  EXPECT_EQ(config.logging.dir, "a=b");
  EXPECT_FALSE(config.data.bos_id.has_value());
  EXPECT_EQ(config.init_from, "");
}

TEST_F(ConfigTest, AKeyWithoutAValueMeansNoDefault) {
  for (const char* key :
       {"training.steps", "training.seed", "training.deterministic", "optimizer.lr", "optimizer.betas",
        "optimizer.schedule", "data.tokenizer", "data.seq_len", "model.num_layers", "model.hidden_size",
        "checkpoint.dir", "precision.linear", "activation_checkpointing.ratio"}) {
    for (const char* value : {"", " ", "null", "~"})
      expect_error(kEveryKey, {key, "is empty, expected"}, {fmt::format("{}={}", key, value)});
  }
  expect_error("optimizer: {lr: }\n", {"small.yaml:1", "optimizer.lr is empty"});
  expect_error(kEveryKey, {"'training='", "is empty"}, {"training="});
  expect_error(kEveryKey, {"'device='", "is empty"}, {"device="});
}

TEST_F(ConfigTest, OverridesMakeSectionsThatTheFileLacks) {
  const Config config = load("device: cpu\n", {"model.preset=llama3_8b", "model.rope_scaling.factor=4"});
  EXPECT_EQ(config.model.num_layers, 32);
  EXPECT_EQ(config.model.rope_scaling->factor, 4.0);
  EXPECT_EQ(config.model.rope_scaling->original_max_position_embeddings, 8192);
}

TEST_F(ConfigTest, PresetFieldsCanBeOverridden) {
  const Config config = load("model: {preset: llama3_1b, hidden_size: 1024}\n");
  EXPECT_EQ(config.model.head_dim, 32);
  EXPECT_EQ(config.model.num_kv_heads, 8);
  EXPECT_EQ(config.model.intermediate_size, 8192);
  EXPECT_EQ(config.model.rope_scaling->factor, 32.0);
  EXPECT_FALSE(load("model: {preset: llama3_1b, rope_scaling: null}\n").model.rope_scaling.has_value());
  EXPECT_FALSE(load("model: {preset: llama3_1b, rope_scaling: none}\n").model.rope_scaling.has_value());
  EXPECT_EQ(load("model: {preset: llama3_1b, rope_scaling: none}\n", {"model.rope_scaling.factor=2"})
                .model.rope_scaling->factor,
            2.0);
}

TEST_F(ConfigTest, EveryPresetReadsAsItIs) {
  for (const std::string& name : model_preset_names())
    EXPECT_TRUE(load("model: {preset: " + name + "}\n").model == model_preset(name)) << name;
}

TEST_F(ConfigTest, HeadsAreDerived) {
  const Config config = load(kTrainable);
  EXPECT_EQ(config.model.head_dim, 32);
  EXPECT_EQ(config.model.num_kv_heads, 4);
  EXPECT_EQ(load(kTrainable, {"model.num_heads=3", "model.head_dim=64"}).model.head_dim, 64);
  expect_error(kTrainable,
               {"model.hidden_size is 128, expected a multiple of model.num_heads 3; 96 or "
                "192 would work"},
               {"model.num_heads=3"});
  expect_error(kTrainable, {"expected a multiple of model.num_heads 8; 512 or 768 would work"},
               {"model.hidden_size=700", "model.num_heads=8"});
}

TEST_F(ConfigTest, DatasetsAsPathMapOrList) {
  EXPECT_EQ(load("data: {train: data/x}\n").data.train.at(0).paths, std::vector<std::string>{"data/x"});
  EXPECT_EQ(load("data: {train: {path: data/x, weight: 2}}\n").data.train.at(0).weight, 2.0);
  EXPECT_EQ(load("data: {train: [a, {path: b}]}\n").data.train.at(1).paths, std::vector<std::string>{"b"});
  EXPECT_TRUE(load("data: {train: []}\n").data.train.empty());
  expect_error("data: {train: [{weight: 1}]}\n", {"data.train", "no path"});
  expect_error("data: {train: [{pth: x}]}\n", {"unknown key data.train.pth", "data.train.path"});
  expect_error("data: {validation: [[x]]}\n", {"data.validation is a list", "path"});
  expect_error("data: {train: [{path: x, weight: -1}]}\n",
               {"data.train.weight is '-1'", "expected 0 or a number above 0"});
  expect_error("data: {train: [{path: x, max_epochs: -1}]}\n",
               {"data.train.max_epochs is '-1'", "expected 0 or a number above 0"});
  expect_error("data: {train: [{path: []}]}\n", {"data.train.path is a list", "a list of paths"});
}

TEST_F(ConfigTest, WholeNumbersMayHaveAnExponent) {
  EXPECT_EQ(load("training: {steps: 1e3}\n").training.steps, 1000);
  EXPECT_EQ(load("training: {steps: 2.5E4}\n").training.steps, 25000);
  EXPECT_EQ(load("training: {steps: 1e+3}\n").training.steps, 1000);
  EXPECT_EQ(load("training: {steps: 0.1e4}\n").training.steps, 1000);
  EXPECT_EQ(load("training: {seed: 1e18}\n").training.seed, 1000000000000000000u);
}

TEST_F(ConfigTest, PathsTakeTheHomeDirectoryAndTheEnvironment) {
  ::setenv("HOME", "/home/someone", 1);
  ::setenv("OCTAVO_TEST_DATA", "/big", 1);
  const Config config = load(
      "data: {train: [{path: '${OCTAVO_TEST_DATA}/a~b/${OCTAVO_TEST_DATA}'}, '~/x'], tokenizer: ~/t.json}\n"
      "model: {init_from: ~}\n",
      {"logging.dir=~/runs"});
  EXPECT_EQ(config.data.train.at(0).paths.at(0), "/big/a~b//big");
  EXPECT_EQ(config.data.train.at(1).paths.at(0), "/home/someone/x");
  EXPECT_EQ(config.data.tokenizer, "/home/someone/t.json");
  EXPECT_EQ(config.logging.dir, "/home/someone/runs");
  EXPECT_EQ(config.init_from, "") << "a single ~ is YAML's null";
  ::unsetenv("OCTAVO_TEST_DATA");
  expect_error("logging: {dir: '${OCTAVO_TEST_DATA}/x'}\n",
               {"needs the environment variable OCTAVO_TEST_DATA, which is not set"});
  expect_error("logging: {dir: '${OCTAVO'}\n", {"logging.dir is the string \"${OCTAVO\", expected a path"});
}

std::string text_of(const ConfigKey& key, const Config& config) {
  const std::optional<nlohmann::ordered_json> value = key.write(config);
  return value ? value->dump() : "nothing";
}

// Strings are printed without quotes or escapes, for scripts that do not parse YAML.
TEST_F(ConfigTest, AValueIsPrintedWithoutQuotes) {
  Config config = load(kEveryKey);
  config.checkpoint.dir = "-my \"runs\" \\n 'here': $HOME";
  EXPECT_EQ(value_text(config, "checkpoint.dir"), config.checkpoint.dir);
  EXPECT_EQ(value_text(config, "data.seq_len"), "128");
  EXPECT_EQ(value_text(config, "data.skip"), "[[3, 9], [20, 21]]");
  for (const char* key : {"checkpoint", "checkpoint.dirs", ""}) EXPECT_THROW(value_text(config, key), InputError);
}

// In kEveryKey every key differs from its default, so the test fails if a key is not read, not written or not read
// again.
TEST_F(ConfigTest, EveryKeyComesBackFromJsonAndYaml) {
  const Config config = load(kEveryKey);
  const Config other = load("model: {preset: llama3_405b}\n");
  const nlohmann::json json = nlohmann::json::parse(to_json(config).dump());
  const Config from_json = config_from_json(json);
  const Config from_yaml = load(to_yaml(config));
  for (const ConfigKey& key : config_keys()) {
    const std::string value = text_of(key, config);
    EXPECT_NE(value, text_of(key, other)) << key.name;
    EXPECT_EQ(value, text_of(key, from_json)) << key.name;
    EXPECT_EQ(value, text_of(key, from_yaml)) << key.name;
    std::string path = "/" + key.name;
    std::replace(path.begin(), path.end(), '.', '/');
    EXPECT_TRUE(json.contains(nlohmann::json::json_pointer(path))) << key.name;
  }
}

TEST_F(ConfigTest, JsonAndYamlComeBackUnchanged) {
  const std::vector<std::string> cases = {kEveryKey, kTrainable, "model: {init_from: hf, vocab_size: 9}\n",
                                          "model: {preset: llama3_1b, rope_scaling: none}\n",
                                          "checkpoint: {dir: \"true\"}\nlogging: {dir: 'a: [b] \"c\" #d'}\n"};
  for (const std::string& yaml : cases) {
    const Config config = load(yaml);
    const nlohmann::json json = to_json(config);
    EXPECT_EQ(to_json(config_from_json(nlohmann::json::parse(json.dump()))), json);
    EXPECT_EQ(to_json(load(to_yaml(config))), json) << to_yaml(config);
  }
}

TEST_F(ConfigTest, JsonIsReadAsStrictlyAsYaml) {
  nlohmann::json json = to_json(load(kTrainable));
  json["training"]["steps"] = "100";
  EXPECT_THROW(config_from_json(json), InputError);
  json["training"]["steps"] = 100;
  json["training"]["stride"] = 1;
  EXPECT_THROW(config_from_json(json), InputError);
  EXPECT_THROW(config_from_json(nlohmann::json::array()), InputError);
}

}  // namespace
}  // namespace octavo
