// Tests of the messages about wrong, misspelt and retired keys.
#include <fstream>
#include <sstream>

#include "app/config/config.h"
#include "app/config/config_keys.h"
#include "app/config/unknown_keys.h"
#include "tests/app/config/config_fixture.h"

namespace octavo {
namespace {

TEST_F(ConfigTest, BadOverridesAreNamed) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"training.steps", {"'training.steps'", "no '='"}},
      {"=5", {"empty key"}},
      {".steps=5", {"empty key"}},
      {"training..steps=5", {"empty key"}},
      {"data.train=[{path: x}", {"the argument 'data.train=[{path: x}' is not valid YAML"}},
      {"training.steps=x", {"command line: training.steps is 'x'"}},
      {"training.step=5", {"command line: unknown key training.step", "training.steps"}},
      {"training.batch_size=8", {"training.batch_size", "training.global_batch_size"}},
      {"device.kind=1", {"device.kind=1", "not a section"}}};
  for (const auto& [argument, parts] : cases) expect_error("device: cpu\n", parts, {argument});
  expect_error("data: {train: [a]}\n", {"a list", "not a section"}, {"data.train.path=1"});
}

TEST_F(ConfigTest, UnknownKeysSuggestTheNearest) {
  expect_error("training:\n  step: 5\n", {"small.yaml:2", "unknown key training.step", "did you mean training.steps?"});
  expect_error("optimiser: {lr: 1}\n", {"unknown key optimiser", "did you mean optimizer?"});
  expect_error("model: {hiden_size: 8}\n", {"model.hiden_size", "model.hidden_size?"});
  expect_error("model: {rope_scaling: {facter: 8}}\n", {"model.rope_scaling.facter", "model.rope_scaling.factor?"});
  expect_error("global_batch_size: 8\n", {"unknown key global_batch_size", "training.global_batch_size?"});
  expect_error("optimizer: {xyz: 1}\n",
               {"unknown key optimizer.xyz; optimizer has the keys type, ", "lr, min_lr_ratio"});
  expect_error("model: {rope_scaling: {a: 8}}\n",
               {"unknown key model.rope_scaling.a; model.rope_scaling has the keys "});
  expect_error("optimizer: {a: 8}\n", {"unknown key optimizer.a; optimizer has the keys "});
  expect_error("data: {validaton: x}\n", {"data.validation?"});
}

// Every node of a config is consumed by a key, or refused with the line of its key.
TEST_F(ConfigTest, AKeyThatNamesNothingIsRefusedWhereverItStands) {
  const std::pair<const char*, int> places[] = {
      // A config with a place for an entry, and the line of this place.
      {"{}: 1\n", 1},
      {"device: cpu\n{}:\n  - 1\n", 2},
      {"training:\n  steps: 5\n  {}: 1\n", 3},
      {"precision:\n  guard:\n    {}: {{a: 1}}\n", 3},
      {"model:\n  rope_scaling:\n    factor: 8\n    {}: 1\n", 4},
      {"data:\n  train:\n  - path: a\n  - path: b\n    {}: 1\n", 5},
      {"data:\n  validation:\n    path: a\n    {}:\n", 4},
      {"training:\n  batch_size_warmup:\n  - batch_size: 1\n    steps: 2\n    {}: 1\n", 5},
      {"stages:\n- steps: 5\n- steps: 5\n  {}: 1\n", 4},
      {"stages:\n- steps: 5\n  data:\n    {}: 1\n", 4},
      {"stages:\n- steps: 5\n  data:\n    train:\n    - path: a\n      {}: 1\n", 6},
      {"base: &base\n  {}: 1\ntraining:\n  <<: *base\n", 2}};
  for (const auto& [place, line] : places) {
    for (const char* name : {"nosuch", "no.such", "no.such.key", "nosuch.steps", ".nosuch", "nosuch.", "a..b", "\"\"",
                             ".training.steps", "steps.steps", "model.model.preset"}) {
      const std::string message = error_of(fmt::format(fmt::runtime(place), name));
      EXPECT_NE(message.find(fmt::format("small.yaml:{}: ", line)), std::string::npos) << place << name << message;
    }
  }
  // These names are keys, but not in such a place.
  expect_error("training:\n  training.steps: 5\n", {"small.yaml:2: unknown key training.training.steps"});
  expect_error("stages: [{steps: 5, checkpoint.every: 5}]\n", {"unknown key stages.checkpoint"});
  expect_error("device: cpu\n",
               {"command line: unknown key metrics.enable_tensorboard; Octavo's name for it is logging."},
               {"metrics.enable_tensorboard=true"});
  expect_error("device: cpu\n", {"unknown key metrics.every_x; a config has the keys model, data"},
               {"metrics={enable_tensorboard: true, every_x: 1}"});
}

