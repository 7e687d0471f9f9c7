// Tests of the check for silent corruption on several ranks. With random models, meshes and recipes
// (tests/app/run/mesh_draw.h), training without corruption passes the check and is not changed by it. A flipped bit is
// detected and its rank named, in data that ranks hold in common and in weights while a micro-batch is computed.
#include <algorithm>
#include <numeric>

#include "app/observers/corruption_check.h"
#include "tests/app/observers/drawn_training.h"

namespace octavo::corruption_check_ranks {
namespace {

constexpr int64_t kSteps = 3;

class CheckedTraining : public DrawnTraining {
 public:
  CheckedTraining(const MeshDraw& draw, int64_t corruption_check_every, ProcessGroup& group, Stream& stream)
      : DrawnTraining(with_check(draw, corruption_check_every), group, stream) {
    if (corruption_check_every > 0) {
      check_.emplace(draw_.config, state_, group, fmt::format("host{}", group.rank()));
    }
  }

  // `during` runs between the additional computation of a micro-batch and the step.
  CorruptionVerdict step(
      int64_t number, const std::function<void()>& during = [] {}) {
    upload(number);
    if (check_) check_->begin_step(step_of(number));
    during();
    training_step(state_, step_of(number));
    if (check_) check_->end_step();
    return check_ ? check_->finish() : CorruptionVerdict{};
  }

  void flip(const Tensor& tensor, int64_t byte, int bit) const {
    char* place = static_cast<char*>(tensor.raw()) + byte;
    char value = 0;
    stream_.copy(&value, place, 1);
    stream_.synchronize();
    value = static_cast<char>(value ^ (1 << bit));
    stream_.copy(place, &value, 1);
    stream_.synchronize();
  }

  // Gathers the weights of every unit. The unsharded weights stay in memory.
  void gather() {
    state_.model.forward(state_.batch.micro_batch(0));
    stream_.synchronize();
  }

  CorruptionCheck& check() { return *check_; }

 private:
  static MeshDraw with_check(MeshDraw draw, int64_t corruption_check_every) {
    draw.config.training.corruption_check_every = corruption_check_every;
    return draw;
  }

  std::optional<CorruptionCheck> check_;
};

class CorruptionCheckRanks : public DeviceRanksTest {
 protected:
  // Returns a small model in which every tensor-parallel rank has a replica of each key/value head.
  MeshDraw draw(int64_t replicas, int64_t tensor_ranks) const {
    MeshDraw draw;
    draw.config.model = {.hidden_size = 48,
                         .intermediate_size = 60 * tensor_ranks,
                         .num_layers = 2,
                         .num_heads = 2 * tensor_ranks,
                         .num_kv_heads = 1,
                         .head_dim = 32,
                         .vocab_size = 97 * tensor_ranks - 1,
                         .rope_scaling = std::nullopt};
    draw.config.precision.compute = DType::kBFloat16;
    draw.config.data.seq_len = 8 * tensor_ranks;
    draw.config.training.global_batch_size = 2 * size_ / tensor_ranks;
    draw.config.parallel.data_parallel_replicate = replicas;
    draw.config.parallel.tensor_parallel = tensor_ranks;
    draw.config.activation_checkpointing = {.mode = ActivationCheckpointing::Mode::kNone};
    return draw;
  }

