#include "app/run/weights.h"

#include <algorithm>
#include <array>
#include <functional>

#include "core/error.h"
#include "kernels/optimizer/adamw_float8.h"

namespace octavo {

namespace {

constexpr int64_t kStagingElements = int64_t{1} << 24;

// Host memory through which a tensor is copied to a GPU in parts. Has no memory in a run on the CPU.
struct Staging {
  Staging(const Tensor& target, int64_t count, const Stream& stream)
      : buffer(Buffer::host(stream.device(), stream.is_cuda() ? count * dtype_bytes(target.dtype()) : 0)),
        elements(buffer.data(), target.dtype(), {count}),
        copied(stream.device()) {}

  Buffer buffer;
  Tensor elements;
  Event copied;  // Event after the copy of the last part to the GPU.
};

// Function that writes the elements [begin, end) of a parameter, or of one of its optimizer states, to `out`, host
// memory of the state's dtype.
using ParameterReader = std::function<void(const ParameterSpec& spec, int64_t begin, int64_t end, const Tensor& out)>;

// Fills a state of the optimizer, or the master weights (master_state), with this rank's slices of the parameters,
// which `read` provides. Waits for the copies.
void fill_state(const OptimizerState& state, const ShardedParameters& parameters, const ParameterReader& read,
                Stream& stream) {
  const int64_t elements = std::min(kStagingElements, std::max<int64_t>(state.shards.numel(), 1));
  // Double buffer: one is filled while the other is copied to the GPU.
  std::array<Staging, 2> stagings{Staging(state.shards, elements, stream), Staging(state.shards, elements, stream)};
  size_t turn = 0;
  for (const ParameterPiece& piece : parameters.pieces()) {
    if (!state.has(piece.spec->unit)) continue;
    for (int64_t begin = piece.begin; begin < piece.end; begin += elements) {
      const int64_t end = std::min(begin + elements, piece.end);
      const Tensor place = state.of(piece).rows(begin - piece.begin, end - piece.begin);
      if (!stream.is_cuda()) {
        read(*piece.spec, begin, end, place);
        continue;
      }
      Staging& staging = stagings[turn++ % stagings.size()];
      staging.copied.synchronize();
      const Tensor part = staging.elements.rows(0, end - begin);
      read(*piece.spec, begin, end, part);
      stream.copy(place, part);
      staging.copied.record(stream);
    }
  }
  stream.synchronize();
}

}  // namespace

std::vector<TensorPart> parts_of(const ShardedParameters& parameters, const OptimizerState& state,
                                 const std::string& prefix) {
  std::vector<TensorPart> parts;
  for (const ParameterPiece& piece : parameters.pieces()) {
    const ParameterSpec& spec = *piece.spec;
    if (!state.has(spec.unit)) continue;
    const int64_t offset = spec.column_offset();
    parts.push_back({prefix + spec.name, spec.whole_shape, spec.columns(), offset + piece.begin, offset + piece.end});
  }
  return parts;
}

void initialize_parameters(const ShardedParameters& parameters, uint64_t seed, Stream& stream) {
  for (const ParameterPiece& piece : parameters.pieces()) {
    initialize_parameter(*piece.spec, seed, piece.begin, parameters.master(piece), stream);
  }
}

void load_initial_weights(const Config& config, WeightSource* source, const ShardedParameters& parameters,
                          Stream& stream) {
  if (source != nullptr) {
    source->verify(parts_of(parameters, master_state(parameters), ""));
    const auto read = [&](const ParameterSpec& spec, int64_t begin, int64_t end, const Tensor& out) {
      const int64_t offset = spec.column_offset();
      source->read(spec.name, spec.columns(), offset + begin, offset + end, out.data<float>());
    };
    return fill_state(master_state(parameters), parameters, read, stream);
  }
  initialize_parameters(parameters, config.training.seed, stream);
}

namespace {

// Returns a function that reads this rank's slices of a state, saved under the prefix `prefix`, and verifies their
// checksums.
ParameterReader verified_reader(Checkpoint& checkpoint, const std::string& prefix, const ShardedParameters& parameters,
                                const OptimizerState& state) {
  checkpoint.verify(parts_of(parameters, state, prefix));
  return [&checkpoint, prefix](const ParameterSpec& spec, int64_t begin, int64_t end, const Tensor& out) {
    const int64_t offset = spec.column_offset();
    checkpoint.read(prefix + spec.name, spec.columns(), offset + begin, offset + end, out);
  };
}

// Returns a reader of the first moment that converts the values of `first` between floats and FP8 codes, in either
// direction (kernels/optimizer/adamw_float8.h). The conversion needs the second moment, which `second` reads.
ParameterReader converting_reader(const ParameterReader& first, const ParameterReader& second) {
  return [=](const ParameterSpec& spec, int64_t begin, int64_t end, const Tensor& out) {
    const int64_t count = end - begin;
    std::vector<float> values(static_cast<size_t>(2 * count));
    const Tensor floats(values.data(), DType::kFloat32, {2 * count});
    const Tensor exp_avg = floats.rows(0, count), exp_avg_sq = floats.rows(count, 2 * count);
    second(spec, begin, end, exp_avg_sq);
    if (out.dtype() == DType::kFloat8E4M3) {
      first(spec, begin, end, exp_avg);
      return encode_first_moment(out, exp_avg, exp_avg_sq);
    }
    std::vector<Float8E4M3> codes(static_cast<size_t>(count));
    const Tensor read(codes.data(), DType::kFloat8E4M3, {count});
    first(spec, begin, end, read);
    decode_first_moment(out, read, exp_avg_sq);
  };
}

// Checks that the checkpoint was saved with the optimizer `type`, according to its recorded config. Imported models
// have no optimizer states and always pass.
void check_optimizer_type(const Checkpoint& checkpoint, OptimizerType type) {
  const nlohmann::json& meta = checkpoint.meta();
  const nlohmann::json::json_pointer section("/config/optimizer");
  if (!meta.contains(section)) return;
  const bool is_named = meta.contains(section / "type") && meta.at(section / "type").is_string();
  const std::string saved =
      is_named ? meta.at(section / "type").get<std::string>() : traits(OptimizerType::kAdamw).name;
  const std::string name = traits(type).name;
  CHECK_INPUT(saved == name,
              "{}: was saved with optimizer.type {}, whose states differ from those of {}, expected the same type; to "
              "start a new run from its weights, set checkpoint.resume=never and model.init_from={}",
              checkpoint.path().string(), saved, name, checkpoint.path().string());
}

}  // namespace

void load_weights(Checkpoint& checkpoint, const ShardedParameters& parameters, Stream& stream, SavedWeights which) {
  const OptimizerState master = master_state(parameters);
  const ParameterReader read = verified_reader(checkpoint, checkpoint.prefix(which), parameters, master);
  fill_state(master, parameters, read, stream);
}

void load_optimizer(Checkpoint& checkpoint, const ShardedParameters& parameters, const Optimizer& optimizer,
                    Stream& stream) {
  const ParameterLayout& layout = parameters.layout();
  check_optimizer_type(checkpoint, optimizer.type());
  for (const OptimizerState& state : optimizer.states()) {
    const std::string prefix = fmt::format("{}.", state.name);
    const auto first = std::find_if(layout.specs().begin(), layout.specs().end(),
                                    [&](const ParameterSpec& spec) { return state.has(spec.unit); });
    if (!checkpoint.has(prefix + first->name)) {
      optimizer.begin(state, stream);
      continue;
    }
    ParameterReader reader = verified_reader(checkpoint, prefix, parameters, state);
    const auto in_codes = [](DType dtype) { return dtype == DType::kFloat8E4M3; };
    if (state.codes_relative_to != nullptr &&
        in_codes(checkpoint.find(prefix + first->name)->dtype) != in_codes(state.shards.dtype())) {
      const std::string second = fmt::format("{}.", state.codes_relative_to);
      reader = converting_reader(reader, verified_reader(checkpoint, second, parameters, state));
    }
    fill_state(state, parameters, reader, stream);
  }
}

void load_amax_history(Checkpoint& checkpoint, AmaxTable* amaxes, Stream& stream) {
  if (amaxes == nullptr || !amaxes->delayed()) return;
  amaxes->set_steps_done(checkpoint.step());
  const Tensor& history = amaxes->history();
  std::vector<float> host(static_cast<size_t>(history.numel()));
  const CheckpointTensorInfo* found = checkpoint.find(kAmaxHistory);
  if (found != nullptr && found->shape == std::vector{history.dim(0), history.dim(1)}) {
    checkpoint.read(kAmaxHistory, 0, history.numel(), host.data());
  }
  stream.copy(history.raw(), host.data(), history.bytes());
  amaxes->restore(stream);
}

}  // namespace octavo
