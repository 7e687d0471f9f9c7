#include "model/activation_checkpointing.h"

#include <cmath>

#include "kernels/core/error.h"
#include "model/block.h"

namespace octavo {

Recompute recompute_of(const ActivationCheckpointing& checkpointing, int64_t layer) {
  using Mode = ActivationCheckpointing::Mode;
  CHECK(checkpointing.mode != Mode::kAuto, "activation checkpointing of mode auto, expected it to be decided");
  switch (checkpointing.mode) {
    case Mode::kSelective:
      return Recompute::kCheap;
    case Mode::kFull:
      return Recompute::kBlock;
    case Mode::kBlock: {
      const auto up_to = [&](int64_t i) { return std::floor(static_cast<double>(i) * checkpointing.ratio + 0.5); };
      return up_to(layer + 1) > up_to(layer) ? Recompute::kBlock : Recompute::kNothing;
    }
    default:
      return Recompute::kNothing;
  }
}

std::vector<KeptTensor> kept_tensors(const ModelConfig& local, const BatchShape& shape, DType compute,
                                     LinearPrecision recipe) {
  const int64_t tokens = shape.tokens();
  const int64_t hidden = local.hidden_size;
  const int64_t value = dtype_bytes(compute);
  const int64_t h_bytes = shape.share() * hidden * value;
  const int64_t rstd_bytes = shape.share() * dtype_bytes(DType::kFloat32);
  const int64_t lse_bytes = tokens * local.num_heads * dtype_bytes(DType::kFloat32);
  const auto product = [&](int64_t in, int64_t out) { return 2.0 * static_cast<double>(tokens * in * out); };
  const auto moved = [](int64_t bytes) { return static_cast<double>(bytes); };
  const std::array<LinearShape, kLinearsPerBlock> linears = linear_shapes(local, shape);
  // `values` are read to make a linear's input, of which its backward keeps `bytes`.
  const auto input = [&](const char* name, size_t linear, int64_t values) -> KeptTensor {
    const LinearShape& s = linears[linear];
    int64_t bytes = s.tokens * s.in * value;
    if (is_fp8(recipe)) {
      bytes =
          s.tokens * s.in + fp8_scale_count(traits(recipe).activations, s.in, s.tokens) * dtype_bytes(DType::kFloat32);
    } else if (linear == kAttentionOut) {
      bytes = 0;  // attention, as it is
    }
    const double both = bytes == 0 ? 0 : moved(values * value + bytes);
    return {.name = name, .kind = linear_input_kind(linear, recipe), .bytes = bytes, .moved_bytes = both};
  };
  const auto output = [](const char* name, int64_t bytes, double flops, double moved_bytes = 0) -> KeptTensor {
    return {.name = name, .kind = Activation::kOutput, .bytes = bytes, .flops = flops, .moved_bytes = moved_bytes};
  };
  const int64_t width = local.attention_width();
  const int64_t qkv_bytes = tokens * local.qkv_width() * value;
  const int64_t gate_up_bytes = tokens * 2 * local.intermediate_size * value;
  // A query sees half of the keys on average.
  const double attention_flops = 2.0 * static_cast<double>(tokens * shape.seq_len * width);
  return {{.name = "h0", .kind = Activation::kBlockInput, .bytes = h_bytes, .moved_bytes = moved(3 * h_bytes)},
          output("rstd1", rstd_bytes, 0, moved(rstd_bytes)),
          input("qkv input", kQkv, shape.share() * hidden),
          output("qkv", qkv_bytes, product(hidden, local.qkv_width()), moved(2 * qkv_bytes)),
          output("attention", tokens * width * value, attention_flops),
          output("lse", lse_bytes, 0, moved(lse_bytes)),
          input("o input", kAttentionOut, tokens * width),
          output("h1", h_bytes, product(width, hidden), moved(3 * h_bytes)),
          output("rstd2", rstd_bytes, 0, moved(rstd_bytes)),
          input("gate_up input", kGateUp, shape.share() * hidden),
          output("gate_up", gate_up_bytes, product(hidden, 2 * local.intermediate_size)),
          input("down input", kDown, tokens * 2 * local.intermediate_size)};
}

int64_t kept_bytes(const std::vector<KeptTensor>& tensors, Recompute recompute) {
  int64_t bytes = 0;
  for (const KeptTensor& tensor : tensors) {
    if (keeps(recompute, tensor.kind)) bytes += tensor.bytes;
  }
  return bytes;
}

Tensor SharedActivations::get(const std::string& name, DType dtype, std::initializer_list<int64_t> shape,
                              Arena& arena) {
  Tensor& tensor = tensors_[name];
  if (!tensor.defined()) tensor = arena.allocate("shared activations " + name, dtype, shape);
  return tensor;
}

}  // namespace octavo
