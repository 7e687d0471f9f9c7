// Fixture of tests that run a tiny training on the CPU with its own data.
#pragma once

#include <limits>
#include <utility>

#include "app/resolve/resolve.h"
#include "app/run/weights.h"
#include "app/train/training.h"
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

// The process of a run.
struct RunProcess {
  explicit RunProcess(const Config& of_run) : session(observe_setting(of_run, group), group, timer) {}

  ProcessGroup group;
  StartupTimer timer;
  Session session;
  const Config& config = session.config;
  Runtime& runtime = session.runtime;
  DiskCheckpoints& checkpoints = session.checkpoints;
  MemoryCheckpoints& memory_checkpoints = session.memory_checkpoints;
  const LiveSite site{runtime};

  Job job(const Progress& progress = {}) { return resolve(config, site, progress); }
};

// A job of a process that has loaded its state and takes steps one by one.
struct SteppedJob {
  explicit SteppedJob(RunProcess& of, Start start = {}) : process(of), training(of.job(start.progress), of.session) {
    go_on(std::move(start));
  }

  // Begins the next job of the stage.
  void go_on(Start start) {
    training.load(process.job(start.progress), start);
    step = training.start().step;
    loader_state = training.start().loader_state;
  }
  Step take_step() {
    Step next = training.next_batch(++step);
    loader_state = next.loader_state;
    training.queue_step(std::move(next), std::numeric_limits<float>::infinity());
    return training.pop_step();
  }
  // Returns the progress after the last step.
  Progress progress() const {
    Progress progress = training.start();
    progress.step = step;
    progress.tokens = training.tokens_seen(step);
    progress.loader_state = loader_state;
    return progress;
  }
  void save() {
    training.save(progress(), Save::kOnDisk);
    process.checkpoints.finish();
  }

  RunProcess& process;
  Training training;
  int64_t step = 0;
  nlohmann::json loader_state;
};

// A process that saves the state of a model without training it.
struct SavingProcess : RunProcess {
  using RunProcess::RunProcess;

  TrainingModel model{job(), false, runtime};
  std::vector<CheckpointTensor> pieces = saved_tensors(model.state(), runtime);
  std::vector<TensorPart> needed = loaded_parts(job(), runtime.mesh());
  // Marks the checkpoint as imported, so that no loader state is expected.
  nlohmann::json meta = {{"imported_from", "a test"}};
};

}  // namespace octavo
