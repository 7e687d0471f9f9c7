// Tests of checkpoints of tensor-parallel ranks, each of which holds a range of columns of a matrix.
#include <gtest/gtest.h>

#include <functional>
#include <list>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_writer.h"
#include "core/error.h"
#include "tests/checkpoint/checkpoint_fixture.h"

namespace octavo {
namespace {

// Returns a range of columns of a matrix with 5 columns, flattened row by row.
template <typename T>
std::vector<T> take_columns(const std::vector<T>& matrix, ColumnRange columns) {
  std::vector<T> slice;
  for (int64_t i = 0; i < static_cast<int64_t>(matrix.size()); ++i) {
    if (columns.begin <= i % 5 && i % 5 < columns.end) slice.push_back(matrix[static_cast<size_t>(i)]);
  }
  return slice;
}

// Slices that tensor-parallel ranks with the given column ranges write, each divided among `fsdp` ranks.
class ColumnSlices {
 public:
  ColumnSlices(const State& state, const std::vector<ColumnRange>& ranges, int fsdp) {
    for (const ColumnRange columns : ranges) {
      const std::vector<CheckpointTensor> slices{
          slice("a.weight", state.weight, DType::kFloat32, floats_, columns),
          slice("exp_avg.a.weight", state.exp_avg, DType::kFloat32, floats_, columns),
          slice("exp_avg_sq.a.weight", state.exp_avg_sq, DType::kBFloat16, halves_, columns)};
      for (int part = 0; part < fsdp; ++part) {
        // The slices are inserted from last to first, so that the test does not depend on their order.
        const auto divided = divide_tensors(slices, part, fsdp);
        pieces_.insert(pieces_.begin(), divided.begin(), divided.end());
      }
    }
  }
  const std::vector<CheckpointTensor>& pieces() const { return pieces_; }

 private:
  template <typename T>
  static CheckpointTensor slice(const std::string& name, const std::vector<T>& matrix, DType dtype,
                                std::list<std::vector<T>>& owner, ColumnRange columns) {
    std::vector<T>& values = owner.emplace_back(take_columns(matrix, columns));
    const auto numel = static_cast<int64_t>(values.size());
    return {name, {7, 5}, 0, numel, Tensor(values.data(), dtype, {numel}), columns};
  }

  std::list<std::vector<float>> floats_;
  std::list<std::vector<BFloat16>> halves_;
  std::vector<CheckpointTensor> pieces_;
};

// Divisions of 5 columns among 1 to 5 ranks. Most of them are uneven.
const std::vector<std::vector<ColumnRange>> kColumnSplits{{{0, 5}},
                                                          {{0, 2}, {2, 5}},
                                                          {{0, 4}, {4, 5}},
                                                          {{0, 1}, {1, 3}, {3, 5}},
                                                          {{0, 1}, {1, 2}, {2, 4}, {4, 5}},
                                                          {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}}};

class CheckpointColumns : public CheckpointTest {
 protected:
  std::string refusal(const std::vector<CheckpointTensor>& pieces) {
    return message_of<Error>([&] { save_pieces(1, pieces); });
  }

