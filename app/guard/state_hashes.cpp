#include "app/guard/state_hashes.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "kernels/math/bit_hash.h"
#include "model/block.h"

namespace octavo {

namespace {

// "(shard 1 of tensor rank 0)"; the norms' shards are the same on every tensor rank.
std::string place_of(const ParameterUnit& unit, const Mesh& mesh) {
  const int shard = mesh.shard().rank();
  if (unit.is_norms || mesh.tensor().size() == 1) return fmt::format("(shard {})", shard);
  return fmt::format("(shard {} of tensor rank {})", shard, mesh.tensor().rank());
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

}  // namespace

StateHashes::StateHashes(const ModelConfig& config, TrainingState& state) {
  std::vector<OptimizerState> kept = {master_state(state.parameters)};
  kept.insert(kept.end(), state.optimizer.states().begin(), state.optimizer.states().end());
  add_units(state, kept);
  if (has_kv_copies(config, state.mesh.tensor().size())) add_kv_copies(config, state, kept);
  const Tensor history = amax_history(state);
  if (!history.defined() || state.mesh.world().size() == 1) return;
  add({.what = "FP8 amax history", .copy = ""}, {history.view({history.numel()})});
}

void StateHashes::add(HashedPart part, Stretch stretch) {
  parts_.push_back(std::move(part));
  stretches_.push_back(stretch);
}

void StateHashes::add_units(const TrainingState& state, const std::vector<OptimizerState>& kept) {
  const Mesh& mesh = state.mesh;
  const std::vector<ParameterUnit>& units = state.parameters.layout().units();
  for (size_t u = 0; u < units.size(); ++u) {
    if (mesh.replicate().size() == 1 && !(units[u].is_norms && mesh.tensor().size() > 1)) continue;
    const std::string what = fmt::format("{} {}", units[u].name, place_of(units[u], mesh));
    for (const OptimizerState& one : kept) {
      if (one.has(u)) add({fmt::format("{} of {}", one.name, what), ""}, {one.of(state.parameters, u)});
    }
    const Tensor& cast = state.parameters.fsdp().weight_shard(u);
    if (cast.dtype() != DType::kFloat32) add({fmt::format("cast weights of {}", what), ""}, {cast});
  }
}

// Head by head, by the place in the head: where shards cut differs between the copies.
void StateHashes::add_kv_copies(const ModelConfig& config, const TrainingState& state,
                                const std::vector<OptimizerState>& kept) {
  const Mesh& mesh = state.mesh;
  const ShardedParameters& parameters = state.parameters;
  const int64_t elements = config.head_dim * config.hidden_size;  // of a head
  for (const ParameterPiece& piece : parameters.pieces()) {
    const ParameterSpec& spec = *piece.spec;
    if (!is_of_kv_heads(config, spec)) continue;
    const int64_t first = spec.whole_index(0);  // of its rows, which are whole
    const int64_t end = first + piece.end;
    for (int64_t begin = first + piece.begin; begin < end;) {
      const int64_t head = begin / elements;
      const int64_t next = std::min(end, (head + 1) * elements);
      const int64_t offset = piece.offset + begin - first - piece.begin;
      const std::string copy = fmt::format("replica {}, tensor rank {}, place {}", mesh.replicate().rank(),
                                           mesh.tensor().rank(), spec.offset + head * elements - first);
      const auto add_stretch = [&](const char* name, const Tensor& data) {
        add({fmt::format("{} of {} head {}", name, spec.name, head), copy}, {data, begin % elements});
      };
      for (const OptimizerState& one : kept) {
        if (one.has(spec.unit)) add_stretch(one.name, one.slice(spec.unit, offset, offset + next - begin));
      }
      if (const Tensor cast = parameters.weight(piece); cast.defined()) {
        const int64_t within = begin - first - piece.begin;
        add_stretch("cast weights", cast.rows(within, within + next - begin));
      }
      begin = next;
    }
  }
}

void StateHashes::queue(const Tensor& out, Stream& stream) const {
  stream.zero(out);
  for (size_t i = 0; i < stretches_.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    bit_hash({.out = out.rows(row, row + 1).view({2}), .x = stretches_[i].data, .begin = stretches_[i].begin}, stream);
  }
}

}  // namespace octavo
