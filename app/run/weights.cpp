#include "app/run/weights.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <mutex>
#include <unordered_map>

#include "core/error.h"
#include "core/files/json_input.h"
#include "core/thread.h"
#include "kernels/optimizer/adamw_float8.h"

namespace octavo {

namespace {

// Number of elements that a thread reads at a time. They fit into the cache of a core.
constexpr int64_t kRangeElements = int64_t{1} << 18;

// Host memory through which a range of elements is copied to a GPU. Has no memory in a run on the CPU.
struct Staging {
  Staging(DType dtype, const Stream& stream)
      : buffer(Buffer::host(stream.device(), stream.is_cuda() ? kRangeElements * dtype_bytes(dtype) : 0)),
        elements(buffer.data(), dtype, {kRangeElements}),
        copied(stream.device()) {}

  Buffer buffer;
  Tensor elements;
  Event copied;  // Event after the copy of the last range to the GPU.
};

// Function that writes the elements [begin, end) of a parameter, or of one of its optimizer states, to `out`, host
// memory of the state's dtype. The ranges of a slice are read by one thread, from the slice's beginning to its end.
using ParameterReader = std::function<void(const ParameterSlice& slice, int64_t begin, int64_t end, const Tensor& out)>;

// Fills a state of the optimizer, or the master weights (master_state), with this rank's slices of the parameters. Up
// to `threads` threads call `read` at the same time. Waits for the copies.
void fill_state(const OptimizerState& state, const ShardedParameters& parameters, const ParameterReader& read,
                Stream& stream, size_t threads = kReadingThreads) {
  std::vector<const ParameterSlice*> slices;
  for (const ParameterSlice& slice : parameters.slices()) {
    if (state.has(slice.spec->unit)) slices.push_back(&slice);
  }
  // Begins with the longest slices, so that the threads end at about the same time.
  std::ranges::stable_sort(slices, std::greater(),
                           [](const ParameterSlice* slice) { return slice->end - slice->begin; });
  std::vector<Staging> stagings;  // Two per thread: one is filled while the other is copied to the GPU.
  for (size_t i = 0; i < 2 * threads; ++i) stagings.emplace_back(state.shards.dtype(), stream);
  std::mutex mutex;  // Guards the stream.
  for_each_in_parallel(slices.size(), threads, [&](size_t item, size_t thread) {
    stream.bind_thread();
    const ParameterSlice& slice = *slices[item];
    size_t turn = 0;
    for (int64_t begin = slice.begin; begin < slice.end; begin += kRangeElements) {
      const int64_t end = std::min(begin + kRangeElements, slice.end);
      const Tensor place = state.of(slice).rows(begin - slice.begin, end - slice.begin);
      if (!stream.is_cuda()) {
        read(slice, begin, end, place);
        continue;
      }
      Staging& staging = stagings[2 * thread + turn++ % 2];
      staging.copied.synchronize();
      const Tensor range = staging.elements.rows(0, end - begin);
      read(slice, begin, end, range);
      const std::lock_guard lock(mutex);
      stream.copy(place, range);
      staging.copied.record(stream);
    }
  });
  stream.synchronize();
}

}  // namespace

std::vector<TensorPart> parts_of(const ShardedParameters& parameters, const OptimizerState& state,
                                 const std::string& prefix) {
  std::vector<TensorPart> parts;
  for (const ParameterSlice& slice : parameters.slices()) {
    const ParameterSpec& spec = *slice.spec;
    if (!state.has(spec.unit)) continue;
    const int64_t offset = spec.column_offset();
    parts.push_back({prefix + spec.name, spec.whole_shape, spec.columns(), offset + slice.begin, offset + slice.end});
  }
  return parts;
}

void initialize_parameters(const ShardedParameters& parameters, uint64_t seed, Stream& stream) {
  for (const ParameterSlice& slice : parameters.slices()) {
    initialize_parameter(*slice.spec, seed, slice.begin, parameters.master(slice), stream);
  }
}

void load_initial_weights(const Config& config, WeightSource* source, const ShardedParameters& parameters,
                          Stream& stream) {
  if (source != nullptr) {
    source->verify(parts_of(parameters, master_state(parameters), ""));
    const auto read = [&](const ParameterSlice& slice, int64_t begin, int64_t end, const Tensor& out) {
      const ParameterSpec& spec = *slice.spec;
      const int64_t offset = spec.column_offset();
      source->read(spec.name, spec.columns(), offset + begin, offset + end, out.data<float>());
    };
    return fill_state(master_state(parameters), parameters, read, stream);
  }
  initialize_parameters(parameters, config.training.seed, stream);
}

namespace {

// The readers of this rank's slices of a state, which was saved under the prefix `prefix`.
class SavedState {
 public:
  SavedState(Checkpoint& checkpoint, const std::string& prefix, const ShardedParameters& parameters,
             const OptimizerState& state) {
    for (const ParameterSlice& slice : parameters.slices()) {
      const ParameterSpec& spec = *slice.spec;
      if (!state.has(spec.unit)) continue;
      const int64_t offset = spec.column_offset();
      readers_.emplace(&slice,
                       checkpoint.reader(prefix + spec.name, spec.columns(), offset + slice.begin, offset + slice.end));
    }
  }

