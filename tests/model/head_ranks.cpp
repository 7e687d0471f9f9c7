// Compares an FP8 lm_head whose vocabulary is divided among ranks with the same head on one rank. The FP8 operands are
// equal bit for bit, because the weight has the scale of the whole weight, whichever rank has its largest element.
#include <random>
#include <vector>

#include "model/head.h"
#include "model/linear/linear_layer.h"
#include "tests/kernels/op_fixture.h"
#include "tests/parallel/ranks_fixture.h"

namespace octavo::head_ranks {
namespace {

constexpr int64_t kTokens = 96;
constexpr int64_t kHidden = 64;
constexpr int64_t kVocabOfRank = 48;

Array random_values(int64_t rows, int64_t columns, double deviation, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0, deviation);
  Array values(DType::kFloat32, {rows, columns});
  for (int64_t i = 0; i < values.size(); ++i) values.set(i, normal(generator));
  return values;
}

Array rows_of(const Array& whole, int64_t columns, int64_t begin, int64_t end) {
  Array part(DType::kFloat32, {end - begin, columns});
  for (int64_t i = 0; i < part.size(); ++i) part.set(i, whole.at(begin * columns + i));
  return part;
}

Array columns_of(const Array& whole, int64_t width, int64_t begin, int64_t end) {
  const int64_t rows = whole.size() / width;
  Array part(DType::kFloat32, {rows, end - begin});
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = begin; i < end; ++i) part.set(row * (end - begin) + i - begin, whole.at(row * width + i));
  }
  return part;
}

// Runs forward and backward of the head over all tokens.
class TestedHead {
 public:
  TestedHead(Communicator* ranks, const Array& weight, const Array& d_logits, const Array& x)
      : vocab_(weight.size() / kHidden),
        logits(DType::kFloat32, {kTokens, vocab_}),
        d_weight(DType::kFloat32, {vocab_, kHidden}),
        d_x(x),
        group_(ranks, kTokens, stream_),
        head_({.compute = DType::kFloat32, .lm_head = LmHeadPrecision::kFp8},
              {.chunk = kTokens, .hidden = kHidden, .vocab = vocab_}, true, arena_) {
    const LinearShape shape{.tokens = kTokens, .in = kHidden, .out = vocab_};
    const int64_t bytes = LinearLayer::workspace_bytes(kLmHeadRecipe, shape, DType::kFloat32, stream_);
    workspace_.resize(static_cast<size_t>(bytes));
    stream_.set_workspace(Tensor(workspace_.data(), DType::kUInt8, {bytes}));
    head_.begin(weight, x, true, group_, ContextGroup({}, stream_), stream_);
    head_.forward(logits, d_x, stream_);
    head_.backward({.d_weight = d_weight, .x = d_x, .d_logits = d_logits, .cast = {}, .bound = 0.5f}, stream_);
    if (!group_.alone()) group_.ranks().all_reduce_sum(d_x, stream_, "d_x");
  }

 private:
  int64_t vocab_;

 public:
  Array logits, d_weight, d_x;

 private:
  Stream stream_ = Stream::cpu();
  Arena arena_{Device::kCpu, 4 << 20};
  TensorGroup group_;
  LmHead head_;
  std::vector<char> workspace_;
};

class HeadRanks : public RanksTest {
 protected:
  Stream cpu_ = Stream::cpu();
  std::unique_ptr<Communicator> communicator_ = make_communicator(group_, cpu_);
};

TEST_F(HeadRanks, Fp8EqualsTheHeadAlone) {
  const int64_t vocab = kVocabOfRank * size_;
  const int64_t begin = kVocabOfRank * rank_;
  const int64_t end = begin + kVocabOfRank;
  const Array x = random_values(kTokens, kHidden, 1, 1);
  const Array d_logits = random_values(kTokens, vocab, 0.05, 3);
  for (int64_t owner = 0; owner < size_; ++owner) {
    Array weight = random_values(vocab, kHidden, 0.1, 2);
    // Rank `owner` has the largest element of the weight.
    weight.set((owner * kVocabOfRank + 5) * kHidden + 7, 1.7);
    const TestedHead alone(nullptr, weight, d_logits, x);
    const TestedHead divided(communicator_.get(), rows_of(weight, kHidden, begin, end),
                             columns_of(d_logits, vocab, begin, end), x);
    // Matmuls of other sizes sum in another order.
    const auto difference = [](const Array& a, const Array& b) { return relative_error(a.values(), b.values()); };
    EXPECT_LT(difference(divided.logits, columns_of(alone.logits, vocab, begin, end)), 1e-6);
    EXPECT_LT(difference(divided.d_weight, rows_of(alone.d_weight, kHidden, begin, end)), 1e-6);
    EXPECT_LT(difference(divided.d_x, alone.d_x), 1e-6);
  }
}

}  // namespace
}  // namespace octavo::head_ranks
