// Tests a checkpoint of the 405B model on thousands of imaginary ranks: what rank 0 assembles and writes, and what each
// rank reads when it resumes. OCTAVO_TEST_RANKS sets the number of ranks, for example 4096.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "app/run/weights.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/checkpoint_format.h"
#include "model/optimizer/optimizer_config.h"
#include "model/parameters/sharded_parameters.h"
#include "parallel/communicator.h"
#include "tests/data/test_files.h"

namespace octavo {
namespace {

constexpr int kTensorRanks = 8;
constexpr const char* kPrefixes[] = {"", "exp_avg.", "exp_avg_sq."};

// Parameters of one rank of the mesh, without memory.
class OneOfMany {
 public:
  OneOfMany(const ParameterLayout& layout, int rank, int size)
      : stream_(Stream::planned(132)),
        mesh_({.shard = size}, 1, stream_, group().watchdog(), rank),
        arena_(Device::kCuda),
        parameters_(layout, {}, {}, LlamaMode::kTraining, &mesh_, arena_, stream_) {}

  // Returns the parts of the master weights that the rank reads.
  std::vector<TensorPart> parts() const { return parts_of(parameters_, master_state(parameters_), ""); }

  // Returns this rank's part of the manifest. `rank` is its number among all ranks.
  CheckpointManifest part(int rank) const {
    CheckpointManifest part;
    part.shards = {{shard_name(rank), 1, "0123456789abcdef"}};
    for (const char* prefix : kPrefixes) {
      for (const ParameterSlice& slice : parameters_.slices()) {
        const ParameterSpec& spec = *slice.spec;
        if (!spec.counts) continue;
        const int64_t begin = spec.column_offset() + slice.begin, end = spec.column_offset() + slice.end;
        const std::string name = prefix + spec.name;
        const ColumnRange columns = spec.columns();
        part.tensors.push_back({name, spec.whole_shape, DType::kFloat32, {}});
        part.tensors.back().pieces.push_back(
            {.file = shard_name(rank),
             .key = fmt::format("{}[:, {}:{}][{}:{}]", name, columns.begin, columns.end, begin, end),
             .begin = begin,
             .end = end,
             .checksum = "0123456789abcdef",
             .columns = columns});
      }
    }
    return part;
  }

 private:
  static ProcessGroup& group() {
    static ProcessGroup one;
    return one;
  }
  Stream stream_;
  Mesh mesh_;
  Arena arena_;
  ShardedParameters parameters_;
};

// Returns the peak memory of this process in bytes.
int64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::atoll(line.c_str() + 6) * 1024;
  }
  return 0;
}

TEST(ManyRanks, WriteAndReadAManifest) {
  const char* asked = std::getenv("OCTAVO_TEST_RANKS");
  const int ranks = asked != nullptr ? std::atoi(asked) : 256;
  const int shards = ranks / kTensorRanks;
  ModelConfig model = model_preset("llama3_405b");
  const int64_t before = peak_bytes();

  CheckpointManifest manifest;
  manifest.model = model;
  manifest.ranks = ranks;
  manifest.step = 1;
  {
    ManifestParts parts(manifest);
    for (int t = 0; t < kTensorRanks; ++t) {
      const ParameterLayout layout(model, {.rank = t, .size = kTensorRanks});
      for (int s = 0; s < shards; ++s) {
        const std::string sent = manifest_part_to_json(OneOfMany(layout, s, shards).part(s * kTensorRanks + t)).dump();
        parts.add(nlohmann::json::parse(sent));
      }
    }
    check_complete(manifest);
  }
  const TempDir dir;
  const std::filesystem::path step = dir / step_directory_name(1);
  std::filesystem::create_directories(step);
  write_manifest(step, manifest);
  const size_t tensors = manifest.tensors.size();
  manifest = {};
  Checkpoint checkpoint(step);
  EXPECT_EQ(checkpoint.ranks(), ranks);
  EXPECT_EQ(checkpoint.tensors().size(), tensors);

  // The first rank belongs to the mesh that saved the checkpoint, the second one to a mesh with another number of
  // shards.
  for (const auto& [t, s, of] : {std::tuple{3, 1, shards}, {5, 0, shards - 1}}) {
    const ParameterLayout layout(model, {.rank = t, .size = kTensorRanks});
    const OneOfMany one(layout, s, of);
    const std::set<std::string> files = checkpoint.shards_with(one.parts());
    EXPECT_TRUE(files.contains(shard_name(s * kTensorRanks + t)));
    EXPECT_LE(files.size(), 2u * kTensorRanks)
        << "a rank reads its own shard, a neighbouring one and that of the norms";
  }
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(step / kManifestName));
  if (std::getenv("ASAN_OPTIONS") != nullptr) return;  // AddressSanitizer delays the reuse of freed memory.
  EXPECT_LT(peak_bytes() - before, 4 * bytes + (int64_t{64} << 20)) << "4096 ranks need less than 2 GiB";
}

}  // namespace
}  // namespace octavo
