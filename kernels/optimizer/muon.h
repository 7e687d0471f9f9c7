// Muon (Jordan, "Muon: An optimizer for hidden layers in neural networks", 2024) in the form of Moonlight (Liu et al.,
// arXiv 2502.16982), whose updates have the root mean square of AdamW's, so that its lr and weight decay carry over:
//
//   g = c * grad                                                  c as in kernels/optimizer/adamw.h
//   m = momentum * m + g
//   u = g + momentum * m                                          Nesterov's
//   X = u / (||u|| + 1e-7), and five times X = (a I + b A + c A^2) X with A = X X^T
//   w = w - lr * (0.2 * sqrt(max(rows, columns)) * X + weight_decay * w)
//
// with a, b, c = 3.4445, -4.7750, 2.0315 (Newton and Schulz's iteration, whose coefficients Jordan fitted to grow small
// singular values fast: those of the result lie around 1, from some 0.7 to 1.2). Where rows > columns it is A = X^T X
// and X (a I + b A + c A^2), which comes to the same. The products are kernels/matmul/matmul.h's, and
// model/optimizer/muon.h puts whole matrices together; here is what is between. All are queued on `stream` and
// deterministic.
#pragma once

#include "core/stream.h"

namespace octavo {

// m and u, elementwise over flat buffers that may start anywhere. Where `skip` says so, m stays as it is and u = 0.
struct MuonMomentum {
  Tensor momentum;             // m, in place [n] float32 or bfloat16
  Tensor update;               // u = [n] float32 or bfloat16
  Tensor grad;                 // [n] float32
  Tensor grad_sum_of_squares;  // [1] float32 on the device; unused if grad_clip <= 0
  Tensor skip = {};            // optional [1] float32 (kernels/optimizer/skip_update.h)
  float decay = 0.95f;         // momentum, above
  float grad_clip = 0;
};
void muon_momentum(const MuonMomentum& args, Stream& stream);

// Rows of a matrix out of, or into, a larger one: out[r, c] = x[r, c], over sqrt(sum_of_squares) + 1e-7 where that is
// given. Element [r, c] lies at r * stride + c; both are flat, of one dtype, float32 or bfloat16.
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

// a I + b A + c A^2, in place of A.
struct MuonPolynomial {
  Tensor gram;    // A, in place [n, n] float32 or bfloat16
  Tensor square;  // A^2 [n, n] float32
};
void muon_polynomial(const MuonPolynomial& args, Stream& stream);

// w, and where given its rounding and its amax, as kernels/optimizer/adamw.h. Where `skip` says so, only the amax is
// taken.
struct MuonUpdate {
  Tensor master;       // w, in place [n] float32
  Tensor update;       // X [n] float32 or bfloat16
  Tensor weight = {};  // optional = [n] bfloat16
  Tensor amax = {};    // optional [1] float32: = max(itself, max |master|) after the update
  Tensor skip = {};    // optional [1] float32
  float lr = 0;
  float weight_decay = 0;
  float scale = 1;  // of X
};
void muon_update(const MuonUpdate& args, Stream& stream);

}  // namespace octavo