TEST_F(ConfigTest, DottedKeysAreAppliedLikeOverrides) {
  const auto json = [&](const std::string& yaml, const std::vector<std::string>& overrides = {}) {
    return to_json(load(kTrainable + yaml, overrides));
  };
  const nlohmann::json expected =
      json("", {"precision.guard.every=7", "model.rope_scaling.factor=4", "optimizer.betas=[0.5, 0.6]"});
  EXPECT_EQ(json("precision.guard.every: 7\nmodel.rope_scaling.factor: 4\noptimizer.betas: [0.5, 0.6]\n"), expected);
  EXPECT_EQ(json("precision: {guard.every: 7}\nmodel.rope_scaling: {factor: 4}\n\"optimizer.betas\": [0.5, 0.6]\n"),
            expected);
  EXPECT_EQ(json("", {"precision={guard.every: 7}", "model={rope_scaling.factor: 4}", "optimizer.betas=[0.5, 0.6]"}),
            expected);
  const Config staged = load(
      "model: {preset: llama3_1b}\ndata: {train: [{path: data/x}]}\nstages:\n- {steps: 4, data.seq_len: 64}\n"
      "- {steps: 4, optimizer: {lr: 1}, optimizer.decay_type: sqrt, optimizer.schedule: wsd}\n");
  EXPECT_EQ(staged.stages[0].changes.at("data.seq_len"), 64);
  EXPECT_EQ(staged.stages[1].changes.at("optimizer.lr"), 1.0);
  EXPECT_EQ(staged.stages[1].changes.at("optimizer.decay_type"), "sqrt");
  EXPECT_EQ(load("data.train.path: a\n").data.train[0].paths, std::vector<std::string>{"a"});
  for (const char* twice : {"training.steps: 7\n", "training.steps.x: 7\n", "optimizer.warmup_steps: 10\n"})
    expect_error(kTrainable + std::string(twice), {"small.yaml:5: the key '", "' is given twice"});
}

TEST_F(ConfigTest, MergeKeysOfYaml) {
  const Config config = load(
      "model: {preset: llama3_1b}\ndata:\n  train:\n  - &first {path: a, weight: 2, max_epochs: 3}\n"
      "  - {<<: *first, path: b}\n  validation:\n  - {<<: [{path: c, weight: 5}, *first], max_epochs: 4}\n"
      "stages:\n- &stage {steps: 4, data.seq_len: 64}\n- {<<: *stage, steps: 8, training.global_batch_size: 16}\n");
  EXPECT_EQ(config.data.train[1].paths, std::vector<std::string>{"b"});
  EXPECT_EQ(config.data.train[1].weight, 2);
  EXPECT_EQ(config.data.validation[0].paths, std::vector<std::string>{"c"});
  EXPECT_EQ(config.data.validation[0].weight, 5);
  EXPECT_EQ(config.data.validation[0].max_epochs, 4);
  EXPECT_EQ(config.stages[1].steps, 8);
  EXPECT_EQ(config.stages[1].changes.at("data.seq_len"), 64);
  // A map that is merged need not be a section, but each of its keys must be a key where it is merged.
  EXPECT_EQ(load("base: &base {steps: 7}\ntraining: {<<: *base, seed: 5}\n").training.steps, 7);
  EXPECT_EQ(load("bases:\n  a: &a {steps: 7}\n  b: &b {seed: 5}\ntraining: {<<: [*a, *b]}\n").training.seed, 5U);
  expect_error("base: &base {steps: 7}\noptimizer: {<<: *base}\n", {"small.yaml:1: unknown key optimizer.steps"});
  expect_error("base: &base {steps: 7}\ntraining: *base\n", {"small.yaml:1: unknown key base"});
  expect_error("bases: {a: &a {steps: 7}, b: 5}\ntraining: {<<: *a}\n", {"small.yaml:1: unknown key bases"});
  expect_error("training:\n  <<: 5\n", {"small.yaml:2: the merge key << has another value"});
  expect_error("training:\n  <<: [{steps: 5}, 5]\n", {"small.yaml:2: the merge key <<"});
  expect_error("training:\n  \"<<\": {steps: 5}\n", {"small.yaml:2: unknown key training.<<"});
  // The merged map would be replaced as a whole, so its other keys would be lost.
  expect_error("base: &base\n  training: {steps: 7, seed: 5}\n<<: *base\ntraining: {steps: 9}\n",
               {"small.yaml:2: << merges the map 'training', but the one at ", "small.yaml:4 replaces"});
  expect_error("training: &loop\n  <<: *loop\n", {"nested"});
  std::string bomb = "a0: &a0 {x: 1}\n";  // The map a14 merges 8^14 maps.
  for (int i = 1; i < 15; ++i)
    bomb += fmt::format("a{0}: &a{0}\n  <<: [*a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}]\n", i, i - 1);
  expect_error(bomb, {"expands to more than"});
}

