// Tests of the checks between config keys, the device and the number of ranks.
#include "app/config/config_check.h"

#include "tests/app/config/config_fixture.h"

namespace octavo {
namespace {

TEST_F(ConfigTest, ChecksBetweenKeys) {
  const Config good = load(kTrainable);
  validate(good, 1);
  validate(good, 8);
  expect_invalid({"training.micro_batch_size=3"},
                 "training.global_batch_size is 8, expected a multiple of training.micro_batch_size 3 times 1 "
                 "data-parallel ranks = 3; 6 or 9 would work");
  expect_invalid({}, "times 3 data-parallel ranks = 3; 6 or 9 would work", 3);
  expect_invalid({"optimizer.decay_steps=5"}, "optimizer.schedule is cosine");
  expect_invalid({"optimizer.momentum=0.5"},
                 "optimizer.momentum is 0.5, but optimizer.type is adamw, which has no momentum; leave the key out");
  expect_invalid({"optimizer.state_dtype=float8", "optimizer.betas=[0.95, 0.9]"},
                 "the maximum of optimizer.state_dtype float8");
  expect_invalid({"optimizer.decay_type=sqrt"}, "optimizer.schedule is cosine");
  expect_invalid({"optimizer.schedule=wsd", "optimizer.decay_steps=95"}, "together exceed training.steps 100");
  expect_invalid({"data.train=[]"}, "data.train names no dataset");
  expect_invalid({"data.train=[{path: a, weight: 0}]"}, "the weights of data.train are all 0");
  expect_invalid({"data.eos_id=272"}, "data.eos_id is 272, expected a token below model.vocab_size 272");
  expect_invalid({"model.num_kv_heads=3"},
                 "model.num_kv_heads is 3, expected a divisor of model.num_heads 4; 2 or 4 would work");
  expect_invalid({"model.num_heads=3", "model.head_dim=64"},
                 "expected a multiple of model.num_heads 3; 126 or 129 would work");
  expect_invalid({"model.head_dim=48"}, "model.head_dim is 48, expected 32, 64 or 128");
  expect_invalid({"model.intermediate_size="}, "model.intermediate_size is empty");
  expect_invalid(
      {"parallel.data_parallel_shard=2"},
      "which does not divide the 1 ranks of this run; 2 ranks would work, or parallel.data_parallel_shard 1");
}

TEST_F(ConfigTest, ModelIsNeededUnlessTheWeightsBringIt) {
  const std::string rest = "data: {train: x}\n";
  const std::string message = error_of(rest, {}, [](const Config& config) { validate(config, 1); });
  EXPECT_NE(message.find("describes no model"), std::string::npos) << message;
  validate(load(rest, {"model.init_from=hf"}), 1);
  validate(load(rest, {"model.init_from=hf", "model.vocab_size=272"}), 1);
  const std::string no_validation =
      error_of(kTrainable, {}, [](const Config& config) { validate(config, 1, Purpose::kEvaluate); });
  EXPECT_NE(no_validation.find("data.validation names no dataset"), std::string::npos) << no_validation;
  validate(load(kTrainable, {"data.train="}), 1, Purpose::kSynthetic);
}

TEST_F(ConfigTest, AdoptedModelMustAgreeWithStatedFields) {
  const ModelConfig weights = model_preset("llama3_1b");
  Config config = load("model: {init_from: hf, vocab_size: 128256, head_dim: 64}\n");
  EXPECT_FALSE(config.model_complete());
  adopt_model(config, weights, config.init_from);
  EXPECT_TRUE(config.model == weights);
  EXPECT_TRUE(config.model_complete());
  Config other = load("model: {init_from: hf, preset: llama3_1b, rope_scaling: null}\n");
  EXPECT_THROW(adopt_model(other, weights, other.init_from), InputError);
}

TEST_F(ConfigTest, TensorParallelSizesThatDoNotDivideAreRefused) {
  expect_invalid({"parallel.tensor_parallel=3"},
                 "parallel.tensor_parallel is 3, expected a divisor of model.num_heads 4; 2 or 4 on another number of "
                 "ranks would work",
                 3);
  expect_invalid({"parallel.tensor_parallel=4", "model.intermediate_size=254"},
                 "parallel.tensor_parallel is 4, expected a divisor of model.intermediate_size 254; 2 would work", 4);
  expect_invalid({"parallel.tensor_parallel=4", "model.vocab_size=274"},
                 "parallel.tensor_parallel is 4, expected a divisor of model.vocab_size 274; 2 would work", 4);
  expect_invalid({"parallel.tensor_parallel=4", "data.seq_len=33"},
                 "parallel.tensor_parallel is 4, expected a divisor of the tokens of a micro-batch, "
                 "training.micro_batch_size 1 times data.seq_len 33 = 33; 1 would work",
                 4);
  // The sizes 3 and 6 divide the 6 heads, but not the 8 ranks.
  expect_invalid({"parallel.tensor_parallel=4", "model.num_heads=6", "model.head_dim=64", "model.hidden_size=384",
                  "model.intermediate_size=6", "model.vocab_size=276", "data.seq_len=36"},
                 "is 4, expected a divisor of model.num_heads 6; 2 would work", 8);
  expect_invalid({"parallel.tensor_parallel=3", "parallel.data_parallel_shard=2", "parallel.data_parallel_replicate=1"},
                 "is 3, expected a divisor of model.num_heads 4; 2 or 4 on another number of ranks would work", 6);
  expect_invalid({"parallel.tensor_parallel=4", "model.intermediate_size=480", "precision.linear=fp8_tensorwise"},
                 "model.intermediate_size, the input width of down, on each of parallel.tensor_parallel 4 ranks is 120",
                 4);
  validate(load(kTrainable, {"parallel.tensor_parallel=4"}), 4);
}

TEST_F(ConfigTest, SequencesThatRanksCannotShareAreRefused) {
  const auto keys = [](const char* seq_len, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"parallel.context_parallel=3", std::string("data.seq_len=") + seq_len});
    return more;
  };
  const std::string sentence =
      "expected a multiple of 6 with parallel.context_parallel 3, because each context-parallel rank has two equal "
      "chunks of a sequence; ";
  expect_invalid(keys("32"), "data.seq_len is 32, " + sentence + "30 or 36 would work", 3);
  expect_invalid(keys("34"), "data.seq_len is 34, " + sentence + "30 or 36 would work", 3);
  expect_invalid(keys("2"), "data.seq_len is 2, " + sentence + "6 would work", 3);
  expect_invalid(keys("36"),
                 "parallel.context_parallel 3 times parallel.tensor_parallel 1 is 3, which does not divide the 4 ranks "
                 "of this run; 3 or 6 ranks would work, or parallel.context_parallel 2 or 4",
                 4);
  expect_invalid(
      keys("54", {"parallel.tensor_parallel=4"}),
      "is 4, expected a divisor of the tokens of a micro-batch, training.micro_batch_size 1 times data.seq_len "
      "54 over parallel.context_parallel 3 = 18; 2 would work",
      12);
  expect_invalid(keys("384", {"precision.linear=fp8_blockwise"}),
                 "data.seq_len is 384, expected a multiple of 768 with parallel.context_parallel 3, because each "
                 "context-parallel rank has two equal chunks of a sequence, and fp8_blockwise scales 128 tokens at a "
                 "time; 768 would work",
                 3);
  validate(load(kTrainable, keys("36")), 3);
  validate(load(kTrainable, keys("36", {"parallel.tensor_parallel=2", "training.global_batch_size=8"})), 12);
}

