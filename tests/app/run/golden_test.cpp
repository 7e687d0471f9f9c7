// Compares the model and the trainer with Hugging Face transformers in float64 (scripts/make_golden.py): loss,
// gradients, and a run of AdamW or Muon steps. The cases are in tests/golden and $OCTAVO_GOLDEN. Each runs on the CPU
// in float32 and on a GPU in bfloat16.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>

#include "app/config/config_check.h"
#include "app/resolve/resolve.h"
#include "app/run/weights.h"
#include "app/train/training_loop.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weight_source.h"
#include "core/error.h"
#include "data/tokens/token_writer.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

struct GoldenCase {
  fs::path dir;
  Device device;
};

std::vector<GoldenCase> golden_cases() {
  std::vector<fs::path> roots = {fs::path(OCTAVO_SOURCE_DIR) / "tests/golden"};
  if (const char* more = std::getenv("OCTAVO_GOLDEN")) roots.emplace_back(more);
  std::vector<GoldenCase> cases;
  for (const fs::path& root : roots) {
    if (!fs::is_directory(root)) continue;
    for (const auto& entry : fs::directory_iterator(root)) {
      if (!fs::exists(entry.path() / "golden.json")) continue;
      for (const Device device : {Device::kCpu, Device::kCuda}) cases.push_back({entry.path(), device});
    }
  }
  std::sort(cases.begin(), cases.end(), [](const GoldenCase& a, const GoldenCase& b) {
    return std::pair(a.dir, a.device) < std::pair(b.dir, b.device);
  });
  return cases;
}

std::vector<float> read_tensor(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* entry = file.find(name);
  CHECK(entry != nullptr, "{} has no tensor {}", file.path(), name);
  std::vector<float> values(static_cast<size_t>(entry->numel()));
  file.read(*entry, 0, entry->numel(), values.data());
  return values;
}

std::vector<int32_t> read_ids(const SafetensorsFile& file, const std::string& name) {
  // Small ids are exact in float32.
  const std::vector<float> values = read_tensor(file, name);
  return {values.begin(), values.end()};
}

std::vector<float> read_device(const Tensor& tensor, Stream& stream) {
  std::vector<float> host(static_cast<size_t>(tensor.numel()));
  stream.copy(host.data(), tensor.raw(), tensor.bytes());
  stream.synchronize();
  return host;
}

struct Similarity {
  double cosine;
  double norm_ratio;
};

Similarity compare(const std::vector<float>& actual, const std::vector<float>& expected) {
  double dot = 0;
  double aa = 0;
  double ee = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    dot += static_cast<double>(actual[i]) * static_cast<double>(expected[i]);
    aa += static_cast<double>(actual[i]) * static_cast<double>(actual[i]);
    ee += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  return {dot / std::sqrt(aa * ee), std::sqrt(aa / ee)};
}

class GoldenTest : public testing::TestWithParam<GoldenCase> {
 protected:
  void SetUp() override {
    if (on_gpu() && cuda_device_count() == 0) GTEST_SKIP() << "needs a GPU";
    scratch_ = fs::temp_directory_path() / ("octavo_golden_" + std::to_string(getpid()));
    fs::create_directories(scratch_);
    std::ifstream(GetParam().dir / "golden.json") >> golden_;
  }
  void TearDown() override { fs::remove_all(scratch_); }

  bool on_gpu() const { return GetParam().device == Device::kCuda; }

  // Returns a config with the model, the sequences, the document mask and the device of the case, and one micro-batch
  // per step. Everything else is the default.
  Config config() const {
    Config config;
    config.init_from = GetParam().dir.string();
    adopt_model(config, HfWeights(config.init_from).model_config(), config.init_from);
    config.device = on_gpu() ? DeviceChoice::kCuda : DeviceChoice::kCpu;
    config.data.seq_len = golden_.at("seq");
    config.data.document_mask = golden_.value("document_mask", false);
    config.training.global_batch_size = golden_.at("batch");
    config.training.micro_batch_size = golden_.at("batch");
    return config;
  }

  fs::path scratch_;
  nlohmann::json golden_;
};

// Results of one forward and backward of the golden batch.
struct Pass {
  double loss = 0;
  std::map<std::string, Similarity> gradients;  // Similarity with the golden gradient, by parameter.
};

