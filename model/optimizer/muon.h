// Muon over this rank's shard of the blocks' matrices (kernels/optimizer/muon.h has the formula). Each of q, k, v, o,
// gate, up and down is orthogonalized as a whole on every mesh, as if the model stored them separately.
//
// The momentum stays sharded like the weights, and only the updates are gathered as whole matrices. In each round over
// a few blocks (model/optimizer/whole_matrices.h) a rank
//   1. updates its shard of the momentum and writes its shard of the update u into a buffer for the full block;
//   2. gathers u over the shard axis and then over the tensor axis;
//   3. iterates on the matrices of the round that it owns, in precision.compute, and zeroes the others;
//   4. sums over the tensor axis and then over the shard axis, which adds one rank's numbers to zeros, and keeps its
//      slice;
//   5. updates its weights.
// Each replica does all of this, with matmuls that give every replica the same bits. A rank receives as many bytes as
// from a gather of the weights and a reduction of the gradients in precision.compute. Without step 4 every rank would
// iterate on all matrices, which multiplies the FLOPs by the number of ranks.
#pragma once

#include <cstdint>
#include <memory>

#include "core/dtype.h"

namespace octavo {

class ParameterLayout;
class ParameterUpdate;
class Stream;
struct UpdateOptions;

std::unique_ptr<ParameterUpdate> make_muon_update(const UpdateOptions& options);

// Returns the workspace that the matmuls of the update need.
int64_t muon_workspace_bytes(const ParameterLayout& layout, DType compute, const Stream& stream);

}  // namespace octavo
