// How a linear layer is specified. model/architecture/block_spec.h lists the linears of a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/architecture/activations.h"
#include "model/architecture/tensor_parallel.h"

namespace octavo {

struct LinearShape {
  int64_t tokens = 0;  // of all ranks of the group
  int64_t in = 0;      // of this rank
  int64_t out = 0;
  Divided divided = Divided::kOutputs;
  // The width that is not divided, which tokens travel at.
  int64_t whole_width() const { return divided == Divided::kOutputs ? in : out; }
};

// Names in the profile; string literals. The forward's names the linear everywhere.
struct LinearNames {
  const char* forward = "linear";
  const char* d_x = "linear_d_x";
  const char* d_w = "linear_d_w";
};

// A parameter that is some rows of W.
struct MatrixSpec {
  const char* name;          // behind "model.layers.3."
  int64_t rows;              // of the whole parameter
  bool of_kv_heads = false;  // which ranks may have copies of
};

struct LinearSpec {
  LinearNames names = {};
  LinearShape shape = {};
  std::vector<MatrixSpec> matrices = {};  // W, one under the other
  // The ops that make x and the gradient of y.
  Producer input = Producer::kNorm;
  Producer output_gradient = Producer::kNormBackward;
  // Which scratch its output gradient is cast into by columns: another one than that of the linears before and behind
  // it in backward, as the weight gradient of one may be made while the next one's output gradient is cast.
  size_t gradient_slot = 0;
};

// What a half adds to each layer.
struct NormSpec {
  const char* name;  // behind "model.layers.3."
  int64_t width;
};
struct HalfSpec {
  std::vector<NormSpec> norms;
  std::vector<LinearSpec> linears;
};

}  // namespace octavo