TEST_F(ConfigTest, SequencesThatGpusCannotShareAreRefused) {
  const auto refuse = [&](const std::vector<std::string>& overrides, const std::string& message) {
    Config config = load(kTrainable, overrides);
    resolve_device(config, Device::kCpu);
    const std::string found = error_of(kTrainable, overrides, [](const Config& some) {
      Config on_gpu = some;
      resolve_device(on_gpu, Device::kCuda);
    });
    EXPECT_NE(found.find(message), std::string::npos) << found;
  };
  refuse({"parallel.context_parallel=2", "data.seq_len=640"},
         "data.seq_len is 640, expected a multiple of 512 with parallel.context_parallel 2, because each "
         "context-parallel rank has two equal chunks of a sequence, which consist of whole tiles of 128 tokens on "
         "GPUs; 512 or 1024 would work");
  refuse({"data.seq_len=1"}, "data.seq_len is 1, expected at least 2 on GPUs");
  refuse({"stages=[{steps: 50}, {steps: 50, data: {seq_len: 1}}]"},
         "data.seq_len is 1 in stage 2, expected at least 2");
  Config config = load(kTrainable, {"parallel.context_parallel=2", "data.seq_len=1024", "data.document_mask=true"});
  resolve_device(config, Device::kCuda);
}

