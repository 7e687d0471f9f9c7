// ResultObserver sees the result of every operation of the model, if Llama::observe_results() has set one. Without an
// observer, an operation does nothing for this purpose except name its tensors.
//
// On a GPU, an observer is called when the operation has been queued. The observer may queue work on the stream of the
// model and wait for this work. No work that the model queues before the next call changes the results.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "kernels/fp8/fp8.h"

namespace octavo {

// A tensor that an operation reads. It has scales only if it is in FP8.
struct OpInput {
  OpInput(const Tensor& x) : operand{.data = x, .scale_inv = {}} {}
  OpInput(const Fp8Operand& x) : operand(x) {}
  Fp8Operand operand;
};

// The result of an operation, which exists only during the call that passes it.
struct OpResult {
  const char* op = "";                         // Name of the operation, as in profiles. String literal.
  std::initializer_list<Tensor> results = {};  // Tensors that the operation wrote, float32 or bfloat16.
  // Activations and gradients. A result may have overwritten one of them.
  std::initializer_list<OpInput> inputs = {};
  std::initializer_list<OpInput> weights = {};  // Weights, or this rank's part of them.
  const char* parameter = "";         // Name of the weight, if the name of the operation does not tell. String literal.
  std::optional<int64_t> layer = {};  // Layer of a result that may be computed after begin_part() of another layer.
};

class ResultObserver {
 public:
  virtual ~ResultObserver() = default;

  // Called before the operations of an entry of a step (model/pipeline_schedule.h).
  virtual void begin_entry(int64_t micro_batch, bool backward) = 0;
  // Called before the operations of a layer of the model. kEmbedding stands for the embedding, and the number of layers
  // for the head.
  static constexpr int64_t kEmbedding = -1;
  virtual void begin_part(int64_t layer) = 0;
  // Called after an operation. Undefined tensors in `result` must be ignored.
  virtual void on_result(const OpResult& result) = 0;
};

// Passes a result to an observer, which may be null.
inline void observe(ResultObserver* observer, const OpResult& result) {
  if (observer != nullptr) observer->on_result(result);
}

}  // namespace octavo