  // Returns the message with which the manifest of step 1 is refused after `change` edits its first piece. The checksum
  // is updated after the edit.
  std::string manifest_refusal(const std::function<void(nlohmann::json& piece)>& change) const {
    edit_manifest(1, [&](nlohmann::json& json) { change(json.at("tensors").at(0).at("pieces").at(0)); });
    return input_error_of([&] { Checkpoint{step_path(1)}; });
  }
};

TEST_F(CheckpointColumns, ReadsWholeTensorsFromColumnSlices) {
  State state(30);
  for (const auto& ranges : kColumnSplits) {
    for (const int fsdp : {1, 2, 3, 8}) {
      const ColumnSlices slices(state, ranges, fsdp);
      save_pieces(1, slices.pieces());
      Checkpoint checkpoint(root());
      EXPECT_GE(checkpoint.find("a.weight")->pieces.size(), ranges.size());
      checkpoint.verify();
      expect_holds(checkpoint, state);
      for (int64_t begin = 0; begin <= 35; ++begin) {
        for (int64_t end = begin; end <= 35; ++end) {
          std::vector<float> values(static_cast<size_t>(end - begin));
          checkpoint.read("a.weight", {}, begin, end, values.data());
          ASSERT_EQ(values, std::vector<float>(state.weight.begin() + begin, state.weight.begin() + end))
              << ranges.size() << " ranges, " << fsdp << " parts, elements " << begin << " to " << end;
        }
      }
    }
  }
}

TEST_F(CheckpointColumns, ReadsColumnsWhateverColumnsWereSaved) {
  State state(31);
  for (const auto& ranges : kColumnSplits) {
    const ColumnSlices slices(state, ranges, 3);
    save_pieces(1, slices.pieces());
    Checkpoint checkpoint(root());
    for (const ColumnRange columns : std::vector<ColumnRange>{{0, 5}, {0, 1}, {0, 3}, {1, 4}, {2, 4}, {2, 5}, {4, 5}}) {
      const std::vector<float> expected = take_columns(state.weight, columns);
      const auto numel = static_cast<int64_t>(expected.size());
      for (int64_t begin = 0; begin <= numel; ++begin) {
        for (int64_t end = begin; end <= numel; ++end) {
          std::vector<float> values(static_cast<size_t>(end - begin));
          checkpoint.read("a.weight", columns, begin, end, values.data());
          ASSERT_EQ(values, std::vector<float>(expected.begin() + begin, expected.begin() + end))
              << ranges.size() << " ranges, columns " << columns.begin << " to " << columns.end << ", elements "
              << begin << " to " << end;
        }
      }
    }
  }
}

TEST_F(CheckpointColumns, ConvertsColumnsToTheDtypeAskedFor) {
  State state(32);
  const ColumnSlices slices(state, {{0, 2}, {2, 5}}, 2);
  save_pieces(1, slices.pieces());
  Checkpoint checkpoint(root());
  const std::vector<BFloat16> moments = take_columns(state.exp_avg_sq, {1, 4});
  const std::vector<float> weights = take_columns(state.weight, {1, 4});
  std::vector<float> floats(16);
  checkpoint.read("exp_avg_sq.a.weight", {1, 4}, 2, 18, floats.data());
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(floats[i], static_cast<float>(moments[2 + i]));
  std::vector<BFloat16> halves(16);
  checkpoint.read("exp_avg_sq.a.weight", {1, 4}, 2, 18, Tensor(halves.data(), DType::kBFloat16, {16}));
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(halves[i].bits, moments[2 + i].bits);
  checkpoint.read("a.weight", {1, 4}, 2, 18, Tensor(halves.data(), DType::kBFloat16, {16}));
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(halves[i].bits, BFloat16(weights[2 + i]).bits);
}

TEST_F(CheckpointColumns, RefusesToReadMissingColumns) {
  State state(33);
  std::vector<CheckpointTensor> tensors = state.tensors();
  tensors.push_back({"norm.weight", {4}, 0, 4, Tensor(state.weight.data(), DType::kFloat32, {4})});
  save_pieces(1, tensors);
  Checkpoint checkpoint(root());
  std::vector<float> out(35);
  for (const ColumnRange columns : std::vector<ColumnRange>{{-1, 2}, {3, 6}, {2, 2}, {3, 1}}) {
    EXPECT_THROW(checkpoint.read("a.weight", columns, 0, 0, out.data()), Error) << columns.begin;
  }
  EXPECT_THROW(checkpoint.read("a.weight", {1, 3}, 10, 15, out.data()), Error);
  EXPECT_THROW(checkpoint.read("a.weight", {1, 3}, -1, 4, out.data()), Error);
  EXPECT_THROW(checkpoint.read("norm.weight", {0, 2}, 0, 2, out.data()), Error);
  checkpoint.read("norm.weight", {}, 0, 4, out.data());
  EXPECT_EQ(std::vector<float>(out.begin(), out.begin() + 4),
            std::vector<float>(state.weight.begin(), state.weight.begin() + 4));
}

TEST_F(CheckpointColumns, TakesAllColumnsAsNone) {
  State state(34);
  const std::string manifest = (step_path(1) / kManifestName).string(), shard = shard_path(1).string();
  save_pieces(1, state.tensors());
  const std::string manifest_without = read_whole_file(manifest), shard_without = read_whole_file(shard);
  EXPECT_EQ(manifest_without.find("columns"), std::string::npos);
  std::vector<CheckpointTensor> tensors = state.tensors();
  for (CheckpointTensor& tensor : tensors) tensor.columns = {0, 5};
  save_pieces(1, tensors);
  EXPECT_EQ(read_whole_file(manifest), manifest_without);
  EXPECT_EQ(read_whole_file(shard), shard_without);
  EXPECT_EQ(manifest_refusal([](nlohmann::json& piece) { piece["columns"] = {0, 5}; }), "");
}

TEST_F(CheckpointColumns, NamesPiecesByColumnsAndElements) {
  State state(35);
  const ColumnSlices slices(state, {{0, 2}, {2, 5}}, 1);
  save_pieces(1, slices.pieces());
  const auto manifest = nlohmann::json::parse(read_whole_file((step_path(1) / kManifestName).string()));
  for (const nlohmann::json& tensor : manifest.at("tensors")) {
    if (tensor.at("name") != "a.weight") continue;
    EXPECT_EQ(tensor.at("pieces").at(0).at("key"), "a.weight[:, 0:2][0:14]");
    EXPECT_EQ(tensor.at("pieces").at(0).at("columns"), nlohmann::json({0, 2}));
    EXPECT_EQ(tensor.at("pieces").at(1).at("key"), "a.weight[:, 2:5][0:21]");
    EXPECT_EQ(tensor.at("pieces").at(1).at("columns"), nlohmann::json({2, 5}));
    EXPECT_EQ(tensor.at("pieces").at(1).at("end"), 21);
  }
}

TEST_F(CheckpointColumns, RefusesColumnsThatAreNotCovered) {
  State state(36);
  const auto expect_refused = [&](const std::vector<ColumnRange>& ranges, const std::string& why) {
    const std::string message = refusal(ColumnSlices(state, ranges, 2).pieces());
    expect_mentions(message, {"a.weight [7, 5]" + why});
    EXPECT_TRUE(listing().empty());
  };
  expect_refused({{0, 2}, {2, 4}}, ": its pieces end at column 4 of 5");
  expect_refused({{1, 2}, {2, 5}}, ": a piece holds columns 1 to 2, expected a piece that begins at column 0");
  expect_refused({{0, 2}, {3, 5}}, ": a piece holds columns 3 to 5, expected a piece that begins at column 2");
  expect_refused({{0, 3}, {2, 5}}, ": a piece holds columns 2 to 5, expected a piece that begins at column 3");
  expect_refused({{0, 2}, {0, 5}, {2, 5}}, ": a piece holds columns 0 to 2, expected a piece that begins at column 5");
  expect_refused({{0, 2}, {0, 3}, {3, 5}}, ": a piece holds columns 0 to 3, expected a piece that begins at column 2");
}

TEST_F(CheckpointColumns, RefusesElementsOfColumnsThatAreNotCovered) {
  State state(37);
  const ColumnSlices slices(state, {{0, 2}, {2, 5}}, 1);
  std::vector<CheckpointTensor> pieces = slices.pieces();
  CheckpointTensor& piece = pieces.front();
  ASSERT_EQ(piece.end, 21);
  const Tensor all = piece.data;
  piece.end = 20;
  piece.data = all.rows(0, 20);
  expect_mentions(refusal(pieces), {"a.weight [7, 5] columns 2 to 5: its pieces end at element 20 of 21"});
  piece.begin = 1;
  piece.end = 21;
  expect_mentions(refusal(pieces),
                  {"columns 2 to 5: a piece holds elements 1 to 21, expected a piece that begins at 0"});
  piece.begin = 0;
  piece.data = all;
  save_pieces(1, pieces);
}

TEST_F(CheckpointColumns, RefusesPiecesOfImpossibleColumns) {
  State state(38);
  const Tensor ten(state.weight.data(), DType::kFloat32, {10});
  expect_mentions(refusal({{"a", {5, 3}, 0, 10, ten, {2, 4}}}),
                  {"columns 2 to 4, expected a range within columns 0 to 3"});
  expect_mentions(refusal({{"a", {5, 3}, 0, 10, ten, {-1, 1}}}), {"columns -1 to 1"});
  expect_mentions(refusal({{"a", {10}, 0, 10, ten, {0, 10}}}), {"not 2-dimensional"});
  expect_mentions(refusal({{"a", {4, 3}, 0, 10, ten, {0, 2}}}),
                  {"elements 0 to 10, expected a range within elements 0 to 8"});
}

TEST_F(CheckpointColumns, RefusesManifestsOfImpossibleColumns) {
  State state(39);
  const ColumnSlices slices(state, {{0, 2}, {2, 5}}, 1);
  save_pieces(1, slices.pieces());
  EXPECT_EQ(manifest_refusal([](nlohmann::json&) {}), "");
  const auto expect_refused = [&](const nlohmann::json& columns, const std::string& why) {
    SCOPED_TRACE(columns);
    expect_mentions(manifest_refusal([&](nlohmann::json& piece) { piece["columns"] = columns; }),
                    {"manifest.json: is not a valid manifest", why});
  };
  expect_refused({-1, 2}, "a column of piece a.weight[:, 0:2][0:14] is -1, expected an integer from 0");
  expect_refused({2, 6}, "[7, 5]: columns 2 to 6, expected a range within columns 0 to 5");
  expect_refused({2, 2}, "[7, 5]: columns 2 to 2");
  expect_refused({0, 0}, "[0,0]");
  expect_refused({0, 1}, "element");
  expect_refused({0, 2, 3}, "[0,2,3]");
  expect_refused(2, "expected a list of their begin and end");
  expect_refused({"a", "b"}, "");
  EXPECT_NE(manifest_refusal([](nlohmann::json& piece) { piece.erase("columns"); }), "");
  save_pieces(1, {{"norm.weight", {4}, 0, 4, Tensor(state.weight.data(), DType::kFloat32, {4})}});
  expect_refused({0, 4}, "norm.weight [4]: columns 0 to 4, but the tensor is not 2-dimensional");
}

TEST_F(CheckpointColumns, FindsDamageOfColumns) {
  State state(41);
  const ColumnSlices slices(state, {{0, 2}, {2, 5}}, 1);
  save_pieces(1, slices.pieces());
  const std::string path = shard_path(1).string();
  const SafetensorsFile file(path);
  const SafetensorsEntry* entry = file.find("a.weight[:, 2:5][0:21]");
  ASSERT_NE(entry, nullptr);
  std::string damaged = read_whole_file(path);
  damaged[8 + file.header().size() + static_cast<size_t>(entry->end_byte) - 1] ^= 1;
  write_file(path, damaged);
  Checkpoint checkpoint(root());
  std::vector<float> values(35);
  EXPECT_THROW(checkpoint.read("a.weight", {2, 5}, 0, 21, values.data()), InputError);
  EXPECT_THROW(checkpoint.read("a.weight", {1, 5}, 1, 28, values.data()), InputError);
  EXPECT_THROW(checkpoint.read("a.weight", {}, 0, 35, values.data()), InputError);
  checkpoint.read("a.weight", {0, 2}, 0, 14, values.data());
  EXPECT_THROW(checkpoint.read("a.weight", {}, 0, 34, values.data()), InputError);
  EXPECT_THROW(checkpoint.read("a.weight", {1, 3}, 0, 3, values.data()), InputError);
  expect_mentions(damage(root()), {"a.weight[:, 2:5][0:21]"});
}

}  // namespace
}  // namespace octavo