Pass run_golden_batch(Config config, const fs::path& dir) {
  ProcessGroup group;
  const Setting setting = observe_setting(config, group);
  config = setting.run;
  Runtime runtime(setting, group);
  Stream& stream = runtime.stream();
  const Job job = draft(StageConfig(config), setting.place, setting.mesh);
  Arena arena(stream.device(), plan_training(job, runtime.mesh()).used());
  TrainingState state(job, runtime.mesh(), arena);
  HfWeights initial(config.init_from);
  load_initial_weights(config, &initial, state.parameters, stream);
  cast_weights(state);

  const SafetensorsFile file((dir / "golden.safetensors").string());
  Batch batch;
  batch.inputs = read_ids(file, "input_ids");
  batch.targets = read_ids(file, "labels");
  batch.document_start.assign(batch.inputs.size(), 0);
  if (config.data.document_mask) batch.document_start = read_ids(file, "document_start");
  state.batch.upload(batch);
  const auto tokens = static_cast<double>(count_targets(batch.targets));
  state.model.forward_backward(state.batch.micro_batch(0), static_cast<float>(1.0 / tokens), true, true);

  Pass pass;
  for (const float loss : read_device(state.model.losses(), stream)) pass.loss += static_cast<double>(loss) / tokens;
  for (const ParameterSpec& spec : state.layout.specs()) {
    const Tensor grad = parameter_view(state.parameters.gradients(), spec);
    pass.gradients[spec.name] = compare(read_device(grad, stream), read_tensor(file, "grad." + spec.name));
  }
  return pass;
}

TEST_P(GoldenTest, LossAndGradients) {
  const Pass pass = run_golden_batch(config(), GetParam().dir);
  const double expected = golden_.at("loss");
  EXPECT_NEAR(pass.loss, expected, expected * (on_gpu() ? 5e-3 : 1e-5));
  for (const auto& [name, gradient] : pass.gradients) {
    const double least = !on_gpu() ? 0.99999 : name.find("norm") == std::string::npos ? 0.99 : 0.98;
    EXPECT_GE(gradient.cosine, least) << name;
    EXPECT_NEAR(gradient.norm_ratio, 1, on_gpu() ? 0.05 : 1e-4) << name;
  }
}

void expect_close_in_fp8(const Pass& pass, double expected_loss, const char* name) {
  EXPECT_NEAR(pass.loss, expected_loss, expected_loss * 1e-2) << name;
  double least = 1;
  for (const auto& [parameter, gradient] : pass.gradients) {
    if (parameter.find("norm") != std::string::npos) continue;
    EXPECT_GE(gradient.cosine, 0.97) << name << " " << parameter;
    least = std::min(least, gradient.cosine);
  }
  testing::Test::RecordProperty(
      name, fmt::format("loss {:.5f} of {:.5f}, least gradient cosine {:.4f}", pass.loss, expected_loss, least));
  std::cout << name << ": least gradient cosine " << least << "\n";
}

// Tests every FP8 recipe whose block sizes divide the dimensions of the case.
TEST_P(GoldenTest, Fp8LossAndGradients) {
  for (const RecipeTraits& recipe : kRecipes) {
    if (!recipe.fp8) continue;
    Config config = this->config();
    config.precision.linear = recipe.recipe;
    const ModelConfig& m = config.model;
    const int64_t tokens = config.training.micro_batch_size * config.data.seq_len;
    if ((m.hidden_size | m.intermediate_size | m.qkv_width() | tokens) % recipe.alignment != 0) continue;
    const Pass pass = run_golden_batch(config, GetParam().dir);
    expect_close_in_fp8(pass, golden_.at("loss"), recipe.name);
  }
}

// Tests lm_head in FP8 if the dimensions of the case allow it. If only backward is in FP8, the loss has the same bits.
TEST_P(GoldenTest, Fp8HeadLossAndGradients) {
  Config config = this->config();
  const int64_t tokens = config.training.micro_batch_size * config.data.seq_len;
  if ((config.model.hidden_size | tokens) % traits(kLmHeadRecipe).alignment != 0) {
    GTEST_SKIP() << "hidden size " << config.model.hidden_size;
  }
  const double exact = run_golden_batch(config, GetParam().dir).loss;
  for (const LmHeadPrecision lm_head : {LmHeadPrecision::kFp8Backward, LmHeadPrecision::kFp8}) {
    const char* name = traits(lm_head).name;
    config.precision.lm_head = lm_head;
    const Pass pass = run_golden_batch(config, GetParam().dir);
    EXPECT_EQ(pass.loss == exact, lm_head == LmHeadPrecision::kFp8Backward) << name;
    expect_close_in_fp8(pass, golden_.at("loss"), name);
  }
}

