#include "app/log/start_screen.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/format.h"
#include "tests/core/messages.h"

namespace octavo {
namespace {

TEST(LabeledLines, CutsAtSpaces) {
  EXPECT_EQ(labeled_lines("steps", "1 to 9"), std::vector<std::string>{"  steps       1 to 9"});
  EXPECT_EQ(labeled_lines("", "a  b "), std::vector<std::string>{"              a  b"})
      << "the spaces between columns stay";
  std::string text;
  for (int i = 0; i < 60; ++i) text += "word ";
  const std::vector<std::string> lines = labeled_lines("data", text);
  EXPECT_EQ(lines.size(), 4u);
  for (const std::string& line : lines) EXPECT_LE(line.size(), 100u);
  EXPECT_EQ(lines[1].substr(0, 19), "              word ");
  const std::string path = labeled_lines("", fmt::format("{:x>200}/end", "")).front();
  EXPECT_EQ(path.size(), 100u);
  EXPECT_TRUE(path.starts_with("              ...xxx") && path.ends_with("x/end")) << path;
}

class StartScreenTest : public testing::Test {
 protected:
  StartScreenTest() {
    config_.model = model();
    config_.training = {.steps = 900, .global_batch_size = 8, .micro_batch_size = 4};
    config_.stage.run_steps = 900;
    config_.data.seq_len = 256;
    config_.logging.dir = "runs/mine";
    config_.activation_checkpointing.mode = ActivationCheckpointing::Mode::kNone;
    job_.memory = {.arena_bytes = 3 * kGiB, .budget = {.available = 16 * kGiB, .outside = 0, .margin = kGiB}};
  }

  static ModelConfig model() {
    return {.hidden_size = 128,
            .intermediate_size = 352,
            .num_layers = 4,
            .num_heads = 2,
            .num_kv_heads = 1,
            .head_dim = 64,
            .vocab_size = 272,
            .rope_scaling = std::nullopt};
  }

  StartFacts facts() {
    job_.stated = config_;
    return {.job = job_,
            .runs_on = "1 rank on cpu, 1 thread each",
            .datasets = {{"text", 683'000, 3, 0, 0.25}, {"a_longer_name", 1'025'997, 1, 0, 1.5}},
            .validation = {},
            .resumes_from = "",
            .time = "not predicted"};
  }

  static std::string screen(const StartFacts& facts) {
    std::string text;
    for (const std::string& line : start_screen(facts)) {
      EXPECT_LE(line.size(), 100u) << line;
      text += line + "\n";
    }
    return text;
  }

  Job job_;
  StageConfig& config_ = job_.config;
};

TEST(StartTitle, HasTheEndOfALongPath) {
  EXPECT_EQ(start_title("c.yaml"), "octavo train c.yaml");
  const std::string title = start_title(fmt::format("{:x>200}/c.yaml", ""));
  EXPECT_EQ(title.size(), 100u);
  EXPECT_TRUE(title.starts_with("octavo train ...x") && title.ends_with("x/c.yaml")) << title;
}

TEST_F(StartScreenTest, HasARowPerTopicWithItsNumbers) {
  const std::string text = screen(facts());
  for (const char* part :
       {"  model       808K parameters: 4 layers, hidden 128, ", "  weights     random, seed 42\n",
        "text             683,000 tokens  weight  75.0%  epochs 0.000 to 0.250\n",
        "  documents: no separators inserted", "  validation  none\n",
        "1 to 900, each 8 x 256 = 2,048 tokens: 1,843,200 tokens\n",
        "200 steps of warm-up to 0.0003, 3e-05 at step 900; weight decay 0.1", "; 2 micro-batches of 4\n",
        "3.00 GiB per rank planned, of 16.0; 1.0 kept free; activation checkpointing: none\n",
        "  time        not predicted\n", "at the end; the last 3 are kept\n", "  run folder  runs/mine: "}) {
    expect_mentions(text, {part});
  }
}

TEST_F(StartScreenTest, FollowsTheConfigAndTheProgress) {
  config_.training.batch_size_warmup = {{.batch_size = 4, .steps = 899}};
  expect_mentions(screen(facts()), {" 1 to 900, in the end 8 x 256 = 2,048 tokens: "});
  config_.training.batch_size_warmup[0].steps = 900;
  expect_mentions(screen(facts()), {" 1 to 900, in the end 4 x 256 = 1,024 tokens: "});
  config_.training.batch_size_warmup.clear();
  config_.parallel.reshard_after_forward = config_.parallel.accumulate_unsharded = AutoBool::kTrue;
  config_.checkpoint.keep = 0;
  config_.data.eos_id = 1;
  StartFacts resumed = facts();
  resumed.resumes_from = "checkpoints/step_00000300";
  job_.mesh.shape.shard = 2;
  resumed.step = 300;
  resumed.tokens = 614'400;
  const std::string text = screen(resumed);
  for (const char* part :
       {" weights gathered again in backward, gradients reduced once per step\n", "all are kept\n",
        "; 1 micro-batch of 4\n", "documents: bos none, eos 1\n", "  weights     of step 300, 614,400 tokens\n",
        "301 to 900, each 8 x 256 = 2,048 tokens: 1,228,800 tokens more, 1,843,200 in all\n"}) {
    expect_mentions(text, {part});
  }
}

TEST_F(StartScreenTest, OfAFallbackToBFloat16) {
  config_.precision.linear = LinearPrecision::kFp8Tensorwise;
  const StartFacts in_fp8 = facts();
  expect_mentions(screen(in_fp8), {"  recipe      fp8_tensorwise linears; "});
  job_ = in_other_precision(job_);
  expect_mentions(screen(in_fp8),
                  {"  recipe      fp8_tensorwise linears; ", "because precision.guard fell back to it"});
}

TEST_F(StartScreenTest, OfManyLongNames) {
  StartFacts many = facts();
  many.datasets.clear();
  for (int d = 0; d < 25; ++d) {
    many.datasets.push_back(
        {fmt::format("{:n>90}{}", "", d), int64_t{1'000'000'000'000} * (d + 1), static_cast<double>(d), 0, 0.1 * d});
  }
  const std::string text = screen(many);
  expect_mentions(text, {"nnn24  25,000,000,000,000 tokens"});
  expect_mentions(text, {"and 15 more, 120,000,000,000,000 tokens\n"});
}

}  // namespace
}  // namespace octavo