TEST_F(ConfigTest, PipelineStagesThatDoNotFitAreRefused) {
  const std::string stages = "parallel.pipeline_parallel=4";
  validate(load(kTrainable, {stages, "model.num_layers=4", "training.global_batch_size=4"}), 4);
  expect_invalid({stages, "model.num_layers=4", "training.global_batch_size=3"},
                 "training.global_batch_size is 3, which is 3 micro-batches per rank and step, expected at least one "
                 "for each of the 4 pipeline stages of parallel.pipeline_parallel; 4 would work",
                 4);
  expect_invalid({stages, "model.num_layers=4", "training.global_batch_size=8",
                  "training.batch_size_warmup=[{batch_size: 2, steps: 5}]"},
                 "the batch_size of training.batch_size_warmup is 2, which is 2 micro-batches", 4);
  expect_invalid({stages, "model.num_layers=3", "training.global_batch_size=4"},
                 "parallel.pipeline_parallel is 4, expected at most the 3 blocks of the model (model.num_layers)", 4);
  expect_invalid({"parallel.pipeline_layers=[1, 2]"}, "parallel.pipeline_layers has 2 numbers, expected one for each");
  expect_error("parallel: {pipeline_layers: [3, 0]}",
               {"parallel.pipeline_layers is '0', expected a list, each item an integer from 1 to"});
  expect_invalid({"parallel.pipeline_schedule=zero_bubble"},
                 "parallel.pipeline_schedule is zero_bubble, but parallel.pipeline_parallel is 1, expected at least 2");
}

TEST_F(ConfigTest, ChunksOfPipelineStagesThatDoNotFitAreRefused) {
  const std::string stages = "parallel.pipeline_parallel=4";
  const std::string layers = "model.num_layers=10";
  const std::string batch = "training.global_batch_size=8";
  const std::string interleaved = "parallel.pipeline_schedule=interleaved";
  const std::string chunks = "parallel.pipeline_chunks=2";
  validate(load(kTrainable, {stages, layers, batch, interleaved, chunks}), 4);
  expect_invalid(
      {stages, layers, batch, chunks},
      "parallel.pipeline_chunks is 2, but parallel.pipeline_schedule is 1f1b, expected interleaved, the only "
      "schedule with several chunks",
      4);
  expect_invalid({stages, layers, batch, interleaved},
                 "parallel.pipeline_schedule is interleaved, but parallel.pipeline_chunks is 1, expected at least 2",
                 4);
  expect_invalid({stages, layers, batch, interleaved, "parallel.pipeline_chunks=3"},
                 "parallel.pipeline_chunks is 3, which divides the model into 12 parts on the 4 stages of "
                 "parallel.pipeline_parallel, expected at most the 10 blocks of the model (model.num_layers); 2 would "
                 "work",
                 4);
  expect_invalid({stages, "model.num_layers=7", batch, interleaved, chunks},
                 "; 1 would work with parallel.pipeline_schedule 1f1b", 4);
  expect_invalid({stages, layers, interleaved, chunks, "training.global_batch_size=6"},
                 "training.global_batch_size is 6, which is 6 micro-batches per rank and step, expected a multiple of "
                 "the 4 pipeline stages of parallel.pipeline_parallel, because parallel.pipeline_schedule is "
                 "interleaved; 4 or 8 would work",
                 4);
  expect_invalid({stages, layers, batch, interleaved, chunks, "training.batch_size_warmup=[{batch_size: 5, steps: 5}]"},
                 "the batch_size of training.batch_size_warmup is 5, which is 5 micro-batches", 4);
}

