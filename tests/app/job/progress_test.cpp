// Tests that the progress of a run survives the conversion to a checkpoint's metadata and back.
#include "app/job/progress.h"

#include "core/error.h"
#include "tests/app/config/config_fixture.h"
#include "tests/checkpoint/checkpoint_fixture.h"

namespace octavo {
namespace {

using Json = nlohmann::json;

Checkpoint checkpoint_with(const Json& meta, int64_t step) {
  CheckpointManifest manifest{
      .step = step,
      .model = small_model(),
      .meta = meta,
      .shards = {{"shard", 4, "0"}},
      .tensors = {{"norm.weight", {32}, DType::kFloat32, {{"shard", "norm.weight", 0, 32, "0"}}}}};
  return Checkpoint(ManifestFile{fmt::format("saved/{}", step_directory_name(step)), manifest_to_text(manifest)});
}

TEST(ProgressTest, IsReadAsItWasWritten) {
  const Progress progress{.step = 7,
                          .tokens = int64_t{1} << 50,
                          .steps_s = 0.1,
                          .loader_state = {{"next_sample", 56}},
                          .guard = {{"skipped_steps", 2}},
                          .bfloat16_until = 9,
                          .rolled_back = {{20, 24}, {30, int64_t{1} << 40}}};
  EXPECT_EQ(progress_of(checkpoint_with(checkpoint_meta(Config{}, progress), 7)), progress);
}

TEST(ProgressTest, OfAnImportedModelBeginsWithZero) {
  EXPECT_EQ(progress_of(checkpoint_with({{"imported_from", "elsewhere"}}, 0)), Progress{});
}

TEST(ProgressTest, RefusesWrongSamplesOfRollbacks) {
  for (const Json& wrong :
       {Json("20 to 24"), Json(20), Json{{"begin", 20}}, Json{{20}}, Json{{24, 20}}, Json{{-4, 20}}}) {
    const Checkpoint checkpoint = checkpoint_with({{"rolled_back", wrong}}, 7);
    expect_mentions(message_of<InputError>([&] { progress_of(checkpoint); }),
                    {"saved/step_00000007", "rolled_back", "expected a list of ranges [A, B]"});
  }
}

TEST(ProgressTest, RefusesAWrongStateOfTheLoader) {
  for (const Json& wrong : {Json(nullptr), Json(3)}) {
    const Checkpoint checkpoint = checkpoint_with({{"loader", wrong}}, 7);
    expect_mentions(message_of<InputError>([&] { progress_of(checkpoint); }),
                    {"saved/step_00000007", "loader", wrong.dump(), "expected a map"});
  }
}

// The duration of steps only serves statistics, so a run may resume without it.
TEST(ProgressTest, IgnoresAWrongDuration) {
  EXPECT_EQ(progress_of(checkpoint_with({{"steps_s", "long"}}, 0)).steps_s, 0);
}

}  // namespace
}  // namespace octavo
