#include "model/linear.h"

#include <algorithm>

#include "kernels/matmul.h"

namespace octavo {

void linear_forward(const LinearForward& args, Stream& stream) {
  matmul({.d = args.y, .a = args.x, .b = args.w, .transpose_b = true, .name = args.name}, stream);
}

void linear_backward(const LinearBackward& args, Stream& stream) {
  if (args.d_w.defined()) {
    matmul({.d = args.d_w,
            .a = args.d_y,
            .b = args.x,
            .transpose_a = true,
            .accumulate = args.accumulate,
            .name = args.weight_name},
           stream);
  }
  if (args.d_x.defined()) matmul({.d = args.d_x, .a = args.d_y, .b = args.w, .name = args.input_name}, stream);
}

int64_t linear_workspace_bytes(int64_t tokens, int64_t in, int64_t out, DType compute, const Stream& stream) {
  return std::max({matmul_workspace_bytes(tokens, out, in, compute, stream),
                   matmul_workspace_bytes(tokens, in, out, compute, stream),
                   matmul_workspace_bytes(out, in, tokens, compute, stream)});
}

}  // namespace octavo
