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

// Returns the number of weights of lm_head divided by the number of weights of a block's matrices.
double blocks_of_head(const ModelConfig& m) {
  const auto block =
      static_cast<double>(m.hidden_size * (m.qkv_width() + m.attention_width() + 3 * m.intermediate_size));
  return static_cast<double>(m.vocab_size * m.hidden_size) / block;
}

// Divides `layers` blocks into parts of at least `least` blocks. The largest work of a part is as small as possible,
// where the last part also has the work of `head` blocks.
std::vector<int64_t> divide(int64_t layers, int64_t parts, double head, int64_t least = 1) {
  if (parts == 1) return {layers};
  const int64_t others = parts - 1;
  int64_t last = least;
  double smallest = 0;
  for (int64_t n = least; n <= layers - others * least; ++n) {
    const int64_t before = (layers - n + others - 1) / others;
    const double most = std::max(static_cast<double>(before), static_cast<double>(n) + head);
    // With equal work the last part takes more blocks, because it holds the fewest activations.
    if (n > least && most > smallest) continue;
    smallest = most;
    last = n;
  }
  std::vector<int64_t> counts;
  const int64_t rest = layers - last;
  for (int64_t s = 0; s < others; ++s) counts.push_back(rest / others + (s >= others - rest % others ? 1 : 0));
  counts.push_back(last);
  return counts;
}

// Returns the number of blocks of each part of the model, in order, chosen by the work of the stages and then by that
// of the chunks of each stage.
std::vector<int64_t> balanced_layers(const ModelConfig& model, int64_t stages, int64_t chunks) {
  const double head = blocks_of_head(model);
  const std::vector<int64_t> layers = divide(model.num_layers, stages, head, chunks);
  std::vector<int64_t> counts(static_cast<size_t>(stages * chunks));
  for (size_t stage = 0; stage < layers.size(); ++stage) {
    const bool is_last = stage + 1 == layers.size();
    const std::vector<int64_t> of_stage = divide(layers[stage], chunks, is_last ? head : 0);
    for (size_t chunk = 0; chunk < of_stage.size(); ++chunk) counts[chunk * layers.size() + stage] = of_stage[chunk];
  }
  return counts;
}

}  // namespace

std::vector<StageLayers> pipeline_stages(const ModelConfig& model, const ParallelConfig& parallel, int64_t stages) {
  CHECK_INPUT(stages <= model.num_layers,
              "parallel.pipeline_parallel is {}, expected at most the {} blocks of the model (model.num_layers)",
              stages, model.num_layers);
  const int64_t chunks = parallel.pipeline_chunks;
  const int64_t most = model.num_layers / stages;
  CHECK_INPUT(
      chunks <= most,
      "parallel.pipeline_chunks is {}, which divides the model into {} parts on the {} stages of "
      "parallel.pipeline_parallel, expected at most the {} blocks of the model (model.num_layers); {} would work{}",
      chunks, stages * chunks, stages, model.num_layers, most,
      most == 1 ? " with parallel.pipeline_schedule 1f1b" : "");
  const std::vector<int64_t>& given = parallel.pipeline_layers;
  const std::vector<int64_t> counts = given.empty() ? balanced_layers(model, stages, chunks) : given;
  CHECK_INPUT(
      std::ssize(counts) == stages * chunks,
      "parallel.pipeline_layers has {} numbers, expected one for each of the parallel.pipeline_parallel {} "
      "stages{}",
      counts.size(), stages,
      chunks == 1 ? "" : fmt::format(" and parallel.pipeline_chunks {} chunks, {} numbers", chunks, stages * chunks));
  const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  CHECK_INPUT(
      sum == model.num_layers,
      "parallel.pipeline_layers is [{}], which has {} blocks, expected the {} of model.num_layers; [{}] would work",
      fmt::join(counts, ", "), sum, model.num_layers, fmt::join(balanced_layers(model, stages, chunks), ", "));
  std::vector<StageLayers> layers(static_cast<size_t>(stages));
  int64_t begin = 0;
  for (size_t part = 0; part < counts.size(); ++part) {
    const int64_t end = begin + counts[part];
    layers[part % layers.size()].push_back({begin, end});
    begin = end;
  }
  return layers;
}

std::vector<size_t> first_equal_stages(std::span<const StageLayers> stages, std::span<const LayerSpec> layers) {
  using Chunk = std::vector<LayerSpec>;
  std::map<std::tuple<bool, bool, std::vector<Chunk>>, size_t> first;
  std::vector<size_t> equal;
  for (const StageLayers& stage : stages) {
    std::vector<Chunk> chunks;
    for (const auto& [begin, end] : stage) chunks.emplace_back(layers.begin() + begin, layers.begin() + end);
    const auto operations =
        std::tuple(stage.front().begin == 0, stage.back().end == std::ssize(layers), std::move(chunks));
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
