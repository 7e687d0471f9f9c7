// The division of a model's blocks among pipeline stages.
#pragma once

#include <vector>

#include "model/parameters/parameters.h"
#include "parallel/mesh.h"

namespace octavo {

// Returns the blocks of each of `stages` pipeline stages, in order. parallel.pipeline_layers decides if it is given.
// Otherwise the largest work of a stage is as small as possible, where lm_head counts as many blocks as it has times
// the weights of a block, and the embedding, which only reads rows of its table, counts nothing. Blocks that do not
// divide evenly go to later stages, because earlier ones hold the activations of more micro-batches. Throws InputError
// if the division does not fit the model.
std::vector<LayerRange> pipeline_stages(const ModelConfig& model, const ParallelConfig& parallel, int64_t stages);

// Returns the layout of the parameters of this rank's stage and tensor-parallel rank.
ParameterLayout layout_of_rank(const ModelConfig& model, const ParallelConfig& parallel, const Mesh& mesh);

}  // namespace octavo
