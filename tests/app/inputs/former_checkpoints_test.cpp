// Tests that the command that began a run at a path also resumes the run.
#include <utility>

#include "app/inputs/model_path.h"
#include "tests/app/train/run_fixture.h"

namespace octavo {
namespace {

class FormerCheckpointsTest : public RunTest {
 protected:
  Config starting_at(const std::string& resume) const { return run_config({"checkpoint.resume=" + resume}); }
  // Saves a checkpoint as a run that recorded this value of checkpoint.resume.
  void save(int64_t step, const std::string& resume) const {
    SavingProcess run(run_config());
    run.meta = {{"config", to_json(starting_at(resume))}};
    run.checkpoints.save(step, run.meta, run.pieces, false);
    run.checkpoints.finish();
  }
  // Returns the checkpoint.resume of a start with this value.
  std::string resumed(const std::string& resume) const {
    Config config = starting_at(resume);
    const std::string note = find_own_checkpoints(config);
    EXPECT_EQ(note.empty(), config.checkpoint.resume == resume) << note;
    return config.checkpoint.resume;
  }
};

TEST_F(FormerCheckpointsTest, APathSaysWhereARunBegins) {
  const std::string path = dir_ / "other/step_00000500";
  EXPECT_EQ(resumed(path), path) << "there are no checkpoints yet";
  save(2, "auto");
  EXPECT_EQ(resumed(path), path) << "the checkpoints there belong to a run that began elsewhere";
  save(4, path);
  EXPECT_EQ(resumed(path), "auto");
  EXPECT_EQ(resumed(dir_ / "other/../other/step_00000500/"), "auto") << "another spelling of the path";
  EXPECT_EQ(resumed(dir_ / "other/step_00000400"), dir_ / "other/step_00000400");
  Config other_run = starting_at(path);
  const std::string logging_dir = std::exchange(other_run.logging.dir, dir_ / "another_run");
  EXPECT_NE(find_own_checkpoints(other_run), "") << "the folder of the run was moved";
  std::filesystem::create_directories(logging_dir);
  other_run.checkpoint.resume = path;
  EXPECT_EQ(find_own_checkpoints(other_run), "") << "the run with this logging.dir has not begun yet";
  EXPECT_EQ(resumed("never"), "never");
  EXPECT_EQ(resumed("auto"), "auto");
  std::filesystem::remove(dir_ / "checkpoints/step_00000004/manifest.json");
  save(6, path);
  std::filesystem::resize_file(dir_ / "checkpoints/step_00000006/manifest.json", 10);
  EXPECT_EQ(resumed(path), path) << "only the checkpoint of the earlier run can be read";
}

}  // namespace
}  // namespace octavo
