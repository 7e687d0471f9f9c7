// The validation loss: the mean cross entropy of a model over the samples of data.validation, the same samples at every
// call and for any number of ranks.
#pragma once

#include <functional>
#include <optional>

#include "app/config/config.h"
#include "app/run/batch_buffers.h"
#include "app/run/runtime.h"
#include "data/validation_set.h"
#include "model/llama.h"

namespace octavo {

// What it keeps on the device: two micro-batches of tokens and a sum.
struct ValidationBuffers {
  ValidationBuffers(const Config& config, Arena& arena, Stream& stream);

  BatchBuffers batch;
  Tensor sum;  // [1] float32
};

class Validator {
 public:
  // Opens data.validation; takes its buffers from `arena`.
  Validator(const Config& config, Runtime& runtime, Arena& arena);

  // A collective. In nats a token.
  double loss(Llama& model);
  // The same, or nothing once `should_stop` is true, which is asked before every micro-batch and a collective of the
  // ranks too. After that nothing but the destructor may be called.
  std::optional<double> loss(Llama& model, const std::function<bool()>& should_stop);
  // That the last loss is the mean of.
  int64_t num_targets() const { return num_targets_; }

 private:
  const Batch* next_batch();

  Runtime* runtime_;
  ValidationSet samples_;
  ValidationBuffers buffers_;
  int64_t num_targets_ = 0;
};

}  // namespace octavo
