// The head in chunks of tokens against the head over all tokens at once.
#include "model/head.h"

#include "tests/model/llama_fixture.h"

namespace octavo {
namespace {

constexpr BatchShape kShape{.micro_batch_size = 1, .seq_len = 13};

// The head's buffers, and its gradients after one backward pass in chunks of `chunk` tokens.
class Head {
 public:
  explicit Head(int64_t chunk)
      : layout_(config_),
        arena_(Device::kCpu, int64_t{1} << 20),
        parameters_(layout_, {.compute = DType::kFloat32}, {}, LlamaMode::kTraining, {}, arena_, stream_),
        weights_([&](const ParameterSpec& spec) { return parameters_.full_weight(spec); }, layout_, config_),
        gradients_([&](const ParameterSpec& spec) { return parameters_.full_gradient(spec); }, layout_, config_),
        losses_(arena_.allocate("losses", DType::kFloat32, {kShape.tokens()})),
        activations_(config_, kShape, DType::kFloat32, losses_, arena_),
        h_(arena_.allocate("h", DType::kFloat32, {kShape.tokens(), config_.hidden_size})),
        d_h_(arena_.allocate("d_h", DType::kFloat32, {kShape.tokens(), config_.hidden_size})),
        zero_(arena_.allocate("zero", DType::kFloat32, {kShape.tokens(), config_.hidden_size})) {
    activations_.logits = activations_.logits.rows(0, chunk);
    stream_.set_workspace(Tensor(workspace_.data(), DType::kUInt8, {workspace_.bytes()}));
    fill(parameters_.master());
    fill(h_);
    std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(config_.vocab_size) - 1);
    for (int64_t t = 0; t < kShape.tokens(); ++t) targets_.push_back(token(generator_));
    const BlockContext context{config_, sdpa_shape(config_, kShape), {}, {}, alone_, stream_};
    const Tensor targets(targets_.data(), DType::kInt32, {kShape.tokens()});
    head_norm_forward(context, weights_, h_, zero_, activations_);
    head_loss(context, weights_, targets, activations_);
    forward_losses_ = copy(activations_.losses);
    head_loss_backward(context, {.weights = weights_,
                                 .gradients = gradients_,
                                 .activations = activations_,
                                 .targets = targets,
                                 .d_h = d_h_,
                                 .d_h_amax = {},
                                 .scale = 0.25f,
                                 .accumulate = false});
  }

  static std::vector<float> copy(const Tensor& tensor) {
    return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
  }
  std::vector<float> forward_losses() const { return forward_losses_; }
  std::vector<float> losses() const { return copy(activations_.losses); }
  std::vector<float> d_h() const { return copy(d_h_); }
  std::vector<float> d_lm_head() const { return copy(gradients_.lm_head); }
  std::vector<float> d_norm() const { return copy(gradients_.norm); }

 private:
  void fill(const Tensor& tensor) {
    std::normal_distribution<float> normal(0.0f, 0.5f);
    for (int64_t i = 0; i < tensor.numel(); ++i) tensor.data<float>()[i] = normal(generator_);
  }

  std::mt19937_64 generator_{5};
  ModelConfig config_ = tiny_config();
  Stream stream_ = Stream::cpu();
  Buffer workspace_ = Buffer::host(Device::kCpu, head_workspace_bytes(config_, kShape, DType::kFloat32, stream_));
  TensorGroup alone_{{}, kShape.tokens(), stream_};
  ParameterLayout layout_;
  Arena arena_;
  ShardedParameters parameters_;
  HeadParameters weights_;
  HeadParameters gradients_;
  Tensor losses_;
  HeadActivations activations_;
  Tensor h_;
  Tensor d_h_;
  Tensor zero_;
  std::vector<int32_t> targets_;
  std::vector<float> forward_losses_;
};

void expect_close(const std::vector<float>& a, const std::vector<float>& b, const char* name) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_LT(relative_error(a.data(), b.data(), static_cast<int64_t>(b.size())), 1e-6) << name;
}

TEST(Head, ChunksGiveTheResultOfTheWhole) {
  const Head whole(kShape.tokens());
  for (const int64_t chunk : {1, 4, 5, 12}) {
    const Head chunked(chunk);
    expect_close(chunked.forward_losses(), whole.forward_losses(), "losses of the forward pass");
    expect_close(chunked.losses(), whole.losses(), "losses");
    expect_close(chunked.d_h(), whole.d_h(), "d_h");
    expect_close(chunked.d_lm_head(), whole.d_lm_head(), "d_lm_head");
    expect_close(chunked.d_norm(), whole.d_norm(), "d_norm");
  }
}

TEST(Head, LogitsOfALargeVocabularyNeverExistWhole) {
  ModelConfig config = tiny_config();
  config.vocab_size = 128256;
  Arena plan(Device::kCpu);
  const HeadActivations activations(config, {.micro_batch_size = 2, .seq_len = 8192}, DType::kBFloat16, {}, plan);
  EXPECT_LT(activations.logits.bytes(), (int64_t{1} << 30) + 128 * 128256 * 2);
}

}  // namespace
}  // namespace octavo
