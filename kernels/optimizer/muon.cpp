#include "kernels/optimizer/muon.h"

#include <cmath>

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/optimizer/cpu_optimizer.h"
#include "kernels/optimizer/newton_schulz.h"
#include "kernels/optimizer/optimizer_cuda.h"

namespace octavo {

namespace cpu {

template <typename Momentum, typename Update>
void muon_momentum(const MuonMomentum& args) {
  const int64_t n = args.grad.numel();
  const float clip = clip_factor(args.grad_clip, args.grad_sum_of_squares);
  const float decay = args.decay;
  const bool keeps = skips(args.skip);
  const float* grad = args.grad.data<float>();
  Momentum* momentum = args.momentum.data<Momentum>();
  Update* update = args.update.data<Update>();
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) {
    if (keeps) {
      update[i] = Update(0.0f);
      continue;
    }
    const float g = clip * grad[i];
    const float m = decay * static_cast<float>(momentum[i]) + g;
    momentum[i] = Momentum(m);
    update[i] = Update(g + decay * m);
  }
}

template <typename T>
void muon_rows(const MuonRows& args) {
  const bool normalizes = args.sum_of_squares.defined();
  const float norm = normalizes ? std::sqrt(args.sum_of_squares.data<float>()[0]) : 0;
  const float scale = normalizes ? 1.0f / (norm + kNewtonSchulzEps) : 1.0f;
  const T* x = args.x.data<T>();
  T* out = args.out.data<T>();
#pragma omp parallel for
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t c = 0; c < args.columns; ++c) {
      out[r * args.out_stride + c] = T(scale * static_cast<float>(x[r * args.x_stride + c]));
    }
  }
}

template <typename T>
void muon_polynomial(const MuonPolynomial& args) {
  const int64_t n = args.gram.dim(0);
  T* gram = args.gram.data<T>();
  const float* square = args.square.data<float>();
#pragma omp parallel for
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const float identity = i == j ? kNewtonSchulzA : 0.0f;
      const float a = static_cast<float>(gram[i * n + j]);
      gram[i * n + j] = T(identity + kNewtonSchulzB * a + kNewtonSchulzC * square[i * n + j]);
    }
  }
}

template <typename Update>
void muon_update(const MuonUpdate& args) {
  if (skips(args.skip)) return update_amax<float>(args.amax, args.master);
  const int64_t n = args.master.numel();
  float* master = args.master.data<float>();
  const Update* update = args.update.data<Update>();
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) {
    master[i] -= args.lr * (args.scale * static_cast<float>(update[i]) + args.weight_decay * master[i]);
  }
  cast_weights(args.master, args.amax, args.weight);
}

}  // namespace cpu

void muon_momentum(const MuonMomentum& args, Stream& stream) {
  const int64_t n = args.grad.numel();
  expect_tensor(args.grad, "muon grad", DType::kFloat32, {n});
  expect_tensor(args.momentum, "muon momentum", args.momentum.dtype(), {n});
  expect_tensor(args.update, "muon update", args.update.dtype(), {n});
  if (args.grad_clip > 0) expect_tensor(args.grad_sum_of_squares, "muon norm", DType::kFloat32, {1});
  if (args.skip.defined()) expect_tensor(args.skip, "muon skip", DType::kFloat32, {1});
  const OpTimer timer(stream, "muon_momentum", args.grad.bytes() + 2 * args.momentum.bytes() + args.update.bytes());
  if (ran_elsewhere<cuda::muon_momentum>(args, stream)) return;
  cpu::with_compute_dtype(args.momentum.dtype(), [&]<typename Momentum>() {
    cpu::with_compute_dtype(args.update.dtype(),
                            [&]<typename Update>() { cpu::muon_momentum<Momentum, Update>(args); });
  });
}

void muon_rows(const MuonRows& args, Stream& stream) {
  const auto expect_rows = [&](const Tensor& flat, const char* name, int64_t stride) {
    expect_tensor(flat, name, args.x.dtype(), {flat.numel()});
    const int64_t needed = args.rows == 0 ? 0 : (args.rows - 1) * stride + args.columns;
    CHECK(stride >= args.columns && flat.numel() >= needed, "{} has {} elements, too few for {} rows of {} of {}", name,
          flat.numel(), args.rows, args.columns, stride);
  };
  expect_rows(args.out, "muon rows out", args.out_stride);
  expect_rows(args.x, "muon rows x", args.x_stride);
  if (args.sum_of_squares.defined()) expect_tensor(args.sum_of_squares, "muon rows norm", DType::kFloat32, {1});
  const OpTimer timer(stream, "muon_rows", 2 * args.rows * args.columns * dtype_bytes(args.x.dtype()));
  if (ran_elsewhere<cuda::muon_rows>(args, stream)) return;
  cpu::with_compute_dtype(args.x.dtype(), [&]<typename T>() { cpu::muon_rows<T>(args); });
}

void muon_polynomial(const MuonPolynomial& args, Stream& stream) {
  const int64_t n = args.gram.dim(0);
  expect_tensor(args.gram, "muon gram", args.gram.dtype(), {n, n});
  expect_tensor(args.square, "muon square", DType::kFloat32, {n, n});
  const OpTimer timer(stream, "muon_polynomial", 2 * args.gram.bytes() + args.square.bytes());
  if (ran_elsewhere<cuda::muon_polynomial>(args, stream)) return;
  cpu::with_compute_dtype(args.gram.dtype(), [&]<typename T>() { cpu::muon_polynomial<T>(args); });
}

void muon_update(const MuonUpdate& args, Stream& stream) {
  const int64_t n = args.master.numel();
  expect_tensor(args.master, "muon master", DType::kFloat32, {n});
  expect_tensor(args.update, "muon update", args.update.dtype(), {n});
  if (args.weight.defined()) expect_tensor(args.weight, "muon weight", DType::kBFloat16, {n});
  if (args.amax.defined()) expect_tensor(args.amax, "muon amax", DType::kFloat32, {1});
  if (args.skip.defined()) expect_tensor(args.skip, "muon skip", DType::kFloat32, {1});
  const int64_t weight_bytes = args.weight.defined() ? args.weight.bytes() : 0;
  const OpTimer timer(stream, "muon_update", 2 * args.master.bytes() + args.update.bytes() + weight_bytes);
  if (ran_elsewhere<cuda::muon_update>(args, stream)) return;
  cpu::with_compute_dtype(args.update.dtype(), [&]<typename Update>() { cpu::muon_update<Update>(args); });
}

}  // namespace octavo
