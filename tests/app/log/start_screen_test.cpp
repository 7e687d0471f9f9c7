#include "app/log/start_screen.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/format.h"

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
  StartScreenTest()
      : layout_(model(), {}), options_{.config = config_, .layout = layout_, .local_batch = 8, .sharding = {}} {
    config_.model = model();
    config_.training = {.steps = 900, .global_batch_size = 8, .micro_batch_size = 4};
    config_.data.seq_len = 256;
    config_.logging.dir = "runs/mine";
  }

  static ModelConfig model() {
    ModelConfig model;
    model.hidden_size = 128;
    model.intermediate_size = 352;
    model.num_layers = 4;
    model.num_heads = 2;
    model.num_kv_heads = 1;
    model.head_dim = 64;
    model.vocab_size = 272;
    return model;
  }

  StartFacts facts() const {
    return {.config = config_,
            .runs_on = "1 rank on cpu, 1 thread each",
            .mesh = {},
            .options = options_,
            .planned_bytes = 3 * kGiB,
            .budget = {.available = 16 * kGiB, .outside = 0, .margin = kGiB},
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

  static void expect_part(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in:\n" << text;
  }

  Config config_;
  ParameterLayout layout_;
  TrainingOptions options_;
};

TEST(StartTitle, HasTheEndOfALongPath) {
  EXPECT_EQ(start_title("c.yaml"), "octavo train c.yaml");
  const std::string title = start_title(fmt::format("{:x>200}/c.yaml", ""));
  EXPECT_EQ(title.size(), 100u);
  EXPECT_TRUE(title.starts_with("octavo train ...x") && title.ends_with("x/c.yaml")) << title;
}

TEST_F(StartScreenTest, OfANewRun) {
  const std::string text = screen(facts());
  for (const char* part :
       {"  model       808K parameters: 4 layers, hidden 128, MLP 352, 2 heads of 64 (1 kv), vocabulary 272\n",
        "  weights     random, seed 42\n",
        "  data        text             683,000 tokens  weight  75.0%  epochs 0.000 to 0.250\n"
        "              a_longer_name  1,025,997 tokens  weight  25.0%  epochs 0.000 to 1.500\n"
        "              documents: no separators inserted, so they run together unless they contain some\n",
        "  validation  none\n", "  steps       1 to 900, each 8 x 256 = 2,048 tokens: 1,843,200 tokens\n",
        "200 steps of warm-up to 0.0003, 3e-05 at step 900; weight decay 0.1", "; 2 micro-batches of 4\n",
        "  memory      3.00 GiB per rank planned, of 16.0; 1.0 kept free; activation checkpointing: ",
        "  time        not predicted\n", "  run folder  runs/mine: "}) {
    expect_part(text, part);
  }
}

TEST_F(StartScreenTest, NamesTheBatchSizeOfTheLastStep) {
  config_.training.batch_size_warmup = {{.batch_size = 4, .steps = 899}};
  expect_part(screen(facts()), " 1 to 900, in the end 8 x 256 = 2,048 tokens: ");
  config_.training.batch_size_warmup[0].steps = 900;
  expect_part(screen(facts()), " 1 to 900, in the end 4 x 256 = 1,024 tokens: ");
}

TEST_F(StartScreenTest, NamesTheChoicesByMemory) {
  EXPECT_EQ(screen(facts()).find("once per step"), std::string::npos);
  options_.sharding = {.reshard_after_forward = true, .accumulate_unsharded = true};
  expect_part(screen(facts()), "activation checkpointing: none,\n");
  expect_part(screen(facts()), " weights gathered again in backward, gradients reduced once per step\n");
}

TEST_F(StartScreenTest, OfAResumedOne) {
  StartFacts resumed = facts();
  resumed.resumes_from = "checkpoints/step_00000300";
  resumed.step = 300;
  resumed.tokens = 614'400;
  const std::string text = screen(resumed);
  expect_part(text, "  weights     of step 300, 614,400 tokens\n");
  expect_part(text, "301 to 900, each 8 x 256 = 2,048 tokens: 1,228,800 tokens more, 1,843,200 in all\n");
}

TEST_F(StartScreenTest, OfCheckpointsThatAreKept) {
  expect_part(screen(facts()), "at the end; the last 3 are kept\n");
  config_.checkpoint.keep = 0;
  expect_part(screen(facts()), "at the end; all are kept\n");
}

TEST_F(StartScreenTest, OfTheTokensAroundDocuments) {
  config_.data.eos_id = 1;
  expect_part(screen(facts()), "  documents: bos none, eos 1\n");
  config_.data.bos_id = 0;
  expect_part(screen(facts()), "  documents: bos 0, eos 1\n");
}

TEST_F(StartScreenTest, OfManyLongNames) {
  StartFacts many = facts();
  many.datasets.clear();
  for (int d = 0; d < 25; ++d) {
    many.datasets.push_back(
        {fmt::format("{:n>90}{}", "", d), int64_t{1'000'000'000'000} * (d + 1), static_cast<double>(d), 0, 0.1 * d});
  }
  const std::string text = screen(many);
  expect_part(text, "nnn24  25,000,000,000,000 tokens");
  expect_part(text, "and 15 more, 120,000,000,000,000 tokens\n");
}

}  // namespace
}  // namespace octavo
