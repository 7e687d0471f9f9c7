// Tests of checkpoints that are damaged or incomplete, or that contain NaN or infinity.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/checkpoint_writer.h"
#include "core/error.h"
#include "tests/checkpoint/checkpoint_fixture.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

TEST_F(CheckpointTest, NamesWhatIsMissing) {
  expect_mentions(damage(dir_ / "nowhere"), {"no such checkpoint"});
  write_file(dir_ / "file", "x");
  expect_mentions(damage(dir_ / "file"), {"is a file"});
  State state(15);
  save(1, state);
  fs::remove(shard_path(1));
  expect_mentions(damage(root()), {shard_path(1).string()});
}

TEST_F(CheckpointTest, FindsEveryFlippedByteOfAShard) {
  State state(16);
  save(1, state);
  const std::string path = shard_path(1).string();
  const std::string whole = read_whole_file(path);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    write_file(path, damaged);
    ASSERT_NE(damage(root()).find(path), std::string::npos) << "byte " << i;
  }
  write_file(path, whole);
  EXPECT_EQ(damage(root()), "");
  write_file(path, whole.substr(0, whole.size() - 4));
  expect_mentions(damage(root()), {"manifest says"});
}

void flip_byte(const std::string& path, size_t from_end) {
  std::string content = read_whole_file(path);
  char& byte = content[content.size() - from_end];
  byte = static_cast<char>(byte ^ 1);
  write_file(path, content);
}

TEST_F(CheckpointTest, ReadsNoPartOfADamagedPiece) {
  State state(23);
  save(1, state);
  flip_byte(shard_path(1).string(), 1);
  Checkpoint checkpoint(root());
  std::vector<float> values(35);
  checkpoint.read("exp_avg.a.weight", {}, 3, 7, values.data());
  for (const auto& [begin, end] : {std::pair{0, 1}, std::pair{3, 20}, std::pair{34, 35}}) {
    const std::string message =
        input_error_of([&, b = begin, e = end] { checkpoint.read("exp_avg_sq.a.weight", {}, b, e, values.data()); });
    expect_mentions(message, {"exp_avg_sq.a.weight is damaged"});
  }
  EXPECT_NE(input_error_of([&] { checkpoint.read("exp_avg_sq.a.weight", {1, 3}, 2, 9, values.data()); }), "");
  checkpoint.read("a.weight", {}, 0, 35, values.data());
  EXPECT_EQ(values, state.weight);
  const nlohmann::json description = checkpoint.describe();
  EXPECT_EQ(description.at("intact"), false);
  expect_mentions(description.at("damage").get<std::string>(), {"exp_avg_sq.a.weight"});
}

// Machines may see different files under the same path. Each machine reports damage only in the pieces that it uses.
TEST_F(CheckpointTest, VerifiesThePiecesThatAreUsed) {
  State state(24);
  save(1, state);
  const ManifestFile manifest = read_manifest(step_path(1));
  const fs::path other = dir_ / "another machine";
  fs::copy(root(), other, fs::copy_options::recursive);
  const ManifestFile seen_there{other / step_directory_name(1), manifest.text};
  const TensorPart second_half{"exp_avg_sq.a.weight", {7, 5}, {}, 17, 35};
  const std::vector<TensorPart> all{{"a.weight", {7, 5}, {1, 3}, 2, 9}, second_half};
  const std::vector<TensorPart> without{
      {"a.weight", {7, 5}, {}, 0, 35}, {"exp_avg_sq.a.weight", {5, 7}, {}, 0, 35}, {"another", {7, 5}, {}, 0, 35}};
  flip_byte((seen_there.checkpoint / shard_name(0)).string(), 1);
  Checkpoint here(manifest), there(seen_there);
  here.verify(all);
  EXPECT_NE(input_error_of([&] { there.verify(all); }).find("exp_avg_sq.a.weight is damaged"), std::string::npos);
  there.verify(without);
  EXPECT_NE(input_error_of([&] { there.verify(std::span(&second_half, 1)); }), "");
  std::vector<float> values(35);
  EXPECT_NE(input_error_of([&] { there.read("exp_avg_sq.a.weight", {}, 0, 5, values.data()); }), "");
}

TEST_F(CheckpointTest, NamesWhatIsNotFinite) {
  State state(25);
  state.weight[17] = std::numeric_limits<float>::quiet_NaN();
  state.exp_avg_sq[33] = BFloat16(-std::numeric_limits<float>::infinity());
  save(1, state);
  Checkpoint checkpoint(root());
  std::vector<float> values(35);
  checkpoint.read("a.weight", {}, 0, 17, values.data());
  const std::string weight = root() + "/step_00000001: tensor a.weight is nan at [3, 2], expected finite numbers";
  EXPECT_EQ(input_error_of([&] { checkpoint.read("a.weight", {}, 10, 20, values.data()); }), weight);
  EXPECT_EQ(input_error_of([&] { checkpoint.read("a.weight", {1, 4}, 5, 15, values.data()); }), weight);
  std::vector<BFloat16> halves(35);
  const std::string moment = input_error_of(
      [&] { checkpoint.read("exp_avg_sq.a.weight", {}, 0, 35, Tensor(halves.data(), DType::kBFloat16, {35})); });
  expect_mentions(moment, {"exp_avg_sq.a.weight is -inf at [6, 3]"});
}

