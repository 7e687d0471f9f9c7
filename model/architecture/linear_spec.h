// The specification of a linear layer: shape, names, parameters, and the producers of its operands.
// model/architecture/block_spec.h lists the linears of a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/architecture/activations.h"
#include "model/architecture/tensor_parallel.h"

namespace octavo {

struct LinearShape {
  int64_t tokens = 0;  // Tokens of all tensor-parallel ranks.
  int64_t in = 0;      // Width of the inputs that this rank has.
  int64_t out = 0;     // Width of the outputs that this rank has.
  Divided divided = Divided::kOutputs;
  // Returns the width that is not divided. Tokens are exchanged between ranks at this width.
  int64_t whole_width() const { return divided == Divided::kOutputs ? in : out; }
};

// Names of the matmuls in profiles, as string literals. The name of the forward identifies the linear everywhere.
struct LinearNames {
  const char* forward = "linear";
  const char* d_x = "linear_d_x";
  const char* d_w = "linear_d_w";
};

// A parameter that is some rows of W.
struct MatrixSpec {
  const char* name;          // Name without its prefix, such as "model.layers.3.".
  int64_t rows;              // Rows of the whole parameter.
  bool of_kv_heads = false;  // Whether the rows are kv heads, of which several ranks may have copies.
};

struct LinearSpec {
  LinearNames names = {};
  LinearShape shape = {};
  std::vector<MatrixSpec> matrices = {};               // Parameters of which W consists, in the order of its rows.
  Producer input = Producer::kNorm;                    // Op that computes x.
  Producer output_gradient = Producer::kNormBackward;  // Op that computes the gradient of y.
  // Index in LinearScratch::columns, into which the output gradient is cast. Two linears that follow each other in
  // backward have different slots, because LinearBackward::between of the first may cast the output gradient of the
  // second before the weight gradient of the first is computed.
  size_t gradient_slot = 0;
};

struct NormSpec {
  const char* name;  // Name without its prefix, such as "model.layers.3.".
  int64_t width;
};

// The norms and linears of a half of a block.
struct HalfSpec {
  std::vector<NormSpec> norms;
  std::vector<LinearSpec> linears;
};

}  // namespace octavo