// Sorting tokens, and GPUs, count the tokens of a micro-batch in 32 bits.
TEST_F(ConfigTest, MicroBatchesOfTooManyTokensAreRefused) {
  const std::vector<std::string> keys = {"data.seq_len=16777216", "training.micro_batch_size=128",
                                         "training.global_batch_size=128"};
  expect_invalid(keys, "is 2147483648 tokens per rank, expected fewer than 2147483648");
  std::vector<std::string> shared = keys;
  shared.push_back("parallel.context_parallel=2");
  validate(load(kTrainable, shared), 2);
}

TEST_F(ConfigTest, SmallerBatchesAtTheStart) {
  const auto warmup = [](const char* phases) { return std::string("training.batch_size_warmup=") + phases; };
  const std::string batch = "training.global_batch_size=32";
  validate(load(kTrainable, {batch, warmup("[{batch_size: 8, steps: 5}, {batch_size: 16, steps: 9}]")}), 2);
  expect_invalid({batch, warmup("[{batch_size: 8, steps: 5}, {batch_size: 17, steps: 9}]")},
                 "the batch_size of training.batch_size_warmup is 17, expected a multiple of "
                 "training.micro_batch_size 1 times 2 data-parallel ranks = 2; 16 or 18 would work",
                 2);
  expect_invalid({batch, warmup("[{batch_size: 8, steps: 5}, {batch_size: 9, steps: 9}]")},
                 "data-parallel ranks = 2; 10 would work", 2);
  expect_invalid({batch, warmup("[{batch_size: 31, steps: 5}]")}, "data-parallel ranks = 2; 30 would work", 2);
  expect_invalid({batch, warmup("[{batch_size: 16, steps: 5}, {batch_size: 8, steps: 9}]")},
                 "training.batch_size_warmup has the batch_size 8, expected sizes that increase", 2);
  expect_invalid({batch, warmup("{batch_size: 32, steps: 5}")}, "stay below training.global_batch_size 32", 2);
  expect_invalid({batch, warmup("[{batch_size: 8}]")}, "expected a list of {batch_size: SEQUENCES, steps: STEPS}", 2);
  expect_invalid({batch, warmup("[{batch_size: 8, steps: 0}]")}, "training.batch_size_warmup.steps is '0'", 2);
  expect_invalid({batch, warmup("[{batch_size: 8, step: 1}]")}, "training.batch_size_warmup", 2);
}

TEST_F(ConfigTest, ShapesThatAnFp8HeadCannotTakeAreRefused) {
  for (const char* precision : {"fp8_backward", "fp8"}) {
    const std::string lm_head = fmt::format("precision.lm_head={}", precision);
    validate(load(kTrainable, {lm_head}), 1);
    validate(load(kTrainable, {lm_head, "parallel.tensor_parallel=2", "model.vocab_size=288"}), 2);
    expect_invalid({lm_head, "parallel.tensor_parallel=2"},
                   fmt::format("precision.lm_head is {}, which needs multiples of 16, but model.vocab_size on each of "
                               "parallel.tensor_parallel 2 ranks is 136; 288 would work, or bfloat16",
                               precision),
                   2);
    expect_invalid({lm_head, "model.vocab_size=275"}, "but model.vocab_size is 275; 288 would work");
    expect_invalid({lm_head, "model.hidden_size=120", "model.head_dim=32"},
                   "but model.hidden_size is 120; 128 would work");
    expect_invalid({lm_head, "data.seq_len=33"},
                   "but the tokens of a micro-batch (training.micro_batch_size times data.seq_len) is 33; 48 would");
  }
  validate(load(kTrainable, {"model.vocab_size=275"}), 1);
}

