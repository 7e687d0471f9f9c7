// Tests of the checks between config keys, the device and the number of ranks.
#include "app/config/config_check.h"

#include "tests/app/config/config_fixture.h"

namespace octavo {
namespace {

TEST_F(ConfigTest, ChecksBetweenKeys) {
  const Config good = load(kTrainable);
  validate(good, 1);
  validate(good, 8);
  expect_invalid({
      {{"training.micro_batch_size=3"}, {"global_batch_size is 8", "micro_batch_size 3", "= 3; 6 or 9 would work"}},
      {{}, {"times 3 data-parallel ranks = 3; 6 or 9 would work"}, 3},
      {{"training.micro_batch_size=16"}, {"training.global_batch_size is 8", "16"}},
      {{"optimizer.decay_steps=5"}, {"optimizer.decay_steps is 5", "optimizer.schedule is cosine", "wsd"}},
      {{"optimizer.decay_type=sqrt"}, {"optimizer.decay_type is sqrt", "optimizer.schedule is cosine", "wsd"}},
      {{"optimizer.schedule=wsd", "optimizer.decay_steps=95"}, {"decay_steps 95", "exceed training.steps 100"}},
      {{"optimizer.momentum=0.5"}, {"optimizer.momentum is 0.5", "optimizer.type is adamw"}},
      {{"optimizer.state_dtype=float8", "optimizer.betas=[0.95, 0.9]"}, {"betas is [0.95, 0.9]", "state_dtype float8"}},
      {{"data.train=[]"}, {"data.train names no dataset"}},
      {{"data.train=[{path: a, weight: 0}]"}, {"the weights of data.train are all 0"}},
      {{"data.train=[{path: a, name: n}, {path: b, name: n}]"}, {"data.train has two datasets with the name n"}},
      {{"data.bos_id=272"}, {"data.bos_id is 272", "model.vocab_size 272"}},
      {{"data.eos_id=272"}, {"data.eos_id is 272", "model.vocab_size 272"}},
      {{"model.num_kv_heads=3"}, {"model.num_kv_heads is 3", "model.num_heads 4; 2 or 4 would work"}},
      {{"model.num_heads=3", "model.head_dim=64"}, {"a multiple of model.num_heads 3; 126 or 129 would work"}},
      {{"model.head_dim=36"}, {"model.head_dim is 36, expected 32, 64, 80, 96, 128 or 256"}},
      {{"model.head_dim=512"}, {"model.head_dim is 512, expected 32, 64, 80, 96, 128 or 256"}},
      {{"parallel.data_parallel_shard=2"}, {"the 1 ranks of this run; 2 ranks", "parallel.data_parallel_shard 1"}},
      {{"parallel.data_parallel_replicate=2"}, {"parallel.data_parallel_replicate"}},
      {{"parallel.tensor_parallel=2"}, {"parallel.tensor_parallel", "2", "1 rank"}},
  });
}

TEST_F(ConfigTest, ModelIsNeededUnlessTheWeightsBringIt) {
  const auto refusal = [&](const std::string& yaml, Purpose purpose) {
    return error_of(yaml, {}, [&](const Config& config) { validate(config, 1, purpose); });
  };
  const std::string rest = "data: {train: x}\n";
  expect_mentions(refusal(rest, Purpose::kTrain), {"describes no model"});
  for (const char* field : {"hidden_size", "intermediate_size", "num_layers", "num_heads", "vocab_size"}) {
    std::string yaml = kTrainable;
    yaml.replace(yaml.find(field), std::string_view(field).size(), "rope_theta");
    expect_mentions(refusal(yaml.substr(0, yaml.find("data:")) + rest, Purpose::kTrain), {field});
  }
  validate(load(rest, {"model.init_from=hf"}), 1);
  validate(load(rest, {"model.init_from=hf", "model.vocab_size=272"}), 1);
  expect_mentions(refusal(kTrainable, Purpose::kEvaluate), {"data.validation names no dataset"});
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
  const std::string four = "parallel.tensor_parallel=4", three = "parallel.tensor_parallel=3";
  expect_invalid({
      {{three}, {"is 3", "model.num_heads 4; 2 or 4 on another number of ranks would work"}, 3},
      {{four, "model.intermediate_size=254"}, {"is 4", "model.intermediate_size 254; 2 would work"}, 4},
      {{four, "data.seq_len=33"}, {"is 4", "micro_batch_size 1 times data.seq_len 33 = 33; 1 would work"}, 4},
      // The sizes 3 and 6 divide the 6 heads, but not the 8 ranks.
      {{four, "model.num_heads=6", "model.head_dim=64", "model.hidden_size=384", "model.intermediate_size=6",
        "data.seq_len=36"},
       {"is 4", "model.num_heads 6; 2 would work"},
       8},
      {{three, "parallel.data_parallel_shard=2", "parallel.data_parallel_replicate=1"},
       {"is 3", "model.num_heads 4; 2 or 4 on another number of ranks would work"},
       6},
      {{four, "model.intermediate_size=480", "precision.linear=fp8_tensorwise"},
       {"model.intermediate_size", "parallel.tensor_parallel 4 ranks is 120"},
       4},
  });
  for (const int64_t vocab : {17, 272, 277}) {
    validate(load(kTrainable, {four, fmt::format("model.vocab_size={}", vocab)}), 4);
  }
}

TEST_F(ConfigTest, SequencesThatRanksCannotShareAreRefused) {
  const std::string shared = "parallel.context_parallel=3";
  expect_invalid({
      {{shared, "data.seq_len=32"}, {"data.seq_len is 32", "a multiple of 6", "30 or 36 would work"}, 3},
      {{shared, "data.seq_len=34"}, {"data.seq_len is 34", "a multiple of 6", "30 or 36 would work"}, 3},
      {{shared, "data.seq_len=2"}, {"data.seq_len is 2", "a multiple of 6", "; 6 would work"}, 3},
      {{shared, "data.seq_len=36"},
       {"parallel.context_parallel 3", "the 4 ranks", "3 or 6 ranks would work", "parallel.context_parallel 2 or 4"},
       4},
      {{shared, "data.seq_len=54", "parallel.tensor_parallel=4"},
       {"is 4", "data.seq_len 54 over parallel.context_parallel 3 = 18; 2 would work"},
       12},
      {{shared, "data.seq_len=384", "precision.linear=fp8_blockwise"},
       {"data.seq_len is 384", "a multiple of 768", "fp8_blockwise scales 128 tokens", "; 768 would work"},
       3},
  });
  validate(load(kTrainable, {shared, "data.seq_len=36"}), 3);
  validate(load(kTrainable, {shared, "data.seq_len=36", "parallel.tensor_parallel=2"}), 12);
}

TEST_F(ConfigTest, SequencesThatGpusCannotShareAreRefused) {
  const std::string shared = "parallel.context_parallel=2";
  const auto refuse = [&](const std::vector<std::string>& overrides, const std::vector<std::string>& mentions) {
    Config config = load(kTrainable, overrides);
    resolve_device(config, Device::kCpu);
    expect_mentions(error_of(kTrainable, overrides, [](Config some) { resolve_device(some, Device::kCuda); }),
                    mentions);
  };
  refuse({shared, "data.seq_len=640"}, {"data.seq_len is 640", "a multiple of 512", "; 512 or 1024 would work"});
  refuse({"data.seq_len=1"}, {"data.seq_len is 1, expected at least 2 on GPUs"});
  refuse({"stages=[{steps: 50}, {steps: 50, data: {seq_len: 1}}]"}, {"data.seq_len is 1 in stage 2", "at least 2"});
  Config config = load(kTrainable, {shared, "data.seq_len=1024", "data.document_mask=true"});
  resolve_device(config, Device::kCuda);
}

TEST_F(ConfigTest, PipelineStagesThatDoNotFitAreRefused) {
  const std::string stages = "parallel.pipeline_parallel=4", layers = "model.num_layers=4";
  validate(load(kTrainable, {stages, layers, "training.global_batch_size=4"}), 4);
  expect_invalid({
      {{stages, layers, "training.global_batch_size=3"},
       {"training.global_batch_size is 3", "3 micro-batches", "4 pipeline stages", "; 4 would work"},
       4},
      {{stages, layers, "training.batch_size_warmup=[{batch_size: 2, steps: 5}]"},
       {"the batch_size of training.batch_size_warmup is 2", "2 micro-batches"},
       4},
      {{stages, "model.num_layers=3"}, {"parallel.pipeline_parallel is 4", "the 3 blocks", "model.num_layers"}, 4},
      {{"parallel.pipeline_layers=[1, 2]"}, {"parallel.pipeline_layers has 2 numbers"}},
      {{"parallel.pipeline_layers=[3, 0]"}, {"parallel.pipeline_layers is '0'", "an integer from 1 to"}},
      {{"parallel.pipeline_schedule=zero_bubble"}, {"is zero_bubble", "parallel.pipeline_parallel is 1", "at least 2"}},
  });
}

TEST_F(ConfigTest, ChunksOfPipelineStagesThatDoNotFitAreRefused) {
  const std::string stages = "parallel.pipeline_parallel=4", layers = "model.num_layers=10";
  const std::string interleaved = "parallel.pipeline_schedule=interleaved", chunks = "parallel.pipeline_chunks=2";
  validate(load(kTrainable, {stages, layers, interleaved, chunks}), 4);
  expect_invalid({
      {{stages, layers, chunks}, {"pipeline_chunks is 2", "pipeline_schedule is 1f1b", "expected interleaved"}, 4},
      {{stages, layers, interleaved}, {"is interleaved", "parallel.pipeline_chunks is 1", "at least 2"}, 4},
      {{stages, layers, interleaved, "parallel.pipeline_chunks=3"},
       {"parallel.pipeline_chunks is 3", "12 parts", "the 10 blocks", "; 2 would work"},
       4},
      {{stages, "model.num_layers=7", interleaved, chunks}, {"; 1 would work with parallel.pipeline_schedule 1f1b"}, 4},
      {{stages, layers, interleaved, chunks, "training.global_batch_size=6"},
       {"training.global_batch_size is 6", "6 micro-batches", "a multiple of the 4", "; 4 or 8 would work"},
       4},
      {{stages, layers, interleaved, chunks, "training.batch_size_warmup=[{batch_size: 5, steps: 5}]"},
       {"the batch_size of training.batch_size_warmup is 5", "5 micro-batches"},
       4},
  });
}

// Sorting tokens, and GPUs, count the tokens of a micro-batch in 32 bits.
TEST_F(ConfigTest, MicroBatchesOfTooManyTokensAreRefused) {
  std::vector<std::string> keys = {"data.seq_len=16777216", "training.micro_batch_size=128",
                                   "training.global_batch_size=128"};
  expect_invalid({{keys, {"is 2147483648 tokens per rank, expected fewer than 2147483648"}}});
  keys.emplace_back("parallel.context_parallel=2");
  validate(load(kTrainable, keys), 2);
}

TEST_F(ConfigTest, SmallerBatchesAtTheStart) {
  const auto warmup = [](const char* phases) {
    return std::vector<std::string>{"training.global_batch_size=32",
                                    std::string("training.batch_size_warmup=") + phases};
  };
  validate(load(kTrainable, warmup("[{batch_size: 8, steps: 5}, {batch_size: 16, steps: 9}]")), 2);
  expect_invalid({
      {warmup("[{batch_size: 8, steps: 5}, {batch_size: 17, steps: 9}]"), {"is 17", "= 2; 16 or 18 would work"}, 2},
      {warmup("[{batch_size: 8, steps: 5}, {batch_size: 9, steps: 9}]"), {"is 9", "= 2; 10 would work"}, 2},
      {warmup("[{batch_size: 31, steps: 5}]"), {"is 31", "= 2; 30 would work"}, 2},
      {warmup("[{batch_size: 16, steps: 5}, {batch_size: 8, steps: 9}]"), {"the batch_size 8", "increase"}, 2},
      {warmup("{batch_size: 32, steps: 5}"), {"stay below training.global_batch_size 32"}, 2},
      {warmup("[{batch_size: 8}]"), {"expected a list of {batch_size: SEQUENCES, steps: STEPS}"}, 2},
      {warmup("[{batch_size: 8, steps: 0}]"), {"training.batch_size_warmup.steps is '0'"}, 2},
      {warmup("[{batch_size: 8, step: 1}]"), {"training.batch_size_warmup"}, 2},
  });
}

TEST_F(ConfigTest, ShapesThatAnFp8HeadCannotTakeAreRefused) {
  for (const char* precision : {"fp8_backward", "fp8"}) {
    const std::string lm_head = fmt::format("precision.lm_head={}", precision);
    validate(load(kTrainable, {lm_head, "model.vocab_size=275"}), 1);
    validate(load(kTrainable, {lm_head, "model.vocab_size=275", "parallel.tensor_parallel=2"}), 2);
    expect_invalid({
        {{lm_head, "model.hidden_size=120", "model.head_dim=32"},
         {fmt::format("precision.lm_head is {}", precision), "multiples of 16",
          "model.hidden_size is 120; 128 would work"}},
        {{lm_head, "data.seq_len=33"}, {"training.micro_batch_size times data.seq_len) is 33; 48 would"}},
    });
  }
}

TEST_F(ConfigTest, ShapesThatFp8LinearsCannotTakeAreRefused) {
  expect_invalid({
      {{"precision.linear=fp8_tensorwise", "model.intermediate_size=100"},
       {"fp8_tensorwise", "multiples of 16", "100"}},
      {{"precision.linear=fp8_blockwise", "model.intermediate_size=176"}, {"fp8_blockwise", "multiples of 128", "176"}},
  });
  for (const char* mode : {"auto", "none", "selective", "block", "full"})
    validate(load(kTrainable, {fmt::format("activation_checkpointing.mode={}", mode)}), 1);
}

TEST_F(ConfigTest, GpusWithoutKernelsAreRefused) {
  const auto refusal = [](const char* name, int major, int minor, const PrecisionConfig& precision) {
    GpuInfo gpu;
    gpu.name = name;
    gpu.compute_major = major;
    gpu.compute_minor = minor;
    return message_of<InputError>([&] { check_gpu(gpu, precision); });
  };
  const PrecisionConfig fp8{.linear = LinearPrecision::kFp8Rowwise}, plain;
  GpuInfo hopper;
  hopper.compute_major = 9;
  check_gpu(hopper, fp8);
  expect_mentions(refusal("NVIDIA A100", 8, 0, fp8),
                  {"compute capability 8.0", "no FP8", "precision.linear fp8_rowwise"});
  expect_mentions(refusal("NVIDIA A100", 8, 0, {.lm_head = LmHeadPrecision::kFp8}),
                  {"no FP8", "precision.lm_head fp8"});
  expect_mentions(refusal("NVIDIA A100", 8, 0, plain), {"NVIDIA A100", "compute capability 8.0"});
  EXPECT_EQ(refusal("NVIDIA A100", 8, 0, plain).find("FP8 for"), std::string::npos);
  EXPECT_EQ(refusal("NVIDIA L40S", 8, 9, fp8).find("no FP8"), std::string::npos);
}

TEST_F(ConfigTest, DeviceDecidesTheDefaultPrecision) {
  const auto compute = [&](Device device, const std::vector<std::string>& overrides) {
    Config config = load(kTrainable, overrides);
    resolve_device(config, device);
    EXPECT_EQ(config.device, device == Device::kCpu ? DeviceChoice::kCpu : DeviceChoice::kCuda);
    return config.precision.compute;
  };
  EXPECT_EQ(compute(Device::kCpu, {}), DType::kFloat32);
  EXPECT_EQ(compute(Device::kCuda, {}), DType::kBFloat16);
  EXPECT_EQ(compute(Device::kCpu, {"precision.compute=bfloat16"}), DType::kBFloat16);
  EXPECT_THROW(compute(Device::kCuda, {"precision.compute=float32"}), InputError);
}

TEST(ParallelConfigTest, DataParallelRanks) {
  EXPECT_EQ((ParallelConfig{-1, 1, 1}.data_parallel_ranks(8)), 8);
  EXPECT_EQ((ParallelConfig{-1, 2, 1}.data_parallel_ranks(8)), 8);
  EXPECT_EQ((ParallelConfig{2, 2, 2}.data_parallel_ranks(8)), 4);
  EXPECT_EQ((ParallelConfig{1, 4, 1}.data_parallel_ranks(4)), 4);
  for (const ParallelConfig& wrong : {ParallelConfig{-1, 3, 1}, {3, 1, 1}, {0, 1, 1}, {-1, 0, 1}, {-1, 1, -1}})
    EXPECT_THROW(wrong.data_parallel_ranks(8), InputError);
}

}  // namespace
}  // namespace octavo
