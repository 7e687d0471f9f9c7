#include "app/weights.h"

#include <algorithm>

#include "app/weight_source.h"
#include "kernels/core/error.h"

namespace octavo {

namespace {

constexpr int64_t kStagingElements = int64_t{1} << 24;

}  // namespace

void fill_parameters(const Tensor& shards, const ShardedParameters& parameters, const ParameterReader& read,
                     Stream& stream) {
  const int64_t elements = std::min(kStagingElements, std::max<int64_t>(shards.numel(), 1));
  const Buffer buffer = Buffer::host(stream.device(), elements * dtype_bytes(shards.dtype()));
  const Tensor staging(buffer.data(), shards.dtype(), {elements});
  for (const ParameterPiece& piece : parameters.pieces()) {
    for (int64_t begin = piece.begin; begin < piece.end; begin += elements) {
      const int64_t end = std::min(begin + elements, piece.end);
      const int64_t offset = piece.offset + begin - piece.begin;
      const Tensor part = staging.rows(0, end - begin);
      read(*piece.spec, begin, end, part);
      stream.copy(shards.rows(offset, offset + end - begin), part);
      stream.synchronize();  // the staging memory is used again
    }
  }
}

void initialize_parameters(const ShardedParameters& parameters, uint64_t seed, Stream& stream) {
  for (const ParameterPiece& piece : parameters.pieces()) {
    initialize_parameter(*piece.spec, seed, piece.begin, parameters.master(piece), stream);
  }
}

void load_initial_weights(const Config& config, const ShardedParameters& parameters, Stream& stream) {
  if (!config.init_from.empty()) {
    const std::unique_ptr<WeightSource> source = open_weights(config.init_from);
    const auto read = [&](const ParameterSpec& spec, int64_t begin, int64_t end, const Tensor& out) {
      const int64_t offset = spec.column_offset();
      source->read(spec.name, spec.columns(), offset + begin, offset + end, out.data<float>());
    };
    return fill_parameters(parameters.master(), parameters, read, stream);
  }
  initialize_parameters(parameters, config.training.seed, stream);
}

namespace {

// Reads a parameter, or what is saved beside it under `prefix`.
ParameterReader reader_of(Checkpoint& checkpoint, const std::string& prefix) {
  return [&checkpoint, prefix](const ParameterSpec& spec, int64_t begin, int64_t end, const Tensor& out) {
    const int64_t offset = spec.column_offset();
    checkpoint.read(prefix + spec.name, spec.columns(), offset + begin, offset + end, out);
  };
}

}  // namespace

void load_weights(Checkpoint& checkpoint, const ShardedParameters& parameters, Stream& stream) {
  fill_parameters(parameters.master(), parameters, reader_of(checkpoint, ""), stream);
}

void load_moments(Checkpoint& checkpoint, const ShardedParameters& parameters, const Optimizer& optimizer,
                  Stream& stream) {
  for (const auto& [prefix, moment] :
       {std::pair{kExpAvg, optimizer.exp_avg()}, std::pair{kExpAvgSq, optimizer.exp_avg_sq()}}) {
    if (!checkpoint.has(prefix + parameters.layout().specs().front().name)) continue;
    fill_parameters(moment, parameters, reader_of(checkpoint, prefix), stream);
  }
}

}  // namespace octavo
