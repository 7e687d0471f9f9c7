#include "model/parameters/pipeline_stages.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace octavo {

namespace {

// Returns the weights of lm_head divided by those of the matrices of a block.
double blocks_of_head(const ModelConfig& m) {
  const auto block =
      static_cast<double>(m.hidden_size * (m.qkv_width() + m.attention_width() + 3 * m.intermediate_size));
  return static_cast<double>(m.vocab_size * m.hidden_size) / block;
}

// Returns the number of blocks of each stage, chosen by the work.
std::vector<int64_t> balanced_layers(const ModelConfig& model, int64_t stages) {
  const int64_t layers = model.num_layers;
  if (stages == 1) return {layers};
  const double head = blocks_of_head(model);
  const int64_t others = stages - 1;
  int64_t last = 1;
  double least = 0;
  for (int64_t n = 1; n <= layers - others; ++n) {
    const int64_t before = (layers - n + others - 1) / others;
    const double most = std::max(static_cast<double>(before), static_cast<double>(n) + head);
    // With equal work the last stage takes more blocks, because it holds the fewest activations.
    if (n > 1 && most > least) continue;
    least = most;
    last = n;
  }
  std::vector<int64_t> counts;
  const int64_t rest = layers - last;
  for (int64_t s = 0; s < others; ++s) counts.push_back(rest / others + (s >= others - rest % others ? 1 : 0));
  counts.push_back(last);
  return counts;
}

}  // namespace

std::vector<LayerRange> pipeline_stages(const ModelConfig& model, const ParallelConfig& parallel, int64_t stages) {
  CHECK_INPUT(stages <= model.num_layers,
              "parallel.pipeline_parallel is {}, expected at most the {} blocks of the model (model.num_layers)",
              stages, model.num_layers);
  const std::vector<int64_t>& given = parallel.pipeline_layers;
  const std::vector<int64_t> counts = given.empty() ? balanced_layers(model, stages) : given;
  CHECK_INPUT(
      std::ssize(counts) == stages,
      "parallel.pipeline_layers has {} numbers, expected one for each of the parallel.pipeline_parallel {} stages",
      counts.size(), stages);
  const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  CHECK_INPUT(
      sum == model.num_layers,
      "parallel.pipeline_layers is [{}], which has {} blocks, expected the {} of model.num_layers; [{}] would work",
      fmt::join(counts, ", "), sum, model.num_layers, fmt::join(balanced_layers(model, stages), ", "));
  std::vector<LayerRange> ranges;
  int64_t begin = 0;
  for (const int64_t count : counts) {
    ranges.push_back({begin, begin + count});
    begin += count;
  }
  return ranges;
}

std::vector<size_t> first_equal_stages(std::span<const LayerRange> stages, const ModelConfig& model,
                                       const PrecisionConfig& precision, const ActivationCheckpointing& checkpointing) {
  using Blocks = std::vector<std::pair<LinearPrecision, Recompute>>;
  std::map<std::tuple<bool, bool, Blocks>, size_t> first;
  std::vector<size_t> equal;
  for (const LayerRange& stage : stages) {
    Blocks blocks;
    for (int64_t layer = stage.begin; layer < stage.end; ++layer) {
      blocks.emplace_back(precision.of_layer(layer, model.num_layers), recompute_of(checkpointing, layer));
    }
    const auto operations = std::tuple(stage.begin == 0, stage.end == model.num_layers, std::move(blocks));
    equal.push_back(first.try_emplace(operations, equal.size()).first->second);
  }
  return equal;
}

ParameterLayout layout_of_rank(const ModelConfig& model, const ParallelConfig& parallel, const Mesh& mesh) {
  const auto stage = static_cast<size_t>(mesh.rank(Axis::kPipeline));
  return ParameterLayout(model, {.rank = mesh.rank(Axis::kTensor), .size = mesh.shape().tensor},
                         pipeline_stages(model, parallel, mesh.shape().pipeline)[stage]);
}

}  // namespace octavo