// Reads a part of exp_avg_sq.a.weight in ranges of up to `count` elements.
std::vector<float> read_in_ranges(TensorReader reader, int64_t begin, int64_t end, int64_t count) {
  std::vector<float> values(static_cast<size_t>(end - begin));
  for (int64_t from = begin; from < end; from += count) {
    const int64_t to = std::min(from + count, end);
    reader.read(from, to, Tensor(values.data() + (from - begin), DType::kFloat32, {to - from}));
  }
  return values;
}

TEST_F(CheckpointTest, ReadsAndVerifiesRangesInOrder) {
  const std::string name = "exp_avg_sq.a.weight";
  State state(26);
  save(1, state);
  for (const int64_t count : {1, 4, 35}) {
    Checkpoint checkpoint(root());
    const std::vector<float> all = read_in_ranges(checkpoint.reader(name, {}, 0, 35), 0, 35, count);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<float>(state.exp_avg_sq[i]));
    const std::vector<float> columns = read_in_ranges(checkpoint.reader(name, {1, 3}, 3, 13), 3, 13, count);
    for (size_t i = 0; i < columns.size(); ++i) EXPECT_EQ(columns[i], all[(i + 3) / 2 * 5 + 1 + (i + 3) % 2]);
  }
  flip_byte(shard_path(1).string(), 1);
  Checkpoint checkpoint(root());
  TensorReader reader = checkpoint.reader(name, {}, 3, 17);
  std::vector<float> values(14);
  reader.read(3, 10, Tensor(values.data(), DType::kFloat32, {7}));
  EXPECT_EQ(values[0], static_cast<float>(state.exp_avg_sq[3]));
  EXPECT_THROW(reader.read(10, 17, Tensor(values.data(), DType::kFloat32, {7})), DamagedCheckpoint)
      << "the last element of the piece is damaged";
}

TEST_F(CheckpointTest, DamageTakesPrecedenceOverValuesThatAreNotFinite) {
  const std::string name = "exp_avg_sq.a.weight";
  State state(27);
  state.exp_avg_sq[5] = BFloat16(std::numeric_limits<float>::infinity());
  save(1, state);
  const auto read = [&] {
    Checkpoint checkpoint(root());
    return input_error_of([&] { read_in_ranges(checkpoint.reader(name, {}, 0, 35), 0, 35, 4); });
  };
  EXPECT_EQ(read(), step_path(1).string() + ": tensor exp_avg_sq.a.weight is inf at [1, 0], expected finite numbers");
  flip_byte(shard_path(1).string(), 1);
  expect_mentions(read(), {"exp_avg_sq.a.weight is damaged"});
}

TEST_F(CheckpointTest, RefusesAShardThatLinksOutside) {
  State state(1);
  save(1, state);
  const fs::path shard = step_path(1) / shard_name(0);
  fs::rename(shard, dir_ / "elsewhere");
  fs::create_symlink(dir_ / "elsewhere", shard);
  expect_mentions(damage(step_path(1)), {shard.string() + ": is a link that leads out of its directory"});
}

TEST(CheckpointManifestTest, RefusesAttachedFilesElsewhere) {
  const CheckpointTensorInfo tensor{"a", {1}, DType::kFloat32, {{"shard", "a", 0, 1, "0"}}};
  CheckpointManifest manifest{1,        small_model(),       1, nlohmann::json::object(), {{"shard", 4, "0"}},
                              {tensor}, {{"../key", 1, "0"}}};
  EXPECT_THROW(manifest_from_text(manifest_to_text(manifest), "manifest.json"), InputError);
  manifest.files.front().name = "key";
  EXPECT_EQ(manifest_from_text(manifest_to_text(manifest), "manifest.json").files.front().name, "key");
}

TEST_F(CheckpointTest, FindsEveryFlippedByteOfTheManifest) {
  State state(18);
  save(1, state);
  const std::string path = (step_path(1) / "manifest.json").string();
  const std::string whole = read_whole_file(path);
  const nlohmann::json original = nlohmann::json::parse(whole);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x04);
    // The flipped bit turned one white space character into another.
    if (nlohmann::json::parse(damaged, nullptr, false) == original) continue;
    write_file(path, damaged);
    ASSERT_NE(damage(step_path(1)).find(path), std::string::npos) << "byte " << i;
  }
  write_file(path, whole.substr(0, whole.size() / 2));
  expect_mentions(damage(step_path(1)), {path});
}

}  // namespace
}  // namespace octavo
