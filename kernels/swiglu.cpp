#include "kernels/swiglu.h"

#include "build_config.h"
#include "kernels/core/error.h"
#include "kernels/core/profiler.h"
#include "kernels/cpu_math.h"

namespace octavo {

namespace cuda {
void swiglu_forward(const SwigluForward& args, Stream& stream);
void swiglu_backward(const SwigluBackward& args, Stream& stream);
}  // namespace cuda

namespace cpu {

template <typename T>
void swiglu_forward(const SwigluForward& args) {
  const int64_t tokens = args.out.dim(0);
  const int64_t width = args.out.dim(1);
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t) {
    const T* gate = args.gate_up.data<T>() + t * 2 * width;
    const T* up = gate + width;
    T* out = args.out.data<T>() + t * width;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      const float g = static_cast<float>(gate[c]);
      out[c] = T(g * sigmoid(g) * static_cast<float>(up[c]));
    }
  }
}

template <typename T>
void swiglu_backward(const SwigluBackward& args) {
  const int64_t tokens = args.d_out.dim(0);
  const int64_t width = args.d_out.dim(1);
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t) {
    const T* gate = args.gate_up.data<T>() + t * 2 * width;
    const T* d_out = args.d_out.data<T>() + t * width;
    T* d_gate = args.d_gate_up.data<T>() + t * 2 * width;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      const float g = static_cast<float>(gate[c]);
      const float u = static_cast<float>(gate[width + c]);
      const float d = static_cast<float>(d_out[c]);
      const float s = sigmoid(g);
      d_gate[c] = T(d * u * s * (1.0f + g * (1.0f - s)));
      d_gate[width + c] = T(d * g * s);
    }
  }
}

}  // namespace cpu

void swiglu_forward(const SwigluForward& args, Stream& stream) {
  const int64_t tokens = args.out.dim(0);
  const int64_t width = args.out.dim(1);
  expect_tensor(args.out, "swiglu_forward out", args.gate_up.dtype(), {tokens, width});
  expect_tensor(args.gate_up, "swiglu_forward gate_up", args.gate_up.dtype(), {tokens, 2 * width});
  if (args.amax.defined()) expect_tensor(args.amax, "swiglu_forward amax", DType::kFloat32, {1});
  const OpTimer timer(stream, "swiglu_forward", 0, 3.0 * static_cast<double>(args.out.bytes()));
  if constexpr (kHasCuda) {
    if (stream.is_cuda()) return cuda::swiglu_forward(args, stream);
  }
  cpu::with_compute_dtype(args.out.dtype(), [&]<typename T>() {
    cpu::swiglu_forward<T>(args);
    cpu::update_amax<T>(args.amax, args.out);
  });
}

void swiglu_backward(const SwigluBackward& args, Stream& stream) {
  const int64_t tokens = args.d_out.dim(0);
  const int64_t width = args.d_out.dim(1);
  expect_tensor(args.d_out, "swiglu_backward d_out", args.gate_up.dtype(), {tokens, width});
  expect_tensor(args.gate_up, "swiglu_backward gate_up", args.gate_up.dtype(), {tokens, 2 * width});
  expect_tensor(args.d_gate_up, "swiglu_backward d_gate_up", args.gate_up.dtype(), {tokens, 2 * width});
  if (args.amax.defined()) expect_tensor(args.amax, "swiglu_backward amax", DType::kFloat32, {1});
  const OpTimer timer(stream, "swiglu_backward", 0, 5.0 * static_cast<double>(args.d_out.bytes()));
  if constexpr (kHasCuda) {
    if (stream.is_cuda()) return cuda::swiglu_backward(args, stream);
  }
  cpu::with_compute_dtype(args.d_out.dtype(), [&]<typename T>() {
    cpu::swiglu_backward<T>(args);
    cpu::update_amax<T>(args.amax, args.d_gate_up);
  });
}

}  // namespace octavo