TEST_F(ConfigTest, TagsAndCommentsThatWouldBeDroppedAreRefused) {
  EXPECT_EQ(load("training: {steps: !!int 5}\nlogging: {dir: !!str 7}\n").logging.dir, "7");
  expect_error("training:\n  steps: !env STEPS\n", {"small.yaml:2: the tag !env is not read"});
  expect_error("device: cpu\n!env training: {steps: 5}\n", {"small.yaml:2: the tag !env is not read"});
  expect_error("data: !include data.yaml\n", {"small.yaml:1: the tag !include"});
  const std::pair<const char*, const char*> comments[] = {{"logging.dir=a #b", "#b"},
                                                          {"model.init_from=#b", "#b"},
                                                          {"data.train=[a, 'b # c'] # d", "# d"},
                                                          {"logging.dir='a #b' #c # d", "#c # d"},
                                                          {"logging.dir=\"a\"#b", "#b"},
                                                          {"training={steps: 9}#x", "#x"}};
  for (const auto& [argument, comment] : comments)
    expect_error("device: cpu\n", {fmt::format("ends with the YAML comment '{}'", comment)}, {argument});
  for (const char* value : {"'a #b'", "\"a #b\""})
    EXPECT_EQ(load("device: cpu\n", {fmt::format("logging.dir={}", value)}).logging.dir, "a #b");
  EXPECT_EQ(load("device: cpu # not cuda\n", {"logging.dir=a#b"}).logging.dir, "a#b");
}

TEST_F(ConfigTest, NamesOfOtherProgramsLeadToTheKey) {
  const std::pair<const char*, const char*> cases[] = {
      {"optimizer.learning_rate=1", "Octavo's name for it is optimizer.lr"},
      {"training.max_norm=1", "Octavo's name for it is optimizer.grad_clip"},
      {"train.steps=5", "did you mean training.steps?"},
      {"lr_scheduler.warmup_steps=5", "Octavo's name for it is optimizer.warmup_steps"},
      {"training.eval-iters=5", "Octavo's name for it is validation.batches"},
      {"precision.fp8_recipe=delayed", "Octavo's name for it is precision.linear"},
      {"checkpoint.interval=5", "Octavo's name for it is checkpoint.every"},
      {"model.num_attention_heads=8", "Octavo's name for it is model.num_heads"},
      {"optimizer.min_lr=1e-5", "Octavo's name for it is optimizer.min_lr_ratio, which is relative to optimizer.lr"},
      {"metrics.enable_wandb=true", "scripts/wandb_sync.py"},
      {"model.dropout=0.1", "unknown key model.dropout; Octavo trains without dropout"},
      {"training.gradient_accumulation_steps=4", "follows from training.global_batch_size"}};
  for (const auto& [argument, hint] : cases) expect_error("device: cpu\n", {hint}, {argument});
}

TEST_F(ConfigTest, EveryOtherNameLeadsToAKeyThatExists) {
  for (const OtherName& other : other_names()) {
    const auto is_it = [&](const ConfigKey& key) { return key.name == other.key; };
    const bool has_key = std::any_of(config_keys().begin(), config_keys().end(), is_it);
    EXPECT_TRUE(has_key || (std::string_view(other.key).empty() && *other.note != '\0')) << other.name;
    EXPECT_EQ(find_other_name(other.name), &other) << other.name;
  }
  EXPECT_EQ(find_other_name("training.steps_"), nullptr);
  EXPECT_EQ(find_other_name("data.my_dataset"), nullptr);
}

