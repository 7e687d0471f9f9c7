#include "app/observers/state_hashes.h"

#include <algorithm>
#include <string_view>

#include "core/error.h"
#include "model/architecture/block_spec.h"

namespace octavo {

namespace {

// Returns the place of a shard, "(shard 1 of tensor rank 0)" or "(shard 1 of tensor rank 0 of pipeline stage 2)". For
// norms, it does not name the tensor rank, because their shards are equal on all of them.
std::string place_of(const ParameterUnit& unit, const Mesh& mesh) {
  std::string place = fmt::format("(shard {}", mesh.shard().rank());
  if (!unit.is_norms && mesh.tensor().size() > 1) place += fmt::format(" of tensor rank {}", mesh.tensor().rank());
  if (mesh.pipeline().size() > 1) place += fmt::format(" of pipeline stage {}", mesh.pipeline().rank());
  return place + ")";
}

void add_units(const TrainingState& state, const std::vector<OptimizerState>& kept, std::vector<HashedSlice>& all) {
  const Mesh& mesh = state.mesh;
  const std::vector<ParameterUnit>& units = state.parameters.layout().units();
  for (size_t u = 0; u < units.size(); ++u) {
    if (mesh.replicate().size() == 1 && !(units[u].is_norms && mesh.tensor().size() > 1)) continue;
    const auto add = [&](const char* name, const Tensor& data) {
      all.push_back({{fmt::format("{} of {} {}", name, units[u].name, place_of(units[u], mesh)), ""}, data});
    };
    for (const OptimizerState& one : kept) {
      if (one.has(u)) add(one.name, one.of(state.parameters, u));
    }
    const Tensor& cast = state.parameters.fsdp().weight_shard(u);
    if (cast.dtype() != DType::kFloat32) add("cast weights", cast);
  }
}

bool is_of_kv_heads(const ModelConfig& config, const ParameterSpec& spec) {
  const std::string_view name = spec.name;
  for (const LinearSpec& linear : block_linears(config)) {
    for (const MatrixSpec& matrix : linear.matrices) {
      if (matrix.of_kv_heads && name.ends_with(matrix.name)) return true;
    }
  }
  return false;
}

// Adds the kv heads that several ranks hold. They are hashed head by head at offsets within the head, because the
// ranks' replicas are cut into shards at different offsets.
void add_kv_copies(const ModelConfig& config, const TrainingState& state, const std::vector<OptimizerState>& kept,
                   std::vector<HashedSlice>& all) {
  const ShardedParameters& parameters = state.parameters;
  const int64_t elements = config.head_dim * config.hidden_size;  // Elements of one kv head's weight.
  for (const ParameterPiece& piece : parameters.pieces()) {
    const ParameterSpec& spec = *piece.spec;
    if (!is_of_kv_heads(config, spec)) continue;
    const int64_t first = spec.whole_index(0);  // Index of the first row in the whole tensor.
    const int64_t end = first + piece.end;
    for (int64_t begin = first + piece.begin; begin < end;) {
      const int64_t head = begin / elements;
      const int64_t next = std::min(end, (head + 1) * elements);
      const int64_t within = begin - first - piece.begin;
      const int64_t offset = piece.offset + within;
      const std::string copy = fmt::format("replica {}, tensor rank {}, place {}", state.mesh.replicate().rank(),
                                           state.mesh.tensor().rank(), spec.offset + head * elements - first);
      const auto add = [&](const char* name, const Tensor& data) {
        all.push_back({{fmt::format("{} of {} head {}", name, spec.name, head), copy}, data, begin % elements});
      };
      for (const OptimizerState& one : kept) {
        if (one.has(spec.unit)) add(one.name, one.slice(spec.unit, offset, offset + next - begin));
      }
      const Tensor cast = parameters.weight(piece);
      if (cast.defined()) add("cast weights", cast.rows(within, within + next - begin));
      begin = next;
    }
  }
}

}  // namespace

std::vector<HashedSlice> replicated_parts(const ModelConfig& config, TrainingState& state) {
  std::vector<OptimizerState> kept = {master_state(state.parameters)};
  kept.insert(kept.end(), state.optimizer.states().begin(), state.optimizer.states().end());
  std::vector<HashedSlice> all;
  add_units(state, kept, all);
  if (has_kv_copies(config, state.mesh.tensor().size())) add_kv_copies(config, state, kept, all);
  const Tensor history = amax_history(state);
  const bool is_shared = history.defined() && state.mesh.world().size() > 1;
  if (is_shared) all.push_back({{"FP8 amax history", ""}, history.view({history.numel()})});
  return all;
}

}  // namespace octavo
