#include "app/weights.h"

#include <algorithm>

#include "app/weight_source.h"
#include "kernels/core/error.h"

namespace octavo {

namespace {

constexpr int64_t kStagingElements = int64_t{1} << 24;

}  // namespace

void fill_parameters(const Tensor& flat, const ParameterLayout& layout, const ParameterReader& read, Stream& stream) {
  const int64_t elements = std::min(kStagingElements, layout.total_elements());
  const Buffer buffer = Buffer::host(stream.device(), elements * dtype_bytes(flat.dtype()));
  const Tensor staging(buffer.data(), flat.dtype(), {elements});
  for (const ParameterSpec& spec : layout.specs()) {
    for (int64_t begin = 0; begin < spec.numel(); begin += elements) {
      const int64_t end = std::min(begin + elements, spec.numel());
      const Tensor part = staging.rows(0, end - begin);
      read(spec, begin, end, part);
      stream.copy(flat.rows(spec.offset + begin, spec.offset + end), part);
      stream.synchronize();  // the staging memory is used again
    }
  }
}

void load_initial_weights(const Config& config, const ParameterLayout& layout, const Tensor& master, Stream& stream) {
  if (!config.init_from.empty()) {
    const std::unique_ptr<WeightSource> source = open_weights(config.init_from);
    const auto read = [&](const ParameterSpec& spec, int64_t begin, int64_t end, const Tensor& out) {
      source->read(spec.name, begin, end, out.data<float>());
    };
    return fill_parameters(master, layout, read, stream);
  }
  const auto initialize = [&](const ParameterSpec& spec, int64_t begin, int64_t end, const Tensor& out) {
    initialize_parameter(spec, config.training.seed, begin, end, out.data<float>());
  };
  fill_parameters(master, layout, initialize, stream);
}

void load_weights(Checkpoint& checkpoint, const ParameterLayout& layout, const Tensor& master, Stream& stream) {
  const auto read = [&](const ParameterSpec& spec, int64_t begin, int64_t end, const Tensor& out) {
    checkpoint.read(spec.name, begin, end, out);
  };
  fill_parameters(master, layout, read, stream);
}

void load_moments(Checkpoint& checkpoint, const ParameterLayout& layout, const Optimizer& optimizer, Stream& stream) {
  for (const auto& [prefix, moment] :
       {std::pair{kExpAvg, optimizer.exp_avg()}, std::pair{kExpAvgSq, optimizer.exp_avg_sq()}}) {
    if (!checkpoint.has(prefix + layout.specs().front().name)) continue;
    const std::string name_prefix = prefix;
    const auto read = [&](const ParameterSpec& spec, int64_t begin, int64_t end, const Tensor& out) {
      checkpoint.read(name_prefix + spec.name, begin, end, out);
    };
    fill_parameters(moment, layout, read, stream);
  }
}

}  // namespace octavo
