#include "kernels/layers/swiglu.h"

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/fp8/fp8_cast.h"
#include "kernels/layers/layers_cuda.h"
#include "kernels/math/cpu_math.h"

namespace octavo {

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
void update_gradient_bound_factor(float& gradient_bound_factor, const Tensor& gate_up) {
  const int64_t width = gate_up.dim(1) / 2;
  uint32_t gates = 0;
  uint32_t ups = 0;
#pragma omp parallel for reduction(max : gates, ups)
  for (int64_t t = 0; t < gate_up.dim(0); ++t) {
    const T* row = gate_up.data<T>() + t * 2 * width;
    for (int64_t c = 0; c < width; ++c) {
      gates = std::max(gates, magnitude(static_cast<float>(row[c])));
      ups = std::max(ups, magnitude(static_cast<float>(row[width + c])));
    }
  }
  update_amax(gradient_bound_factor, std::bit_cast<float>(gates));
  update_amax(gradient_bound_factor, kLargestSiluSlope * std::bit_cast<float>(ups));
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
    T* out = args.out.defined() ? args.out.data<T>() + t * width : nullptr;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      const float g = static_cast<float>(gate[c]);
      const float u = static_cast<float>(gate[width + c]);
      const float d = static_cast<float>(d_out[c]);
      const float s = sigmoid(g);
      d_gate[c] = T(d * u * s * (1.0f + g * (1.0f - s)));
      d_gate[width + c] = T(d * g * s);
      if (out != nullptr) out[c] = T(g * s * u);
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
  check_cast(args.cast, CastOf::kActivation, "swiglu_forward", args.out, stream);
  if (args.gradient_bound_factor.defined()) {
    expect_tensor(args.gradient_bound_factor, "swiglu_forward gradient_bound_factor", DType::kFloat32, {1});
  }
  CHECK(!args.gradient_bound_factor.defined() || (args.amax.defined() && !args.cast.defined()),
        "swiglu_forward: a gradient_bound_factor without an amax, or with a cast");
  const double bytes = static_cast<double>(args.gate_up.bytes()) + result_bytes(args.cast, args.out);
  const OpTimer timer(stream, {.name = "swiglu_forward", .bytes = bytes, .casts = args.cast.defined()});
  if (ran_elsewhere<cuda::swiglu_forward>(args, stream)) return;
  cpu::with_compute_dtype(args.out.dtype(), [&]<typename T>() {
    cpu::swiglu_forward<T>(args);
    cpu::update_amax<T>(args.amax, args.out);
    if (args.gradient_bound_factor.defined()) {
      cpu::update_gradient_bound_factor<T>(args.gradient_bound_factor.data<float>()[0], args.gate_up);
    }
  });
  cpu::cast_result(args.cast, args.out);
}

namespace {

void check_backward_out(const SwigluBackward& args, const Stream& stream) {
  const Fp8Cast& cast = args.out_cast;
  if (args.out.defined()) {
    expect_tensor(args.out, "swiglu_backward out", args.gate_up.dtype(), {args.d_out.dim(0), args.d_out.dim(1)});
  }
  CHECK(!args.out.defined() || cast.defined() || !args.cast.defined(),
        "swiglu_backward: the gradient is cast and out is not, expected both or the latter alone");
  if (!cast.defined()) return;
  check_cast(cast, CastOf::kActivation, "swiglu_backward out", args.out, stream);
  CHECK(!cast.rows.defined(), "swiglu_backward out: a cast to rows, expected columns alone");
  CHECK(!args.cast.defined() || args.cast.scaling() == cast.scaling(),
        "swiglu_backward: the casts of the gradient and of out differ in scaling");
}

}  // namespace

void swiglu_backward(const SwigluBackward& args, Stream& stream) {
  const int64_t tokens = args.d_out.dim(0);
  const int64_t width = args.d_out.dim(1);
  expect_tensor(args.d_out, "swiglu_backward d_out", args.gate_up.dtype(), {tokens, width});
  expect_tensor(args.gate_up, "swiglu_backward gate_up", args.gate_up.dtype(), {tokens, 2 * width});
  expect_tensor(args.d_gate_up, "swiglu_backward d_gate_up", args.gate_up.dtype(), {tokens, 2 * width});
  if (args.amax.defined()) expect_tensor(args.amax, "swiglu_backward amax", DType::kFloat32, {1});
  check_cast(args.cast, CastOf::kGradient, "swiglu_backward", args.d_gate_up, stream);
  CHECK(!args.cast.defined() || !traits(args.cast.scaling()).blockwise || width % kScaleBlock == 0,
        "swiglu_backward cast: a scale would be of both halves, as {} is no multiple of 128", width);
  CHECK(!args.cast.is_of(args.amax), "swiglu_backward: the scale of the cast is that of the gradient's own amax");
  check_backward_out(args, stream);
  const auto read_bytes = static_cast<double>(args.gate_up.bytes() + args.d_out.bytes());
  const double out_bytes = args.out.defined() ? result_bytes(args.out_cast, args.out) : 0;
  const OpTimer timer(stream, {.name = "swiglu_backward",
                               .bytes = read_bytes + out_bytes + result_bytes(args.cast, args.d_gate_up),
                               .casts = args.cast.defined()});
  if (ran_elsewhere<cuda::swiglu_backward>(args, stream)) return;
  cpu::with_compute_dtype(args.d_out.dtype(), [&]<typename T>() {
    cpu::swiglu_backward<T>(args);
    cpu::update_amax<T>(args.amax, args.d_gate_up);
  });
  cpu::cast_result(args.cast, args.d_gate_up);
  cpu::cast_result(args.out_cast, args.out);
}

}  // namespace octavo
