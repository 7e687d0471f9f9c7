// Tests of the mesh: every way to arrange the ranks along its five axes.
#include <vector>

#include "parallel/mesh.h"
#include "tests/parallel/ranks_fixture.h"

namespace octavo::mesh_ranks {
namespace {

class MeshRanks : public DeviceRanksTest {
 protected:
  std::vector<ParallelConfig> all_meshes() const {
    std::vector<ParallelConfig> meshes;
    for (int64_t replicate = 1; replicate <= size_; ++replicate) {
      for (int64_t tensor = 1; replicate * tensor <= size_; ++tensor) {
        for (int64_t context = 1; replicate * tensor * context <= size_; ++context) {
          for (int64_t pipeline = 1; replicate * tensor * context * pipeline <= size_; ++pipeline) {
            if (size_ % (replicate * tensor * context * pipeline) != 0) continue;
            meshes.push_back({-1, replicate, tensor, context});
            meshes.back().pipeline_parallel = pipeline;
          }
        }
      }
    }
    return meshes;
  }

  // Returns the world ranks of the communicator's members, in the order of the communicator.
  std::vector<int32_t> members(Communicator& communicator) {
    DeviceArray all(stream_, DType::kInt32, communicator.size());
    DeviceArray mine(stream_, DType::kInt32, 1);
    Bytes bytes(sizeof(int32_t));
    std::memcpy(bytes.data(), &rank_, sizeof(int32_t));
    mine.write(bytes);
    communicator.all_gather(all.tensor(), mine.tensor(), stream_, "ranks");
    const Bytes found = all.read();
    std::vector<int32_t> result(found.size() / sizeof(int32_t));
    std::memcpy(result.data(), found.data(), found.size());
    return result;
  }
};

TEST_P(MeshRanks, EveryArrangement) {
  for (const ParallelConfig& config : all_meshes()) {
    Mesh mesh(config, group_, stream_);
    const MeshShape shape = mesh.shape();
    EXPECT_EQ(shape.ranks(), size_);
    EXPECT_EQ(shape.replicate, config.data_parallel_replicate);
    EXPECT_EQ(shape.tensor, config.tensor_parallel);
    EXPECT_EQ(shape.context, config.context_parallel);
    EXPECT_EQ(shape.pipeline, config.pipeline_parallel);
    const int64_t stage_ranks = size_ / shape.pipeline;
    const int64_t p = mesh.rank(Axis::kPipeline);
    const auto rank_at = [&](int64_t replicate, int64_t shard, int64_t context, int64_t tensor) {
      return static_cast<int32_t>(((replicate * shape.shard + shard) * shape.context + context) * shape.tensor +
                                  tensor + p * stage_ranks);
    };
    const int64_t i = mesh.rank(Axis::kReplicate);
    const int64_t j = mesh.rank(Axis::kShard);
    const int64_t c = mesh.rank(Axis::kContext);
    const int64_t k = mesh.rank(Axis::kTensor);
    EXPECT_EQ(rank_at(i, j, c, k), rank_);
    EXPECT_EQ(mesh.data_rank(), i * shape.shard + j);
    EXPECT_EQ(mesh.context_rank(), (ContextRank{.rank = c, .size = shape.context}));

    std::vector<int32_t> tensor, context, micro_batch, shard, replicate, tokens, world, pipeline;
    for (int64_t t = 0; t < shape.tensor; ++t) tensor.push_back(rank_at(i, j, c, t));
    for (int64_t n = 0; n < shape.context; ++n) {
      context.push_back(rank_at(i, j, n, k));
      for (int64_t t = 0; t < shape.tensor; ++t) micro_batch.push_back(rank_at(i, j, n, t));
    }
    for (int64_t s = 0; s < shape.shard; ++s) {
      for (int64_t n = 0; n < shape.context; ++n) shard.push_back(rank_at(i, s, n, k));
    }
    for (int64_t r = 0; r < shape.replicate; ++r) {
      replicate.push_back(rank_at(r, j, c, k));
      for (int64_t s = 0; s < shape.shard; ++s) {
        for (int64_t n = 0; n < shape.context; ++n) tokens.push_back(rank_at(r, s, n, k));
      }
    }
    for (int32_t r = 0; r < size_; ++r) world.push_back(r);
    EXPECT_EQ(members(mesh.tensor()), tensor);
    EXPECT_EQ(members(mesh.shard()), shard);
    EXPECT_EQ(members(mesh.replicate()), replicate);
    EXPECT_EQ(members(mesh.context()), context);
    EXPECT_EQ(members(mesh.micro_batch()), micro_batch);
    EXPECT_EQ(members(mesh.tokens()), tokens);
    EXPECT_EQ(members(mesh.world()), world);
    for (int64_t s = 0; s < shape.pipeline; ++s) {
      pipeline.push_back(static_cast<int32_t>(rank_ + (s - p) * stage_ranks));
    }
    EXPECT_EQ(members(mesh.pipeline()), pipeline);
    EXPECT_EQ(mesh.shard().rank(), j * shape.context + c);
  }
}

TEST_P(MeshRanks, AxesWithTheSameRanksShareACommunicator) {
  Mesh mesh({}, group_, stream_);  // All ranks lie along the shard axis.
  EXPECT_EQ(&mesh.shard(), &mesh.world());
  EXPECT_EQ(&mesh.tokens(), &mesh.world());
  EXPECT_EQ(mesh.replicate().size(), 1);
  EXPECT_EQ(mesh.tensor().size(), 1);
}

TEST_P(MeshRanks, TransfersThatOverlapHaveTheirOwnCommunicators) {
  Mesh mesh({.context_parallel = size_}, group_, stream_);
  EXPECT_EQ(&mesh.micro_batch(), &mesh.world());
  EXPECT_NE(&mesh.context(), &mesh.world());
  EXPECT_NE(&mesh.shard(), &mesh.world());
  EXPECT_NE(&mesh.shard(), &mesh.context());
}

INSTANTIATE_ON_DEVICES(MeshRanks);

}  // namespace
}  // namespace octavo::mesh_ranks
