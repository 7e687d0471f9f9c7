// Computes the validation loss: for each dataset, the mean cross entropy of a model over samples of data.validation,
// and the mean over the datasets with targets, weighted by their weights. All calls use the same samples, on any number
// of ranks.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "app/config/config.h"
#include "app/process/runtime.h"
#include "app/run/batch_buffers.h"
#include "data/validation_set.h"
#include "model/llama.h"

namespace octavo {

// Device buffers of a Validator: two micro-batches of tokens and a sum.
struct ValidationBuffers {
  ValidationBuffers(const Config& config, const Mesh& mesh, Arena& arena);

  BatchBuffers batch;
  Tensor sum;  // [1] float32: sum of the losses.
};

// Mean loss of one dataset in nats per token.
struct DatasetLoss {
  double loss = 0;
  int64_t targets = 0;  // Number of targets that the mean is computed over.
};
struct ValidationLoss {
  std::optional<double> loss;           // Nothing if no dataset has targets.
  std::vector<DatasetLoss> by_dataset;  // Losses in the order of Validator::datasets().
};
// Returns the mean of the losses of `datasets` that have targets, weighted by their weights.
std::optional<double> mean_loss(std::span<const ValidationSet::Dataset> datasets, std::span<const DatasetLoss> losses);

class Validator {
 public:
  // Opens data.validation and takes its buffers from `arena`.
  Validator(const Config& config, Runtime& runtime, Arena& arena);

  // Returns the loss, or nothing if `should_stop` returned true. `should_stop` is a collective and is called before
  // every micro-batch. A dataset without targets is left out with a warning that names it. A collective.
  // Requires: `should_stop` has never returned true.
  std::optional<ValidationLoss> loss(Llama& model, const std::function<bool()>& should_stop);
  const std::vector<ValidationSet::Dataset>& datasets() const { return samples_.datasets(); }

 private:
  const Batch* next_batch(size_t dataset);
  std::optional<DatasetLoss> dataset_loss(size_t dataset, Llama& model, const std::function<bool()>& should_stop);

  Runtime* runtime_;
  ValidationSet samples_;
  ValidationBuffers buffers_;
};

}  // namespace octavo