// Tests the whole program: token file, loader, trainer and checkpoint.
TEST_P(GoldenTest, Trajectory) {
  const SafetensorsFile file((GetParam().dir / "golden.safetensors").string());
  {
    const std::vector<int32_t> tokens = read_ids(file, "train_tokens");
    std::vector<int32_t> lengths(1, static_cast<int32_t>(tokens.size()));
    if (golden_.value("document_mask", false)) lengths = read_ids(file, "document_lengths");
    TokenFileWriter writer((scratch_ / "tokens").string(), TokenDtype::kU16);
    auto begin = tokens.begin();
    for (const int32_t length : lengths) {
      writer.add_document(std::vector<int32_t>(begin, begin + length));
      begin += length;
    }
    writer.finish();
  }
  Config config = this->config();
  config.data.train = {{.paths = {(scratch_ / "tokens").string()}}};
  config.data.shuffle = Shuffle::kNone;
  config.training.steps = golden_.at("steps");
  config.training.micro_batch_size = 1;  // The steps accumulate gradients.
  const bool muon = golden_.value("optimizer", "adamw") == "muon";
  config.optimizer = {.type = muon ? OptimizerType::kMuon : OptimizerType::kAdamw,
                      .lr = golden_.at("lr"),
                      .min_lr_ratio = golden_.at("min_lr_ratio"),
                      .warmup_steps = golden_.at("warmup"),
                      .schedule = Schedule::kCosine,
                      .momentum = golden_.value("momentum", OptimizerConfig().momentum),
                      .beta1 = golden_.at("beta1"),
                      .beta2 = golden_.at("beta2"),
                      .eps = golden_.at("eps"),
                      .weight_decay = golden_.at("weight_decay"),
                      .grad_clip = golden_.at("clip")};
  config.checkpoint.dir = (scratch_ / "checkpoints").string();
  config.logging = {1, (scratch_ / "run").string(), false};
  {
    ProcessGroup group;
    StartupTimer timer;
    StopSignals signals(group);
    Session session(observe_setting(config, group), group, timer);
    config = session.config;
    Start start;
    const Job job = resolve(config, LiveSite(session.runtime), start.progress);
    Training training(job, session);
    training.load(job, start);
    training.open_log();
    training.warm_up();
    EXPECT_EQ(TrainingLoop(session, training).run(signals).ended, Ended::kDone);
  }
  // AdamW divides a small gradient by its own magnitude, which amplifies rounding. Muon normalizes whole matrices, so
  // single elements matter less.
  const double tolerance = on_gpu() ? 1e-2 : muon ? 1e-6 : 5e-4;
  std::ifstream metrics(scratch_ / "run/metrics.jsonl");
  std::string line;
  for (const auto& expected : golden_.at("trajectory")) {
    ASSERT_TRUE(std::getline(metrics, line));
    const auto actual = nlohmann::json::parse(line);
    EXPECT_EQ(actual.at("step"), expected.at("step"));
    const double loss = expected.at("loss");
    const double grad_norm = expected.at("grad_norm");
    EXPECT_NEAR(actual.at("loss").get<double>(), loss, loss * tolerance) << line;
    EXPECT_NEAR(actual.at("grad_norm").get<double>(), grad_norm, grad_norm * (on_gpu() ? 0.1 : tolerance)) << line;
    EXPECT_NEAR(actual.at("lr").get<double>(), expected.at("lr").get<double>(), 1e-9);
  }
  Checkpoint checkpoint(scratch_ / "checkpoints");
  const SafetensorsFile final((GetParam().dir / "final.safetensors").string());
  const ParameterLayout layout(config.model);
  for (const ParameterSpec& spec : layout.specs()) {
    std::vector<float> actual(static_cast<size_t>(spec.numel()));
    checkpoint.read(spec.name, {}, 0, spec.numel(), actual.data());
    const std::vector<float> expected = read_tensor(final, spec.name);
    double difference = 0;
    double norm = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      difference += std::pow(static_cast<double>(actual[i]) - static_cast<double>(expected[i]), 2);
      norm += std::pow(static_cast<double>(expected[i]), 2);
    }
    EXPECT_LE(std::sqrt(difference / norm), on_gpu() ? 0.1 : muon ? 2e-6 : 1e-3) << spec.name;
  }
}

std::string case_name(const testing::TestParamInfo<GoldenCase>& info) {
  const fs::path& dir = info.param.dir;
  const bool own = fs::exists(dir.parent_path().parent_path() / "app");
  return dir.filename().string() + (own ? "_small" : "") + (info.param.device == Device::kCuda ? "_gpu" : "_cpu");
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GoldenTest);
INSTANTIATE_TEST_SUITE_P(Cases, GoldenTest, testing::ValuesIn(golden_cases()), case_name);

}  // namespace
}  // namespace octavo
