// The validation loss: the mean cross entropy of a model over the samples of data.validation, the same samples at every
// call and for any number of ranks; of each dataset, and their mean weighted by the datasets' weights.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "app/config/config.h"
#include "app/process/runtime.h"
#include "app/run/batch_buffers.h"
#include "data/validation_set.h"
#include "model/llama.h"

namespace octavo {

// Buffers of a Validator on the device: two micro-batches of tokens and a sum.
struct ValidationBuffers {
  ValidationBuffers(const Config& config, const Mesh& mesh, Arena& arena);

  BatchBuffers batch;
  Tensor sum;  // [1] float32
};

// In nats a token.
struct DatasetLoss {
  double loss = 0;
  int64_t targets = 0;  // that it is the mean of
};
struct ValidationLoss {
  double loss = 0;
  std::vector<DatasetLoss> by_dataset;  // as Validator::datasets()
};

class Validator {
 public:
  // Opens data.validation; takes its buffers from `arena`.
  Validator(const Config& config, Runtime& runtime, Arena& arena);

  // Returns the loss, or nothing once `should_stop`, a collective that is asked before every micro-batch, is true.
  // After that nothing but the destructor may be called. A collective.
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