TEST_F(ConfigTest, AllErrorsAreReportedTogether) {
  const std::string message =
      error_of("training: {step: 5, seed: -1}\noptimizer: {lr: fast}\nlogging: {links_every: 3}\n");
  for (const char* part : {"unknown key training.step;", "training.seed is '-1'", "optimizer.lr is 'fast'",
                           "logging.links_every was removed"})
    expect_mentions(message, {part});
  EXPECT_EQ(std::count(message.begin(), message.end(), kErrorSeparator), 3);
  expect_invalid(
      {{{"optimizer.decay_steps=5", "data.train=[]"}, {"optimizer.decay_steps is 5", "data.train names no dataset"}}});
}

TEST_F(ConfigTest, WrongTypesNameKeyAndText) {
  expect_error("training:\n  steps: many\n", {"small.yaml:2: training.steps is 'many'", "expected an integer"});
  for (const char* text : {"3e-2", "1.5e0", "1.e3", "1e99", "1e", "e3", "1_000", "3.0", "0x10", "010", "true", "+5",
                           "5 steps", "99999999999999999999"})
    expect_error(fmt::format("training: {{steps: {}}}\n", text), {"training.steps", text, "expected an integer"});
  expect_error("training: {steps: \"5\"}\n", {"the string \"5\"", "expected an integer"});
  expect_error("training: {steps: [5]}\n", {"training.steps is a list"});
  expect_error("training: {deterministic: yes}\n", {"training.deterministic is 'yes'", "expected true or false"});
  expect_error("training: {deterministic: 1}\n", {"expected true or false"});
  expect_error("checkpoint: {async: \"true\"}\n", {"checkpoint.async is the string", "expected true or false"});
  for (const char* text : {"fast", "nan", ".inf", "inf", "1e999", "0x1p3", "1,5", "true"})
    expect_error(fmt::format("optimizer: {{lr: '{}'}}\n", text), {"optimizer.lr", text, "expected a number"});
  expect_error("optimizer: {lr: nan}\n", {"optimizer.lr is 'nan'"});
  expect_error("optimizer: {lr: 1e999}\n", {"optimizer.lr is '1e999'"});
  expect_error("checkpoint: {dir: {a: 1}}\n", {"checkpoint.dir is a map"});
  expect_error("checkpoint: {dir: \"\"}\n", {"checkpoint.dir", "expected a path"});
  expect_error("checkpoint: {dir: \"a\\0b\"}\n", {"small.yaml:1: the value ", "a\\x00b", " has a NUL byte"});
  expect_error("training: 5\n", {"training is '5'", "expected a section"});
  expect_error("training: [5]\n", {"training is a list", "expected a section"});
  expect_error("model: {rope_scaling: 8}\n", {"model.rope_scaling is '8'", "expected a section"});
}

TEST_F(ConfigTest, OutOfRangeValuesAreRefused) {
  std::istringstream wrong(
      "model.hidden_size=-1 model.hidden_size=0 model.num_layers=0 model.vocab_size=3000000000 model.vocab_size=0 "
      "model.rope_theta=0 model.rope_theta=-1 model.rms_norm_eps=-1e-5 data.seq_len=0 data.reader_threads=0 "
      "data.resume_from_sample=-1 data.skip=[[3,3]] data.skip=[[3]] data.skip=5 data.bos_id=-1 data.seed=-1 "
      "training.steps=0 training.steps=-5 training.steps={a:1} training.micro_batch_size=0 training.seed=-1 "
      "training.global_batch_size=-8 training.global_batch_size=0 optimizer.lr=0 optimizer.lr=-1e-3 optimizer.eps=0 "
      "optimizer.min_lr_ratio=1.5 optimizer.warmup_steps=-1 optimizer.betas=[0.9,1.0] optimizer.betas=[-0.1,0.9] "
      "optimizer.betas=[0.9] optimizer.betas=0.9 optimizer.weight_decay=-1 optimizer.grad_clip=-1 "
      "precision.bf16_first_layers=-1 logging.every=0 logging.fp8_stats_every=-1 logging.slow_rank_every=-1 "
      "logging.trace.step=-1 activation_checkpointing.ratio=2 parallel.data_parallel_shard=0 "
      "parallel.data_parallel_shard=-2 parallel.tensor_parallel=0 validation.batches=0 checkpoint.every=-1 "
      "checkpoint.keep=-1");
  for (std::string text; wrong >> text;) {
    const std::string key = text.substr(0, text.find('='));
    expect_error("device: cpu\n", {"command line: " + key + " is ", "expected"}, {text});
  }
}

