// Muon (Jordan, "Muon: An optimizer for hidden layers in neural networks", 2024) in the form of Moonlight (Liu et al.,
// arXiv 2502.16982). Its updates have the root mean square of AdamW's, so AdamW's lr and weight decay carry over:
//
//   g = c * grad                                                  c as in kernels/optimizer/adamw.h
//   m = momentum * m + g
//   u = g + momentum * m                                          Nesterov momentum
//   X = u / (||u|| + 1e-7), and five times X = (a I + b A + c A^2) X with A = X X^T
//   w = w - lr * (0.2 * sqrt(max(rows, columns)) * X + weight_decay * w)
//
// with a, b, c = 3.4445, -4.7750, 2.0315. This is the Newton-Schulz iteration, with coefficients that Jordan fitted to
// grow small singular values fast; the singular values of the result are about 0.7 to 1.2. If rows > columns, X is
// computed with A = X^T X as X (a I + b A + c A^2), which is equal. kernels/matmul/matmul.h has the matmuls,
// model/optimizer/muon.h assembles whole matrices, and this header has the elementwise ops. All are queued on `stream`
// and deterministic.
#pragma once

#include "core/stream.h"

namespace octavo {

// Computes m and u, elementwise over flat buffers that may start at any element. If `skip` is not 0, m stays unchanged
// and u = 0.
struct MuonMomentum {
  Tensor momentum;             // m, in place [n] float32 or bfloat16
  Tensor update;               // u = [n] float32 or bfloat16
  Tensor grad;                 // [n] float32
  Tensor grad_sum_of_squares;  // [1] float32 on the device; unused if grad_clip <= 0
  Tensor skip = {};            // optional [1] float32 (kernels/optimizer/skip_update.h)
  float decay = 0.95f;         // momentum in the formula
  float grad_clip = 0;
};
void muon_momentum(const MuonMomentum& args, Stream& stream);

// Copies a matrix out of or into a larger one: out[r, c] = x[r, c], divided by sqrt(sum_of_squares) + 1e-7 if
// sum_of_squares is defined. Element [r, c] is at r * stride + c. out and x are flat and have one dtype, float32 or
// bfloat16.
struct MuonRows {
  Tensor out;
  Tensor x;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t out_stride = 0;
  int64_t x_stride = 0;
  Tensor sum_of_squares = {};  // optional [1] float32
};
void muon_rows(const MuonRows& args, Stream& stream);

// Computes a I + b A + c A^2 in place of A.
struct MuonPolynomial {
  Tensor gram;    // A, in place [n, n] float32 or bfloat16
  Tensor square;  // A^2 [n, n] float32
};
void muon_polynomial(const MuonPolynomial& args, Stream& stream);

// Updates w. The optional outputs are those of adamw. If `skip` is not 0, only the amax is computed.
struct MuonUpdate {
  Tensor master;       // w, in place [n] float32
  Tensor update;       // X [n] float32 or bfloat16
  Tensor weight = {};  // optional = [n] bfloat16: new w
  Tensor amax = {};    // optional [1] float32: = max(itself, max |master|) after the update
  Tensor skip = {};    // optional [1] float32
  float lr = 0;
  float weight_decay = 0;
  float scale = 1;  // factor of X
};
void muon_update(const MuonUpdate& args, Stream& stream);

}  // namespace octavo
