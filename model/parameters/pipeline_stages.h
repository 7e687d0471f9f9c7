// The division of a model's blocks among pipeline stages, and among the chunks of each stage.
#pragma once

#include <span>
#include <vector>

#include "model/architecture/layer_spec.h"
#include "model/parameters/parameters.h"
#include "parallel/mesh.h"

namespace octavo {

// Returns the blocks of each of `stages` pipeline stages. The blocks are divided into consecutive parts, of which part
// i is chunk i / stages of stage i mod stages. parallel.pipeline_layers has the sizes of the parts if it is given.
// Otherwise the division minimizes the largest work of a stage, and then the largest work of a chunk in each stage.
// The work of lm_head counts as that of blocks with as many weights, and the embedding, which only reads rows of its
// table, counts nothing. Blocks that do not divide evenly go to later stages and chunks, because earlier ones hold the
// activations of more micro-batches. Throws InputError if the division does not fit the model.
std::vector<StageLayers> pipeline_stages(const ModelConfig& model, const ParallelConfig& parallel, int64_t stages);

// Returns for each stage the number of the first stage that runs the same operations: both or neither have the
// embedding, likewise the head, and layers have the same specs in each chunk. `layers` are the specs of the whole
// model. Stages with equal operations differ only in the number of micro-batches in flight, which is largest in the
// first.
std::vector<size_t> first_equal_stages(std::span<const StageLayers> stages, std::span<const LayerSpec> layers);

// Returns the layout of the parameters of this rank's stage and tensor-parallel rank.
ParameterLayout layout_of_rank(const ModelConfig& model, const ParallelConfig& parallel, const Mesh& mesh);

}  // namespace octavo