// With such values the optimizer would divide zero by zero or never change a weight.
TEST_F(ConfigTest, NumbersAreWithinTheirBoundsAsFloat32) {
  EXPECT_EQ(load("optimizer: {eps: 1e-40, lr: 1e38, ema_decay: 0.9999999}\n").optimizer.ema_decay, 0.9999999);
  expect_error("optimizer: {eps: 1e-50}\n", {"optimizer.eps is '1e-50'", "a number above 0 as float32"});
  expect_error("optimizer: {lr: 1e39}\n", {"optimizer.lr is '1e39'", "a number above 0 as float32"});
  expect_error("training: {z_loss: 1e300}\n", {"training.z_loss is '1e300'", "0 or a number above 0 as float32"});
  expect_error("optimizer: {ema_decay: 0.99999999999}\n", {"optimizer.ema_decay", "below 1 as float32"});
  expect_error("optimizer: {betas: [0.9, 0.99999999999]}\n", {"optimizer.betas", "below 1 as float32"});
}

// If 0 disables what a key controls, small positive values of the key must not be rounded to 0.
TEST_F(ConfigTest, ZeroDisablesAndNothingElseRoundsToIt) {
  const Config config = load(
      "optimizer: {grad_clip: 0, weight_decay: 0.0}\nparallel: {timeout_s: 0}\ncheckpoint: {every_minutes: 0.01}\n"
      "training: {z_loss: 1e-40, loss_spike_z: 1}\n");
  EXPECT_EQ(config.optimizer.grad_clip, 0);
  EXPECT_EQ(config.parallel.timeout_s, 0);
  EXPECT_EQ(config.checkpoint.every_minutes, 0.01);
  EXPECT_EQ(config.training.z_loss, 1e-40);
  expect_error("optimizer: {grad_clip: 1e-320}\n",
               {"optimizer.grad_clip is '1e-320'", "expected 0 or a number above 0 as float32"});
  expect_error("data: {train: [{path: a, weight: 1e-60}]}\n", {"data.train.weight is '1e-60'", "expected 0 or"});
  expect_error("parallel: {timeout_s: 1e-320}\n",
               {"parallel.timeout_s is '1e-320'", "expected 0 or a number of at least 1 as float32"});
  expect_error("parallel: {timeout_s: 0.9}\n", {"parallel.timeout_s is '0.9'"});
  expect_error("checkpoint: {every_minutes: 1e-9}\n",
               {"checkpoint.every_minutes is '1e-9'", "expected 0 or a number of at least 0.01 as float32"});
  expect_error("training: {loss_spike_z: 0.5}\n", {"training.loss_spike_z is '0.5'", "a number of at least 1"});
  expect_error("training: {loss_spike_z: 0}\n", {"training.loss_spike_z is '0'", "a number of at least 1"});
}

TEST_F(ConfigTest, EnumerationsListWhatIsAllowed) {
  const std::pair<const char*, const char*> cases[] = {
      {"model.preset=llama3_9b", "llama3_8b"},
      {"model.preset=[llama3_8b]", "llama3_405b"},
      {"data.shuffle=random", "lcg, none"},
      {"optimizer.schedule=step", "cosine, linear, constant, wsd, inverse_sqrt"},
      {"optimizer.ema_decay=1", "at least 0 and below 1"},
      {"optimizer.state_dtype=float16", "float32, bfloat16, float8"},
      {"precision.linear=fp8", "fp8_tensorwise, fp8_delayed, fp8_rowwise, fp8_blockwise"},
      {"precision.compute=fp16", "float32, bfloat16"},
      {"precision.reduce=float16", "float32, bfloat16"},
      {"parallel.reshard_after_forward=never", "auto, true, false"},
      {"parallel.accumulate_unsharded=once", "auto, true, false"},
      {"activation_checkpointing.mode=some", "auto, none, selective, block, full"},
      {"device=gpu", "auto, cpu, cuda"}};
  for (const auto& [argument, allowed] : cases) {
    const std::string key(argument, std::string_view(argument).find('='));
    expect_error("device: cpu\n", {key + " is ", "expected", allowed}, {argument});
  }
}

