// Fixture of tests that run a tiny training on the CPU with its own data.
#pragma once

#include "app/memory/resolve.h"
#include "app/memory/training_model.h"
#include "app/process/runtime.h"
#include "app/process/startup_timer.h"
#include "app/run/disk_checkpoints.h"
#include "app/run/memory_checkpoints.h"
#include "app/run/weights.h"
#include "data/tokens/token_writer.h"
#include "tests/app/config/config_fixture.h"

namespace octavo {

class RunTest : public ConfigTest {
 protected:
  void SetUp() override {
    ConfigTest::SetUp();
    TokenFileWriter writer((dir_ / "corpus").string(), TokenDtype::kU16);
    uint32_t x = 1;
    for (int64_t document = 0; document < 40; ++document) {
      std::vector<int32_t> tokens(300);
      for (int32_t& token : tokens) token = static_cast<int32_t>((x = x * 1664525u + 1013904223u) >> 24);
      writer.add_document(tokens);
    }
    writer.finish();
  }

  Config run_config(const std::vector<std::string>& overrides = {}) const {
    const std::string yaml = fmt::format(
        "model: {{hidden_size: 64, intermediate_size: 96, num_layers: 2, num_heads: 2, num_kv_heads: 1, head_dim: 32, "
        "vocab_size: 272}}\n"
        "data: {{train: [{{path: {0}/corpus}}], seq_len: 32, bos_id: 256, eos_id: 257}}\n"
        "training: {{steps: 24, global_batch_size: 4, micro_batch_size: 2}}\n"
        "optimizer: {{lr: 3e-3, warmup_steps: 2}}\n"
        "checkpoint: {{dir: {0}/checkpoints, every: 0}}\n"
        "logging: {{every: 1, dir: {0}/log, tensorboard: false}}\n"
        "device: cpu\n",
        dir_.string());
    Config config = load(yaml, overrides);
    validate(config, 1);
    return config;
  }
};

// Config, ranks and devices of the process of a run.
struct RunProcess {
  explicit RunProcess(const Config& of_run) : setting(observe_setting(of_run, group)), runtime(setting, group) {}

  ProcessGroup group;
  const Setting setting;
  Config config{setting.run};
  Runtime runtime;
  StartupTimer timer;
  DiskCheckpoints checkpoints{config, runtime};
  MemoryCheckpoints memory_checkpoints{config, runtime};

  Job job() { return job(config); }
  Job job(const Config& stage) { return resolve(stage, LiveSite(runtime)); }
};

// A process that saves the state of a model without training it.
struct SavingProcess : RunProcess {
  using RunProcess::RunProcess;

  TrainingModel model{job(), false, runtime};
  std::vector<CheckpointTensor> pieces = saved_tensors(model.state(), runtime);
  std::vector<TensorPart> needed = loaded_parts(model.state());
  // Marks the checkpoint as imported, so that no loader state is expected.
  nlohmann::json meta = {{"imported_from", "a test"}};
};

}  // namespace octavo