  ParameterReader reader() {
    return [this](const ParameterSlice& slice, int64_t begin, int64_t end, const Tensor& out) {
      const int64_t offset = slice.spec->column_offset();
      readers_.at(&slice).read(offset + begin, offset + end, out);
    };
  }

 private:
  std::unordered_map<const ParameterSlice*, TensorReader> readers_;
};

// Returns a reader of the first moment that converts the values of `first` between floats and FP8 codes, in either
// direction (kernels/optimizer/adamw_float8.h). The conversion needs the second moment, which `second` reads.
ParameterReader converting_reader(const ParameterReader& first, const ParameterReader& second) {
  return [=](const ParameterSlice& slice, int64_t begin, int64_t end, const Tensor& out) {
    const int64_t count = end - begin;
    std::vector<float> values(static_cast<size_t>(2 * count));
    const Tensor floats(values.data(), DType::kFloat32, {2 * count});
    const Tensor exp_avg = floats.rows(0, count), exp_avg_sq = floats.rows(count, 2 * count);
    second(slice, begin, end, exp_avg_sq);
    if (out.dtype() == DType::kFloat8E4M3) {
      first(slice, begin, end, exp_avg);
      return encode_first_moment(out, exp_avg, exp_avg_sq);
    }
    std::vector<Float8E4M3> codes(static_cast<size_t>(count));
    const Tensor read(codes.data(), DType::kFloat8E4M3, {count});
    first(slice, begin, end, read);
    decode_first_moment(out, read, exp_avg_sq);
  };
}

// Returns the tensors that this rank and its replicas save, without those that other ranks save
// (ParameterSpec::counts).
std::vector<CheckpointTensor> checkpoint_tensors(TrainingState& state, bool with_history) {
  std::vector<CheckpointTensor> tensors;
  const auto add = [&](const std::string& prefix, const OptimizerState& kept) {
    for (const ParameterSlice& slice : state.parameters.slices()) {
      const ParameterSpec& spec = *slice.spec;
      if (!spec.counts || !kept.has(spec.unit)) continue;
      tensors.push_back({.name = prefix + spec.name,
                         .shape = spec.whole_shape,
                         .begin = spec.column_offset() + slice.begin,
                         .end = spec.column_offset() + slice.end,
                         .data = kept.of(slice),
                         .columns = spec.columns(),
                         .stable = true});
    }
  };
  add("", master_state(state.parameters));
  for (const OptimizerState& kept : state.optimizer.states()) add(fmt::format("{}.", kept.name), kept);
  if (const Tensor history = amax_history(state); with_history && history.defined()) {
    tensors.push_back(
        {kAmaxHistory, {history.dim(0), history.dim(1)}, 0, history.numel(), history.view({history.numel()})});
  }
  return tensors;
}

// Checks that the checkpoint was saved with the optimizer `type`, according to its recorded config. Imported models
// have no optimizer states and always pass.
void check_optimizer_type(const Checkpoint& checkpoint, OptimizerType type) {
  const nlohmann::json& meta = checkpoint.meta();
  if (!meta.contains(nlohmann::json::json_pointer("/config/optimizer"))) return;
  const std::string saved =
      find_value<std::string>(meta, "/config/optimizer/type").value_or(traits(OptimizerType::kAdamw).name);
  const std::string name = traits(type).name;
  CHECK_INPUT(saved == name,
              "{}: was saved with optimizer.type {}, whose states differ from those of {}, expected the same type; to "
              "start a new run from its weights, set model.init_from={} and another logging.dir and checkpoint.dir",
              checkpoint.path().string(), saved, name, checkpoint.path().string());
}

// Loads the optimizer states of a checkpoint. If the checkpoint has no optimizer states (an imported model), sets the
// initial states of a run. Throws an InputError if the checkpoint was saved with another type of optimizer.
// Requires: the weights have been loaded.
void load_optimizer(Checkpoint& checkpoint, const ShardedParameters& parameters, const Optimizer& optimizer,
                    Stream& stream) {
  const ParameterLayout& layout = parameters.layout();
  check_optimizer_type(checkpoint, optimizer.type());
  for (const OptimizerState& state : optimizer.states()) {
    const std::string prefix = fmt::format("{}.", state.name);
    const auto first =
        std::ranges::find_if(layout.specs(), [&](const ParameterSpec& spec) { return state.has(spec.unit); });
    if (!checkpoint.has(prefix + first->name)) {
      optimizer.begin(state, stream);
      continue;
    }
    SavedState saved(checkpoint, prefix, parameters, state);
    const auto in_codes = [](DType dtype) { return dtype == DType::kFloat8E4M3; };
    if (state.codes_relative_to != nullptr &&
        in_codes(checkpoint.find(prefix + first->name)->dtype) != in_codes(state.shards.dtype())) {
      SavedState second(checkpoint, fmt::format("{}.", state.codes_relative_to), parameters, state);
      // One thread reads, because the conversion uses all threads of the rank.
      fill_state(state, parameters, converting_reader(saved.reader(), second.reader()), stream, 1);
    } else {
      fill_state(state, parameters, saved.reader(), stream);
    }
  }
}

}  // namespace

void load_weights(Checkpoint& checkpoint, const ShardedParameters& parameters, Stream& stream, SavedWeights which) {
  const OptimizerState master = master_state(parameters);
  SavedState saved(checkpoint, checkpoint.prefix(which), parameters, master);
  fill_state(master, parameters, saved.reader(), stream);
}

void load_amax_history(Checkpoint& checkpoint, AmaxTable* amaxes, Stream& stream) {
  if (amaxes == nullptr || !amaxes->delayed()) return;
  amaxes->set_steps_done(checkpoint.step());
  const Tensor& history = amaxes->history();
  std::vector<float> host(static_cast<size_t>(history.numel()));
  const CheckpointTensorInfo* found = checkpoint.find(kAmaxHistory);
  if (found != nullptr && found->shape == std::vector{history.dim(0), history.dim(1)}) {
    checkpoint.read(kAmaxHistory, {}, 0, history.numel(), host.data());
  }
  stream.copy(history.raw(), host.data(), history.bytes());
  amaxes->restore(stream);
}

std::vector<CheckpointTensor> saved_tensors(TrainingState& state, Runtime& runtime) {
  const Communicator& replicas = runtime.mesh().replicate();  // Ranks with equal tensors.
  // Only the first rank of each replica has the history in its list.
  bool with_history = true;
  for (const Axis axis : {Axis::kPipeline, Axis::kShard, Axis::kContext, Axis::kTensor}) {
    with_history = with_history && runtime.mesh().rank(axis) == 0;
  }
  return divide_tensors(checkpoint_tensors(state, with_history), replicas.rank(), replicas.size());
}

namespace {

std::vector<TensorPart> parts_of(TrainingState& state) {
  std::vector<TensorPart> parts = parts_of(state.parameters, master_state(state.parameters), "");
  for (const OptimizerState& kept : state.optimizer.states()) {
    std::ranges::move(parts_of(state.parameters, kept, fmt::format("{}.", kept.name)), std::back_inserter(parts));
  }
  if (const Tensor history = amax_history(state); history.defined()) {
    parts.push_back({kAmaxHistory, {history.dim(0), history.dim(1)}, {}, 0, history.numel()});
  }
  return parts;
}

}  // namespace

std::vector<TensorPart> loaded_parts(const Job& job, const Mesh& mesh) {
  Arena plan(mesh.stream().device());
  TrainingState state(job, mesh, plan);
  return parts_of(state);
}

void load_state(Checkpoint& checkpoint, TrainingState& state, Stream& stream) {
  try {
    load_weights(checkpoint, state.parameters, stream);
    load_optimizer(checkpoint, state.parameters, state.optimizer, stream);
    load_amax_history(checkpoint, state.model.amaxes(), stream);
  } catch (const DamagedCheckpoint&) {
    throw;
  } catch (const InputError&) {
    checkpoint.verify(parts_of(state));
    throw;
  }
}

}  // namespace octavo
