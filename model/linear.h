// The linear layer y = x W^T, forward and backward, over a weight [out, in] as in Hugging Face. Where precision recipes
// differ, they differ here.
#pragma once

#include "kernels/core/stream.h"

namespace octavo {

struct LinearForward {
  Tensor y;                     // = [tokens, out]
  Tensor x;                     // [tokens, in]
  Tensor w;                     // [out, in]
  const char* name = "linear";  // for the profile
};
void linear_forward(const LinearForward& args, Stream& stream);

// First d_w, then d_x; either may be left out with what only it needs. So d_x may be x itself.
struct LinearBackward {
  Tensor d_x;  // optional = [tokens, in]
  Tensor d_w;  // optional [out, in] float32; = or, when accumulating, +=
  Tensor d_y;  // [tokens, out]
  Tensor x;    // [tokens, in], for d_w
  Tensor w;    // [out, in], for d_x
  bool accumulate = false;
  const char* input_name = "linear_d_x";
  const char* weight_name = "linear_d_w";
};
void linear_backward(const LinearBackward& args, Stream& stream);

// Scratch of the three products.
int64_t linear_workspace_bytes(int64_t tokens, int64_t in, int64_t out, DType compute, const Stream& stream);

}  // namespace octavo
