#include "app/inputs/model_path.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/error.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

constexpr ModelPathFacts kDirectory{.is_there = true, .is_directory = true};

ModelPathFacts with(bool ModelPathFacts::*one, bool ModelPathFacts::*other = nullptr) {
  ModelPathFacts facts = kDirectory;
  facts.*one = true;
  if (other != nullptr) facts.*other = true;
  return facts;
}

TEST(ModelPath, TheKindFollowsFromWhatIsThere) {
  using F = ModelPathFacts;
  EXPECT_EQ(model_kind("m", with(&F::has_manifest)), ModelKind::kCheckpoint);
  EXPECT_EQ(model_kind("m", with(&F::has_checkpoints)), ModelKind::kCheckpoints);
  EXPECT_EQ(model_kind("m", with(&F::has_metrics)), ModelKind::kRun);
  EXPECT_EQ(model_kind("m", with(&F::has_hf_config)), ModelKind::kHuggingFace);
  EXPECT_EQ(model_kind("m", with(&F::has_metrics, &F::has_checkpoints)), ModelKind::kCheckpoints);
}

TEST(ModelPath, NoModelAndTwoModelsAreRefused) {
  using F = ModelPathFacts;
  const auto refused = [](const F& facts) { return message_of<InputError>([&] { model_kind("m", facts); }); };
  expect_mentions(refused({}), {"m: there is no such"});
  expect_mentions(refused({.is_there = true}), {"m: is a file, expected a checkpoint"});
  expect_mentions(refused(kDirectory), {"manifest.json", "step_N", "metrics.jsonl", "config.json"});
  for (bool F::*other : {&F::has_manifest, &F::has_checkpoints, &F::has_metrics})
    expect_mentions(refused(with(&F::has_hf_config, other)), {"is both a", "and a Hugging Face directory"});
}

TEST(ModelPath, AHuggingFaceDirectoryIsNoCheckpoint) {
  const TempDir dir;
  write_file(dir / "hf/config.json", "{}");
  EXPECT_FALSE(resolve_model(dir / "hf").is_checkpoint);
  expect_mentions(message_of<InputError>([&] { resolve_checkpoint(dir / "hf"); }),
                  {"hf: is a Hugging Face directory, expected a checkpoint"});
}

TEST(ModelPath, CheckpointsInsideARunMoveWithIt) {
  const auto dir = [](const RecordedPlaces& places) { return run_checkpoint_dir("moved", places).string(); };
  EXPECT_EQ(dir({}), "moved/checkpoints");
  EXPECT_EQ(dir({"/home/me", "runs/a", "runs/a/checkpoints"}), "moved/checkpoints");
  EXPECT_EQ(dir({"/home/me", "runs/a/", "./runs/a/saved/here"}), "moved/saved/here");
  EXPECT_EQ(dir({"/home/me", "/home/me/runs/a", "runs/a/checkpoints"}), "moved/checkpoints");
  EXPECT_EQ(dir({"/home/me", "runs/a", "checkpoints"}), "/home/me/checkpoints");
  EXPECT_EQ(dir({"/home/me", "runs/a", "runs/ab"}), "/home/me/runs/ab");
  EXPECT_EQ(dir({"/home/me", "runs/a", "/scratch/a"}), "/scratch/a");
}

TEST(ModelPath, PathsWithoutAModelAreRefused) {
  const TempDir dir;
  write_file(dir / "file", "");
  std::filesystem::create_symlink(dir / "loop", dir / "loop");
  std::filesystem::create_directory(dir / "empty");
  write_file(dir / "run/metrics.jsonl", "{}\n");
  for (const char* name : {"nothing", "file", "file/below", "loop", "empty", "run"}) {
    SCOPED_TRACE(name);
    expect_mentions(message_of<InputError>([&] { resolve_model(dir / name); }), {dir / name});
  }
}

}  // namespace
}  // namespace octavo