  std::vector<int> everyone() const {
    std::vector<int> all(static_cast<size_t>(size_));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  // Returns the ranks that a verdict must name. With more than two replicas it is the faulty rank, otherwise all ranks.
  std::vector<int> named(int rank) const { return size_ > 2 ? std::vector<int>{rank} : everyone(); }

  static void expect_sound(const CorruptionVerdict& verdict) { EXPECT_TRUE(verdict.ranks.empty()) << verdict.message; }
  static void expect_found(const CorruptionVerdict& verdict, const std::vector<int>& ranks, const std::string& what) {
    EXPECT_EQ(verdict.ranks, ranks) << verdict.message;
    EXPECT_NE(verdict.message.find(what), std::string::npos) << verdict.message;
  }

  // Flips bits of `tensor` on one rank, at its beginning and in its second half, expects that they are found, and flips
  // them back.
  void expect_flip_found(CheckedTraining& training, const Tensor& tensor, const std::string& what) {
    const int victim = size_ - 1;
    for (const int64_t byte : {int64_t{0}, tensor.bytes() / 2 + 1}) {
      const int bit = static_cast<int>(byte % 8);
      if (rank_ == victim) training.flip(tensor, byte, bit);
      const CorruptionVerdict verdict = training.check().check_state();
      expect_found(verdict, named(victim), what);
      EXPECT_TRUE(verdict.replicas_differ);
      if (rank_ == victim) training.flip(tensor, byte, bit);
      expect_sound(training.check().check_state());
    }
  }
};
INSTANTIATE_ON_DEVICES(CorruptionCheckRanks);

TEST_P(CorruptionCheckRanks, SoundTrainingPassesAndIsNotChanged) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const MeshDraw draw = MeshDraw::of(seed, size_, GetParam());
    SCOPED_TRACE(fmt::format("seed {} on {} ranks: {}", seed, size_, draw.describe()));
    CheckedTraining plain(draw, 0, group_, stream_);
    CheckedTraining checked(draw, 1, group_, stream_);
    for (int64_t step = 1; step <= kSteps; ++step) {
      plain.step(step);
      expect_sound(checked.step(step));
      EXPECT_EQ(checked.results(), plain.results()) << "step " << step;
    }
  }
}

TEST_P(CorruptionCheckRanks, AFlippedBitInAReplicaIsFound) {
  if (size_ < 2) return;
  CheckedTraining training(draw(size_, 1), 1, group_, stream_);
  expect_sound(training.step(1));
  TrainingState& state = training.state();
  expect_flip_found(training,
                    state.parameters.unit_shard(state.parameters.master(), state.parameters.layout().block_unit(1)),
                    "replicas differ in weights of block 1 (shard 0)");
  expect_flip_found(training, state.parameters.unit_shard(state.parameters.master(), ParameterLayout::kNorms),
                    "weights of norms (shard 0)");
  for (const OptimizerState& moment : state.optimizer.states()) {
    expect_flip_found(training, state.parameters.unit_shard(moment.shards, ParameterLayout::kEmbedding),
                      fmt::format("{} of embedding (shard 0)", moment.name));
  }
  expect_flip_found(training, state.parameters.fsdp().weight_shard(state.parameters.layout().block_unit(0)),
                    "cast weights of block 0 (shard 0)");
}

TEST_P(CorruptionCheckRanks, AFlippedBitInAKvHeadReplicaIsFound) {
  if (size_ < 2) return;
  CheckedTraining training(draw(1, size_), 1, group_, stream_);
  expect_sound(training.step(1));
  TrainingState& state = training.state();
  expect_flip_found(training, state.parameters.unit_shard(state.parameters.master(), ParameterLayout::kNorms),
                    "replicas differ in weights of norms (shard 0)");
  for (const char* name : {"model.layers.1.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight"}) {
    const ParameterSlice& slice = *training.slice(name);
    expect_flip_found(training, state.parameters.master(slice), fmt::format("weights of {} head 0", name));
    const OptimizerState& moment = state.optimizer.states().back();
    expect_flip_found(training, moment.shards.rows(slice.offset, slice.offset + slice.end - slice.begin),
                      fmt::format("{} of {} head 0", moment.name, name));
  }
}

// Several tensor-parallel ranks hold a replica of a key/value head, and each replica is divided among shards.
TEST_P(CorruptionCheckRanks, AFlippedBitInAShardOfAKvHeadReplicaIsFound) {
  if (size_ != 4 && size_ != 8) return;
  CheckedTraining training(draw(1, size_ / 2), 1, group_, stream_);
  expect_sound(training.step(1));
  const ParameterSlice* slice = training.slice("model.layers.0.self_attn.k_proj.weight");
  const std::vector<std::string> has = group_.all_gather(slice != nullptr ? "yes" : "no");
  const int victim = static_cast<int>(std::find(has.begin(), has.end(), "yes") - has.begin());
  if (rank_ == victim) training.flip(training.state().parameters.master(*slice), 5, 2);
  const CorruptionVerdict verdict = training.check().check_state();
  EXPECT_NE(std::find(verdict.ranks.begin(), verdict.ranks.end(), victim), verdict.ranks.end()) << verdict.message;
}

// If two replicas differ, the rank that also computes wrong results is named.
TEST_P(CorruptionCheckRanks, AWrongMicroBatchIsFound) {
  CheckedTraining training(draw(size_, 1), 1, group_, stream_);
  expect_sound(training.step(1));
  const int victim = size_ - 1;
  const Tensor& weights =
      training.state().parameters.fsdp().weight_shard(training.state().parameters.layout().block_unit(0));
  const CorruptionVerdict verdict = training.step(2, [&] {
    if (rank_ == victim) training.flip(weights, 1, 6);
  });
  expect_found(verdict, {victim}, fmt::format("rank {} on host{}: a micro-batch computed twice", victim, victim));
}

// The gathered weights of one rank are wrong in the additional computation and right in the step, which gathers them
// again.
TEST_P(CorruptionCheckRanks, WrongGatheredWeightsAreFound) {
  if (size_ < 2) return;
  CheckedTraining training(draw(1, 1), 1, group_, stream_);
  expect_sound(training.step(1));
  training.gather();
  TrainingState& state = training.state();
  const int victim = size_ - 1;
  if (rank_ == victim) training.flip(state.parameters.fsdp().weight(state.parameters.layout().block_unit(1)), 1, 6);
  const CorruptionVerdict verdict = training.step(2);
  expect_found(verdict, {victim}, "a micro-batch computed twice gives different");
  EXPECT_FALSE(verdict.replicas_differ);
  expect_sound(training.step(3));
}

}  // namespace
}  // namespace octavo::corruption_check_ranks