TEST_F(ConfigTest, WhatNoRunCanDoIsRefusedByName) {
  expect_invalid({"precision.linear=fp8_tensorwise", "model.intermediate_size=100"},
                 "precision.linear is fp8_tensorwise, which needs multiples of 16");
  expect_invalid({"precision.linear=fp8_blockwise", "model.intermediate_size=176"},
                 "precision.linear is fp8_blockwise, which needs multiples of 128");
  expect_invalid({"parallel.reshard_after_forward=never"}, "parallel.reshard_after_forward is 'never'");
  expect_invalid({"parallel.accumulate_unsharded=once"},
                 "parallel.accumulate_unsharded is 'once', expected one of auto, true, false");
  expect_invalid({"activation_checkpointing.mode=some"}, "activation_checkpointing.mode is 'some'");
  for (const char* mode : {"auto", "none", "selective", "block", "full"}) {
    validate(load(kTrainable, {fmt::format("activation_checkpointing.mode={}", mode)}), 1);
  }
}

GpuInfo gpu_of(const char* name, int major, int minor) {
  GpuInfo gpu;
  gpu.name = name;
  gpu.compute_major = major;
  gpu.compute_minor = minor;
  return gpu;
}

TEST_F(ConfigTest, GpusWithoutKernelsAreRefused) {
  GpuInfo gpu = gpu_of("NVIDIA H200", 9, 0);
  check_gpu(gpu, {.linear = LinearPrecision::kFp8Tensorwise});
  const auto message_of = [&](const PrecisionConfig& precision) -> std::string {
    try {
      check_gpu(gpu, precision);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  const auto message = [&](LinearPrecision linear) { return message_of({.linear = linear}); };
  gpu = gpu_of("NVIDIA A100", 8, 0);
  EXPECT_NE(message(LinearPrecision::kFp8Rowwise).find("no FP8 for the linears of precision.linear fp8_rowwise"),
            std::string::npos);
  EXPECT_EQ(message(LinearPrecision::kBFloat16).find("FP8 for"), std::string::npos);
  EXPECT_NE(message_of({.lm_head = LmHeadPrecision::kFp8}).find("no FP8 for precision.lm_head fp8"), std::string::npos);
  EXPECT_NE(message(LinearPrecision::kBFloat16).find("NVIDIA A100 has compute capability 8.0"), std::string::npos);
  gpu = gpu_of("NVIDIA L40S", 8, 9);
  EXPECT_EQ(message(LinearPrecision::kFp8Rowwise).find("no FP8"), std::string::npos);
}

TEST_F(ConfigTest, DeviceDecidesTheDefaultPrecision) {
  Config config = load(kTrainable);
  resolve_device(config, Device::kCpu);
  EXPECT_EQ(config.precision.compute, DType::kFloat32);
  EXPECT_EQ(config.device, DeviceChoice::kCpu);
  config = load(kTrainable);
  resolve_device(config, Device::kCuda);
  EXPECT_EQ(config.precision.compute, DType::kBFloat16);
  config = load(kTrainable, {"precision.compute=bfloat16"});
  resolve_device(config, Device::kCpu);
  EXPECT_EQ(config.precision.compute, DType::kBFloat16);
  config = load(kTrainable, {"precision.compute=float32"});
  EXPECT_THROW(resolve_device(config, Device::kCuda), InputError);
}

TEST(ParallelConfigTest, DataParallelRanks) {
  EXPECT_EQ((ParallelConfig{-1, 1, 1}.data_parallel_ranks(8)), 8);
  EXPECT_EQ((ParallelConfig{-1, 2, 1}.data_parallel_ranks(8)), 8);
  EXPECT_EQ((ParallelConfig{2, 2, 2}.data_parallel_ranks(8)), 4);
  EXPECT_EQ((ParallelConfig{1, 4, 1}.data_parallel_ranks(4)), 4);
  EXPECT_THROW((ParallelConfig{-1, 3, 1}.data_parallel_ranks(8)), InputError);
  EXPECT_THROW((ParallelConfig{3, 1, 1}.data_parallel_ranks(8)), InputError);
  EXPECT_THROW((ParallelConfig{0, 1, 1}.data_parallel_ranks(8)), InputError);
  EXPECT_THROW((ParallelConfig{-1, 0, 1}.data_parallel_ranks(8)), InputError);
  EXPECT_THROW((ParallelConfig{-1, 1, -1}.data_parallel_ranks(8)), InputError);
}

}  // namespace
}  // namespace octavo
