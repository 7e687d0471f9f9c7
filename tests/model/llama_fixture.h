// Fixture of the model tests: a tiny Llama on the CPU with its memory and batches.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "core/error.h"
#include "model/llama.h"

namespace octavo {

// Returns a model with grouped-query attention, head_dim * num_heads != hidden_size, and sizes without a common factor.
inline ModelConfig tiny_config() {
  return {.hidden_size = 20,
          .intermediate_size = 27,
          .num_layers = 2,
          .num_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 6,
          .vocab_size = 31,
          .rope_theta = 1000.0,
          .rope_scaling = std::nullopt,
          .rms_norm_eps = 1e-5,
          .tie_word_embeddings = false};
}

// Returns a model whose dimensions are multiples of 128, so that all FP8 recipes apply.
inline ModelConfig fp8_config() {
  ModelConfig config;
  config.hidden_size = 128;
  config.intermediate_size = 256;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 64;
  config.vocab_size = 67;
  return config;
}

// A micro-batch that owns its memory.
class OwnedBatch {
 public:
  explicit OwnedBatch(int64_t tokens) : inputs_(static_cast<size_t>(tokens)), targets_(inputs_), order_(inputs_) {}
  static OwnedBatch random(int64_t tokens, int64_t vocab_size, std::mt19937_64& generator) {
    OwnedBatch batch(tokens);
    std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(vocab_size) - 1);
    for (int32_t& id : batch.inputs_) id = token(generator);
    for (int32_t& id : batch.targets_) id = token(generator);
    batch.targets_[1] = -1;  // This target is ignored.
    batch.sort_positions();
    return batch;
  }

  // Returns rows [begin, end), which must be whole sequences, as a separate batch.
  OwnedBatch slice(int64_t begin, int64_t end) const {
    OwnedBatch part(end - begin);
    std::copy(inputs_.begin() + begin, inputs_.begin() + end, part.inputs_.begin());
    std::copy(targets_.begin() + begin, targets_.begin() + end, part.targets_.begin());
    for (Document document : documents_) {
      document.begin -= static_cast<int32_t>(begin);
      if (document.begin >= 0 && document.begin < end - begin) part.documents_.push_back(document);
    }
    part.sort_positions();
    return part;
  }

  // Divides each sequence of the batch into documents of `length` tokens.
  void mask_documents(int64_t length, int64_t seq_len) {
    std::vector<int32_t> document_start;
    for (int64_t t = 0; t < static_cast<int64_t>(inputs_.size()); ++t) {
      document_start.push_back(static_cast<int32_t>(t % seq_len / length * length));
    }
    append_documents(document_start, seq_len, documents_);
  }

  std::vector<int32_t>& inputs() { return inputs_; }
  const std::vector<int32_t>& targets() const { return targets_; }

  MicroBatch views() {
    const auto view = [](std::vector<int32_t>& ids) {
      return Tensor(ids.data(), DType::kInt32, {static_cast<int64_t>(ids.size())});
    };
    return {view(inputs_), view(targets_), view(order_), {.list = documents_, .device = {}}};
  }

 private:
  void sort_positions() {
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
      return inputs_[static_cast<size_t>(a)] < inputs_[static_cast<size_t>(b)];
    });
  }

  std::vector<int32_t> inputs_;
  std::vector<int32_t> targets_;
  std::vector<int32_t> order_;
  std::vector<Document> documents_;
};

// A Llama with random weights and its memory. The weights have standard deviation 0.25, so large that the nonlinear
// parts of the model matter, and the norm weights are near one.
class TinyLlama {
 public:
  TinyLlama(const ModelConfig& config, const BatchShape& shape, DType compute = DType::kFloat32,
            LlamaMode mode = LlamaMode::kTraining, LinearPrecision linear = LinearPrecision::kBFloat16,
            bool fp8_stats = false)
      : TinyLlama(options(config, shape, compute, mode, linear, fp8_stats)) {}
  explicit TinyLlama(const LlamaOptions& options)
      : layout_(options.config),
        stream_(Stream::cpu()),
        arena_(Device::kCpu, plan(options).used()),
        parameters_(layout_, options.precision, {}, options.mode, {}, arena_, stream_),
        llama_(options, parameters_, arena_, stream_) {
    std::mt19937_64 generator(99);
    for (const ParameterSpec& spec : layout_.specs()) {
      const bool norm = spec.shape.size() == 1;
      std::normal_distribution<float> normal(norm ? 1.0f : 0.0f, norm ? 0.2f : 0.25f);
      float* values = master(spec);
      for (int64_t i = 0; i < spec.numel(); ++i) values[i] = normal(generator);
    }
    cast_weights();
  }

  // Casts the master weights to the dtypes of the matmuls.
  void cast_weights() { parameters_.cast_weights(llama_.weight_casts(), stream_); }

  // Returns the sum of the losses of a forward pass.
  double loss(OwnedBatch& batch) {
    llama_.forward(batch.views());
    return sum_of_losses();
  }
  double sum_of_losses() const {
    const float* losses = llama_.losses().data<float>();
    return std::accumulate(losses, losses + llama_.losses().numel(), 0.0);
  }
  std::vector<float> losses() const {
    const float* losses = llama_.losses().data<float>();
    return {losses, losses + llama_.losses().numel()};
  }

  // Returns an arena that has counted the parameters and activations.
  static Arena plan(const LlamaOptions& options) {
    Arena plan(Device::kCpu);
    Stream stream = Stream::cpu();
    const ParameterLayout layout(options.config);
    ShardedParameters parameters(layout, options.precision, {}, options.mode, {}, plan, stream);
    const Llama llama(options, parameters, plan, stream);
    return plan;
  }

  Llama& llama() { return llama_; }
  Stream& stream() { return stream_; }
  const ParameterLayout& layout() const { return layout_; }
  ShardedParameters& parameters() { return parameters_; }
  float* master(const ParameterSpec& spec) { return parameters_.master().data<float>() + spec.offset; }
  const float* gradient(const ParameterSpec& spec) const { return parameters_.gradients().data<float>() + spec.offset; }

 private:
  static LlamaOptions options(const ModelConfig& config, const BatchShape& shape, DType compute, LlamaMode mode,
                              LinearPrecision linear, bool fp8_stats) {
    return {.config = config,
            .shape = shape,
            .precision = {.compute = compute, .linear = linear},
            .mode = mode,
            .fp8_stats = fp8_stats};
  }
  ParameterLayout layout_;
  Stream stream_;
  Arena arena_;
  ShardedParameters parameters_;
  Llama llama_;
};

// Returns ||a - b|| / ||b|| over n elements.
inline double relative_error(const float* a, const float* b, int64_t n) {
  double difference = 0;
  double norm = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double x = static_cast<double>(a[i]);
    const double y = static_cast<double>(b[i]);
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return difference == 0 ? 0.0 : std::sqrt(difference / norm);
}

inline double cosine(const float* a, const float* b, int64_t n) {
  double ab = 0;
  double aa = 0;
  double bb = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double x = static_cast<double>(a[i]);
    const double y = static_cast<double>(b[i]);
    ab += x * y;
    aa += x * x;
    bb += y * y;
  }
  return ab / std::sqrt(aa * bb);
}

}  // namespace octavo
