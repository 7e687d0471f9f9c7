// Tests of the config changes that a resumed run may have.
#include "app/config/config_changes.h"

#include "app/config/config_keys.h"
#include "tests/app/config/config_fixture.h"

namespace octavo {
namespace {

class ConfigChangesTest : public ConfigTest {
 protected:
  // Returns the refusal for a run of 100 steps that resumes after `steps_done`. `before` and `now` are the overrides of
  // the saved and the new config.
  std::string refusal(const std::vector<std::string>& before, const std::vector<std::string>& now,
                      int64_t steps_done = 50) const {
    const auto with = [&](const std::vector<std::string>& overrides) { return load(kTrainable, overrides); };
    return refusal_to_resume(with(before), with(now), steps_done);
  }
  std::string refusal(const std::string& now) const { return refusal({}, {now}); }
};

std::vector<std::string> keys_of(KeyClass key_class, const std::string& section) {
  std::vector<std::string> names;
  for (const ConfigKey& key : config_keys()) {
    if (key.key_class == key_class && key.section() == section) names.push_back(key.name.substr(section.size() + 1));
  }
  return names;
}

// If this test fails for a new key, add the key to one of these lists or to the class of its section.
TEST_F(ConfigChangesTest, EveryKeyHasAClass) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(keys_of(KeyClass::kCarriesOut, "model"), Names{"preset"});
  EXPECT_EQ(keys_of(KeyClass::kCarriesOut, "data"), (Names{"validation", "on_max_epochs", "allow_overlap", "skip",
                                                           "resume_from_sample", "reader_threads", "tokenizer"}));
  EXPECT_EQ(keys_of(KeyClass::kCarriesOut, "training"),
            (Names{"micro_batch_size", "deterministic", "max_skipped_steps", "locate_nonfinite", "loss_spike_z",
                   "loss_spike_window", "corruption_check_every", "on_corruption"}));
  EXPECT_EQ(keys_of(KeyClass::kSchedule, "training"), (Names{"steps", "global_batch_size", "batch_size_warmup"}));
  EXPECT_EQ(keys_of(KeyClass::kTraining, "training"), (Names{"seed", "z_loss", "on_loss_spike"}));
  EXPECT_EQ(keys_of(KeyClass::kSchedule, "optimizer"),
            (Names{"lr", "min_lr_ratio", "warmup_steps", "schedule", "decay_steps", "decay_type"}));
  EXPECT_EQ(keys_of(KeyClass::kCarriesOut, "precision"),
            (Names{"fp8_all_gather", "guard.every", "guard.steps", "guard.tolerance", "guard.fallback_steps"}));
  const std::vector<std::pair<std::string, KeyClass>> sections = {{"model", KeyClass::kModel},
                                                                  {"data", KeyClass::kData},
                                                                  {"training", KeyClass::kTraining},
                                                                  {"optimizer", KeyClass::kOptimizer},
                                                                  {"precision", KeyClass::kPrecision}};
  for (const ConfigKey& key : config_keys()) {
    const auto found = std::find_if(sections.begin(), sections.end(),
                                    [&](const auto& section) { return key.section() == section.first; });
    if (key.name == "stages") {
      EXPECT_EQ(key.key_class, KeyClass::kSchedule);
    } else if (found == sections.end()) {
      EXPECT_EQ(key.key_class, KeyClass::kCarriesOut) << key.name;
    } else if (key.key_class != KeyClass::kCarriesOut && key.key_class != KeyClass::kSchedule) {
      EXPECT_EQ(key.key_class, found->second) << key.name;
    }
  }
}

TEST_F(ConfigChangesTest, WhatOnlyCarriesOutMayChange) {
  EXPECT_EQ(refusal({}, {"training.micro_batch_size=2", "parallel.tensor_parallel=2", "checkpoint.every=7",
                         "logging.dir=other", "validation.batches=3", "activation_checkpointing.mode=full",
                         "data.skip=[[3, 9]]", "data.resume_from_sample=9", "data.validation=[other]",
                         "data.train=[{path: moved}]", "model.init_from=weights", "device=cpu"}),
            "");
}

TEST_F(ConfigChangesTest, WhatOnlyAPlanReadsIsNoChange) {
  const Config before = load(kTrainable), now = load(kTrainable, {"plan.gpus=8", "plan.machine=h100"});
  EXPECT_TRUE(config_changes(before, now).empty());
}

TEST_F(ConfigChangesTest, WhatComputesIsRefusedWithTheRemedy) {
  struct Case {
    const char* override_text;
    const char* change;
    const char* remedy;
  };
  for (const auto& [override_text, change, remedy] : std::vector<Case>{
           {"optimizer.weight_decay=0.2", "optimizer.weight_decay 0.1 -> 0.2;",
            "checkpoint.allow_changes=[optimizer],"},
           {"optimizer.betas=[0.9, 0.99]", "optimizer.betas [0.9, 0.95] -> [0.9, 0.99];", "[optimizer]"},
           {"training.seed=43", "training.seed 42 -> 43;", "checkpoint.allow_changes=[training],"},
           {"precision.linear=fp8_rowwise", "precision.linear bfloat16 -> fp8_rowwise;", "[precision]"},
           {"data.seed=9", "data.seed 1234 -> 9;", "[data]"},
           {"data.document_mask=true", "data.document_mask false -> true;", "[data]"},
           {"data.seq_len=64", "data.seq_len 8192 -> 64;", "[data]"},
           {"optimizer.lr=1e-3", "optimizer.lr 0.0003 -> 0.001 (step 51 has the learning rate", "[schedule]"}}) {
    const std::string sentence = refusal(override_text);
    for (const char* part : {change, remedy}) expect_mentions(sentence, {part});
    const std::string allowed = "checkpoint.allow_changes=[training, optimizer, precision, data, schedule]";
    EXPECT_EQ(refusal({}, {override_text, allowed}), "") << override_text;
  }
}

TEST_F(ConfigChangesTest, AllChangesStandInOneSentence) {
  const std::string sentence = refusal({}, {"training.seed=1", "training.steps=200", "optimizer.weight_decay=0.2",
                                            "data.seed=9", "checkpoint.allow_changes=data"});
  expect_mentions(sentence,
                  {"training.seed 42 -> 1, optimizer.weight_decay 0.1 -> 0.2, training.steps 100 -> 200 (step"});
  expect_mentions(sentence, {"checkpoint.allow_changes=[data,training,schedule,optimizer]"});
  EXPECT_EQ(sentence.find("data.seed"), std::string::npos) << sentence;
}

TEST_F(ConfigChangesTest, AModelIsNeverAllowedToChange) {
  const std::string sentence = refusal({}, {"model.rope_theta=5000", "training.seed=1"});
  expect_mentions(sentence, {"model.rope_theta"});
  EXPECT_EQ(sentence.find("allow_changes"), std::string::npos) << sentence;
}

TEST_F(ConfigChangesTest, OnlyFutureStepsOfAScheduleAreCompared) {
  struct Case {
    std::vector<std::string> before, now;
    int64_t steps_done;
    bool accepted;
  };
  const std::string constant = "optimizer.schedule=constant", wsd = "optimizer.schedule=wsd";
  for (const auto& [before, now, steps_done, accepted] : std::vector<Case>{
           // These changes make the run longer or shorter.
           {{constant}, {constant, "training.steps=200"}, 100, true},
           {{constant}, {constant, "training.steps=60"}, 50, true},
           {{"optimizer.schedule=inverse_sqrt"}, {"optimizer.schedule=inverse_sqrt", "training.steps=200"}, 100, true},
           {{"optimizer.schedule=inverse_sqrt"}, {"optimizer.schedule=inverse_sqrt", "training.steps=60"}, 80, true},
           // The saved run would have ended with the old learning rate.
           {{constant}, {constant, "optimizer.lr=1e-3", "training.steps=200"}, 100, false},
           {{}, {"training.steps=200"}, 100, false},
           // Step 5 is within the warm-up, so its learning rate does not change.
           {{}, {"training.steps=200"}, 4, false},
           {{}, {"training.steps=60"}, 50, false},
           // Steps that were part of the decay would no longer decay.
           {{wsd}, {wsd, "training.steps=200"}, 50, false},
           {{"optimizer.min_lr_ratio=1"}, {"optimizer.min_lr_ratio=1", "training.steps=200"}, 100, true},
           // These changes affect only steps that are done.
           {{constant}, {constant, "optimizer.warmup_steps=3"}, 50, true},
           {{constant}, {constant, "optimizer.warmup_steps=3"}, 5, false},
           {{"training.batch_size_warmup=[{batch_size: 4, steps: 5}]"}, {}, 5, true},
           {{"training.batch_size_warmup=[{batch_size: 4, steps: 5}]"}, {}, 4, false},
           // These changes affect steps that are not yet done.
           {{wsd, "optimizer.decay_type=sqrt"}, {wsd}, 50, false},
           // The value equals the default.
           {{wsd, "optimizer.decay_steps=10"}, {wsd}, 50, true},
           {{constant}, {constant, "training.global_batch_size=16"}, 50, false},
           // These configs express equal values by other keys.
           {{}, {"stages=[{steps: 60}, {steps: 40}]"}, 50, true},
           {{}, {"stages=[{steps: 60}, {steps: 40, optimizer: {lr: 1.0e-3}}]"}, 50, false}}) {
    const std::string sentence = refusal(before, now, steps_done);
    EXPECT_EQ(sentence.empty(), accepted) << (now.empty() ? "" : now.back()) << ": " << sentence;
    std::vector<std::string> allowed = now;
    allowed.emplace_back("checkpoint.allow_changes=[schedule]");
    EXPECT_EQ(refusal(before, allowed, steps_done), "");
  }
}

TEST_F(ConfigChangesTest, OnlyStepsThatBothConfigsHaveAreNamed) {
  const std::string sentence = refusal({}, {"training.steps=60"}, 80);
  expect_mentions(sentence, {"(step 60 has the learning rate"});
}

TEST_F(ConfigChangesTest, ValuesOfTheNextStepsStageAreCompared) {
  const std::string stages = "stages=[{steps: 60}, {steps: 40, data: {seq_len: 64}}]";
  EXPECT_EQ(refusal({stages}, {stages, "data.seq_len=64"}, 70), "");
  EXPECT_NE(refusal({stages}, {stages, "data.seq_len=64"}, 50), "");
}

// The samples of stages that are done are read, so their batch size and skipped samples cannot change.
TEST_F(ConfigChangesTest, StagesThatAreDoneMayNotChange) {
  const std::string stages = "stages=[{steps: 60}, {steps: 40, data: {seq_len: 64}}]";
  const std::string allowed = "checkpoint.allow_changes=[data, schedule]";
  for (const char* change : {"training.global_batch_size=16", "data.skip=[[0, 5]]"}) {
    const std::string sentence = refusal({stages}, {stages, change, allowed}, 70);
    expect_mentions(sentence, {"stage 2 would begin at sample "});
    EXPECT_EQ(refusal({stages}, {stages, change, allowed}, 50), "") << change;
  }
  const std::string later = "stages=[{steps: 60}, {steps: 40, data: {seq_len: 64}, training: {global_batch_size: 16}}]";
  EXPECT_EQ(refusal({stages}, {later, allowed}, 70), "");
}

TEST_F(ConfigChangesTest, AnotherOptimizerIsNeverAllowed) {
  const std::string sentence = refusal("optimizer.type=muon");
  expect_mentions(sentence, {"optimizer.type adamw -> muon"});
  EXPECT_EQ(sentence.find("allow_changes"), std::string::npos) << sentence;
}

TEST_F(ConfigChangesTest, AnotherRunIsToldByAllThatComputes) {
  const auto keys = [&](const std::string& now) {
    return describe(changes_of_run(load(kTrainable), load(kTrainable, {now})));
  };
  EXPECT_EQ(keys("parallel.tensor_parallel=2"), "");
  EXPECT_EQ(keys("training.seed=1"), "training.seed 42 -> 1");
  EXPECT_EQ(keys("training.steps=101"), "training.steps 100 -> 101");
  EXPECT_EQ(keys("model.init_from=weights"), "model.init_from null -> weights");
}

TEST_F(ConfigChangesTest, AMisspeltClassIsNamed) {
  expect_error(kTrainable, {"checkpoint.allow_changes is 'shedule'", "did you mean schedule?"},
               {"checkpoint.allow_changes=[data, shedule]"});
  expect_error(kTrainable, {"checkpoint.allow_changes is 'optimiser'", "did you mean optimizer?"},
               {"checkpoint.allow_changes=optimiser"});
}

}  // namespace
}  // namespace octavo