TEST_F(ConfigTest, BadFilesAreNamed) {
  EXPECT_THROW(load_config((dir_ / "absent.yaml").string()), InputError);
  EXPECT_THROW(load_config(dir_.string()), InputError);
  expect_error("", {"small.yaml is empty"});
  expect_error("# nothing but a comment\n", {"small.yaml is empty"});
  expect_error("just text\n", {"small.yaml holds 'just text'", "map of sections"});
  expect_error("- a\n- b\n", {"small.yaml holds a list"});
  expect_error("training:\n  steps: [1, 2\nmodel: {}\n", {"small.yaml, line 3, column", "not valid YAML"});
  expect_error("data:\n  train: [{path: a}, {path: ${HOME}/b}]\n",
               {"small.yaml, line 2, column 30 has ${ without quotes", "\"${NAME}/corpus\""});
  expect_error("device: cpu\n", {"the argument 'data.train=[${HOME}/x]' has ${ without quotes"},
               {"data.train=[${HOME}/x]"});
  expect_error("training:\n\tsteps: 1\n", {"small.yaml, line 2", "not valid YAML"});
  expect_error("training:\n  steps: 1\n  steps: 2\n", {"small.yaml:3", "'steps' is given twice"});
  expect_error("training: {steps: 1}\ntraining: {seed: 2}\n", {"small.yaml:2", "'training' is given twice"});
  expect_error("device: cpu\n---\ndevice: cuda\n", {"more text after its first YAML document"});
  for (const std::string text : {"{device: cpu}, x", "[a], b", "{device: cpu}, x}"}) {
    expect_error(text, {"small.yaml", "expected a single document"});
    expect_error("device: cpu\n", {"data.train", "expected a single document"}, {"data.train=" + text});
  }
  expect_error("data: {tokenizer: \"\xff\"}\n", {":1: the value", "\\xff", "is invalid UTF-8"});
  expect_error("\xc3: 1\n", {":1: the key '\\xc3' is invalid UTF-8"});
  expect_error("? [a]\n: 1\n", {"a key is a list"});
  expect_error("training: &loop\n  steps: *loop\n", {"nested"});
}

TEST_F(ConfigTest, RetiredKeysAreReadFromCheckpointsOnly) {
  expect_error("logging: {links_every: 0}\n", {"small.yaml:1", "logging.links_every was removed", "slow_rank_every"});
  expect_error("parallel: {nccl_max_ctas: 8}\n", {"parallel.nccl_max_ctas was removed", "NCCL_MAX_CTAS"});
  expect_error("parallel: {nccl_memory: copy_engine}\n",
               {"small.yaml:1", "parallel.nccl_memory is copy_engine, which is no longer a valid value", "registered"});
  expect_error("optimizer: {decay: sqrt}\n", {"optimizer.decay was removed", "optimizer.decay_type"});
  expect_error("device: cpu\n", {"command line: training.check_every was removed", "training.corruption_check_every"},
               {"training.check_every=4"});
  // The config has retired keys with their old defaults.
  const Config dumped = load(std::string(kTrainable) +
                             "logging: {links_every: 10}\nparallel: {nccl_max_ctas: 0, nccl_memory: plain, "
                             "overlap_multiprocessors: 0, tensor_parallel_chunks: 1}\n");
  ASSERT_EQ(dumped.notes.size(), 4U);
  EXPECT_EQ(dumped.parallel.nccl_memory, NcclMemory::kPlain);
  expect_mentions(dumped.notes[0], {"logging.links_every was removed and is ignored"});
  // A suggestion never names a retired key.
  for (const char* key : {"link_every", "unheard_of"}) {
    const std::string message = error_of(fmt::format("logging: {{{}: 64}}\n", key));
    EXPECT_EQ(message.find("links_every"), std::string::npos) << message;
  }
  nlohmann::json json = to_json(load(kTrainable));
  const nlohmann::json without = json;
  json["logging"]["links_every"] = 64;
  json["optimizer"]["decay"] = "linear";
  json["parallel"]["nccl_memory"] = "copy_engine";
  EXPECT_EQ(to_json(config_from_json(json)), without);
}

}  // namespace
}  // namespace octavo
