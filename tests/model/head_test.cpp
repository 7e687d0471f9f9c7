// Compares the head in chunks of tokens with the head over all tokens at once.
#include "model/head.h"

#include "kernels/layers/cross_entropy.h"
#include "tests/model/llama_fixture.h"

namespace octavo::head_test {
namespace {

constexpr BatchShape kShape{.micro_batch_size = 1, .seq_len = 13};
constexpr BatchShape kFp8Shape{.micro_batch_size = 1, .seq_len = 80};

// Returns a config with dimensions that FP8 matmuls support.
ModelConfig fp8_head_config() {
  ModelConfig config = tiny_config();
  config.hidden_size = 48;
  config.vocab_size = 107;  // padded to 112
  return config;
}

PrecisionConfig precision_of(LmHeadPrecision lm_head) { return {.compute = DType::kFloat32, .lm_head = lm_head}; }

struct HeadCase {
  ModelConfig config = tiny_config();
  BatchShape shape = kShape;
  PrecisionConfig precision = precision_of(LmHeadPrecision::kBFloat16);
  float z_loss = 0;
};

HeadCase fp8_case(LmHeadPrecision lm_head) {
  return {.config = fp8_head_config(), .shape = kFp8Shape, .precision = precision_of(lm_head)};
}

// Buffers of a head, and its gradients after one backward in chunks of `chunk` tokens.
class Head {
 public:
  explicit Head(int64_t chunk, const HeadCase& head = {})
      : config_(head.config),
        local_(local_config(config_, {})),
        shape_(head.shape),
        precision_(head.precision),
        layout_(config_),
        arena_(Device::kCpu, int64_t{1} << 21),
        parameters_(layout_, precision_, {}, LlamaMode::kTraining, {}, arena_, stream_),
        weights_([&](const ParameterSpec& spec) { return parameters_.full_weight(spec); }, layout_, config_),
        gradients_([&](const ParameterSpec& spec) { return parameters_.full_gradient(spec); }, layout_, config_),
        losses_(arena_.allocate("losses", DType::kFloat32, {shape_.tokens()})),
        activations_(local_, shape_, precision_, true, losses_, arena_),
        h_(arena_.allocate("h", DType::kFloat32, {shape_.tokens(), config_.hidden_size})),
        d_h_(arena_.allocate("d_h", DType::kFloat32, {shape_.tokens(), config_.hidden_size})),
        zero_(arena_.allocate("zero", DType::kFloat32, {shape_.tokens(), config_.hidden_size})) {
    activations_.logits = activations_.logits.rows(0, chunk);
    stream_.set_workspace(Tensor(workspace_.data(), DType::kUInt8, {workspace_.bytes()}));
    fill(parameters_.master());
    fill(h_);
    std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(config_.vocab_size) - 1);
    for (int64_t t = 0; t < shape_.tokens(); ++t) targets_.push_back(token(generator_));
    const BlockContext context{local_, sdpa_shape(local_, shape_), {}, {}, alone_, stream_, sequences_};
    const Tensor targets(targets_.data(), DType::kInt32, {shape_.tokens()});
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
                                 .accumulate = false,
                                 .z_loss = head.z_loss});
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
  ModelConfig config_;
  ModelConfig local_;
  BatchShape shape_;
  PrecisionConfig precision_;
  Stream stream_ = Stream::cpu();
  Buffer workspace_ = Buffer::host(Device::kCpu, head_workspace_bytes(local_, shape_, precision_, stream_));
  TensorGroup alone_{nullptr, shape_.tokens(), stream_};
  ContextGroup sequences_{{}, stream_};
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

void expect_same_in_chunks(std::initializer_list<int64_t> chunks, const HeadCase& head) {
  const Head whole(head.shape.tokens(), head);
  for (const int64_t chunk : chunks) {
    const Head chunked(chunk, head);
    expect_close(chunked.forward_losses(), whole.forward_losses(), "losses of the forward pass");
    expect_close(chunked.losses(), whole.losses(), "losses");
    expect_close(chunked.d_h(), whole.d_h(), "d_h");
    expect_close(chunked.d_lm_head(), whole.d_lm_head(), "d_lm_head");
    expect_close(chunked.d_norm(), whole.d_norm(), "d_norm");
  }
}

TEST(Head, ChunksGiveTheResultOfTheWhole) { expect_same_in_chunks({1, 4, 5, 12}, {}); }

// A scale is computed over all tokens, so a chunk of tokens is cast to the same FP8 values as the whole tensor.
TEST(Head, ChunksGiveTheResultOfTheWholeInFp8) {
  expect_same_in_chunks({16, 32, 64}, fp8_case(LmHeadPrecision::kFp8Backward));
  expect_same_in_chunks({16, 32, 64}, fp8_case(LmHeadPrecision::kFp8));
}

double cosine_of(const std::vector<float>& a, const std::vector<float>& b) {
  return cosine(a.data(), b.data(), static_cast<int64_t>(b.size()));
}

// With a z-loss, the scale reserves a part of the FP8 range for the gradient of the z-loss.
TEST(Head, Fp8GradientsAreThoseOfTheComputeDtypeToRounding) {
  for (const float z_loss : {0.0f, 1e-4f}) {
    HeadCase plain = fp8_case(LmHeadPrecision::kBFloat16);
    plain.z_loss = z_loss;
    const Head exact(32, plain);
    for (const LmHeadPrecision lm_head : {LmHeadPrecision::kFp8Backward, LmHeadPrecision::kFp8}) {
      for (const DType format : {DType::kFloat8E5M2, DType::kFloat8E4M3}) {
        SCOPED_TRACE(fmt::format("{}, {}, z-loss {}", traits(lm_head).name, dtype_name(format), z_loss));
        HeadCase head = fp8_case(lm_head);
        head.precision.gradient_format = format;
        head.z_loss = z_loss;
        const Head fp8(32, head);
        const bool same_losses = lm_head == LmHeadPrecision::kFp8Backward;
        EXPECT_EQ(fp8.losses() == exact.losses(), same_losses);
        EXPECT_EQ(fp8.losses(), fp8.forward_losses());
        EXPECT_GT(cosine_of(fp8.losses(), exact.losses()), 0.999);
        EXPECT_GT(cosine_of(fp8.d_lm_head(), exact.d_lm_head()), 0.99);
        EXPECT_GT(cosine_of(fp8.d_h(), exact.d_h()), 0.99);
        EXPECT_GT(cosine_of(fp8.d_norm(), exact.d_norm()), 0.98);
        EXPECT_NE(fp8.d_lm_head(), exact.d_lm_head());
      }
    }
  }
}

// The scale of d_logits comes from a bound. The largest d_logits come close to the bound and do not exceed it.
TEST(Head, LogitGradientsAreBounded) {
  Stream stream = Stream::cpu();
  std::vector<float> logits = {-40, 40, 3, 40, -40, 3, 0, 0, 0, 900, 0, 0};
  std::vector<int32_t> targets = {0, 0, 2, 1};
  std::vector<float> losses(4);
  for (const float z_loss : {0.0f, 1e-4f, 0.1f}) {
    std::vector<float> gradients(logits.size());
    cross_entropy({.losses = {losses.data(), DType::kFloat32, {4}},
                   .d_logits = {gradients.data(), DType::kFloat32, {4, 3}},
                   .logits = {logits.data(), DType::kFloat32, {4, 3}},
                   .targets = {targets.data(), DType::kInt32, {4}},
                   .scale = 0.125f,
                   .z_loss = z_loss},
                  stream);
    float largest = 0;
    for (const float gradient : gradients) largest = std::max(largest, std::fabs(gradient));
    EXPECT_LE(largest, cross_entropy_gradient_bound(0.125f, z_loss)) << z_loss;
    EXPECT_GE(largest, 0.9f * cross_entropy_gradient_bound(0.125f, z_loss)) << z_loss;
  }
}

TEST(Head, LogitsOfALargeVocabularyNeverExistWhole) {
  ModelConfig config = tiny_config();
  config.vocab_size = 128256;
  Arena plan(Device::kCpu);
  const HeadActivations activations(config, {.micro_batch_size = 2, .seq_len = 8192}, {}, true, {}, plan);
  EXPECT_LT(activations.logits.bytes(), (int64_t{1} << 30) + 128 * 128256 * 2);
}

}  // namespace
}  // namespace octavo::head_test
