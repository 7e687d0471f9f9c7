// Tests of KvCopies: every replica of a key/value head gets the sum of the gradients of all replicas.
#include <memory>
#include <vector>

#include "model/parameters/kv_copies.h"
#include "tests/parallel/ranks_fixture.h"

namespace octavo::kv_copies_ranks {
namespace {

ModelConfig config_with_kv_heads(int64_t num_kv_heads) {
  ModelConfig config;
  config.hidden_size = 8;
  config.num_heads = 12;
  config.num_kv_heads = num_kv_heads;
  config.head_dim = 4;
  return config;
}

class KvCopiesRanks : public DeviceRanksTest {
 protected:
  void SetUp() override {
    DeviceRanksTest::SetUp();
    if (!IsSkipped()) communicator_ = make_communicator(group_, stream_);
  }

  TensorRank of(int rank) const { return {.rank = rank, .size = size_}; }

  // Returns an element of the gradient of a rank. It is a small integer, so that sums are exact in bfloat16.
  static float gradient(int rank, int64_t i) { return static_cast<float>((rank + 2) * i % 13 - 6); }

  // Returns the offset in a rank's gradient of its key/value head `i`. Part 0 is k, part 1 is v.
  int64_t offset(const ModelConfig& config, int64_t part, int64_t i) const {
    const int64_t kv_heads = local_config(config, of(0)).num_kv_heads;
    return (config.num_heads / size_ + part * kv_heads + i) * config.head_dim * config.hidden_size;
  }

  // Returns element `e` of key/value head `head`, summed over all replicas of the head.
  float sum_of_copies(const ModelConfig& config, int64_t part, int64_t head, int64_t e) const {
    float sum = 0;
    for (int r = 0; r < size_; ++r) {
      const std::vector<KvHead> heads = local_kv_heads(config, of(r));
      for (size_t i = 0; i < heads.size(); ++i) {
        if (heads[i].head == head) sum += gradient(r, offset(config, part, static_cast<int64_t>(i)) + e);
      }
    }
    return sum;
  }

  // Returns the gradient that this rank must have after the sum.
  std::vector<float> expected(const ModelConfig& config, int64_t elements) const {
    std::vector<float> values(static_cast<size_t>(elements));
    for (int64_t i = 0; i < elements; ++i) values[static_cast<size_t>(i)] = gradient(rank_, i);
    const std::vector<KvHead> heads = local_kv_heads(config, of(rank_));
    for (int64_t part = 0; part < 2; ++part) {
      for (size_t i = 0; i < heads.size(); ++i) {
        const int64_t begin = offset(config, part, static_cast<int64_t>(i));
        for (int64_t e = 0; e < config.head_dim * config.hidden_size; ++e) {
          values[static_cast<size_t>(begin + e)] = sum_of_copies(config, part, heads[i].head, e);
        }
      }
    }
    return values;
  }

  template <typename T>
  static Bytes bytes_of(const std::vector<float>& values) {
    Bytes bytes(values.size() * sizeof(T));
    for (size_t i = 0; i < values.size(); ++i) reinterpret_cast<T*>(bytes.data())[i] = static_cast<T>(values[i]);
    return bytes;
  }

  template <typename T>
  void expect_sums(const ModelConfig& config) {
    TensorGroup group(communicator_.get(), size_, stream_);
    const int64_t rows = local_config(config, of(rank_)).qkv_width();
    const int64_t elements = rows * config.hidden_size;
    Arena arena(stream_.device(), 1 << 16);
    const KvCopies copies(config, of(rank_), arena);
    std::vector<float> values;
    for (int64_t i = 0; i < elements; ++i) values.push_back(gradient(rank_, i));
    DeviceArray d_qkv(stream_, DTypeOf<T>::value, elements);
    // Both layers use the same buffer for the gradient.
    for (int layer = 0; layer < 2; ++layer) {
      d_qkv.write(bytes_of<T>(values));
      copies.sum(d_qkv.tensor().view({rows, config.hidden_size}), group, stream_);
      EXPECT_TRUE(d_qkv.read() == bytes_of<T>(expected(config, elements)))
          << config.num_kv_heads << " kv heads, " << dtype_name(DTypeOf<T>::value);
    }
  }

  std::unique_ptr<Communicator> communicator_;
};

// With 12 query heads and 4 key/value heads on 3 ranks, a rank has two replicas of some heads.
TEST_P(KvCopiesRanks, EachReplicaBecomesTheSumOfAll) {
  for (const int64_t kv_heads : {1, 2, 3, 4, 6, 12}) {
    expect_sums<float>(config_with_kv_heads(kv_heads));
    expect_sums<BFloat16>(config_with_kv_heads(kv_heads));
  }
}

INSTANTIATE_ON_DEVICES(KvCopiesRanks);

}  // namespace
}  // namespace octavo::kv_copies_ranks
