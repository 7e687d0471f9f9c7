// Shared code of the matmuls that cuBLASLt runs (matmul_cublaslt.cpp, fp8_cublaslt.cpp): owned handles, layouts, and
// the choice of the fastest algorithm, which is timed once for each problem.
//
// cuBLASLt's matrices are column-major. A row-major matrix [r, c] is, byte for byte, a column-major matrix [c, r] with
// leading dimension c. So d = op(a) op(b) is computed as d^T = op(b)^T op(a)^T: b is cuBLASLt's first operand "A", and
// the result has n rows and m columns.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <string>
#include <type_traits>

#include "core/stream.h"
#include "kernels/matmul/matmul_workspace.h"

namespace octavo::cuda {

// Throws Error naming `what` unless status is CUBLAS_STATUS_SUCCESS.
void check(cublasStatus_t status, const char* what);

template <typename Handle, cublasStatus_t (*Destroy)(Handle)>
struct CublasLtDestroyer {
  void operator()(Handle handle) const { Destroy(handle); }
};
template <typename Handle, cublasStatus_t (*Destroy)(Handle)>
using CublasLtOwned = std::unique_ptr<std::remove_pointer_t<Handle>, CublasLtDestroyer<Handle, Destroy>>;
using OwnedHandle = CublasLtOwned<cublasLtHandle_t, cublasLtDestroy>;
using OwnedDescriptor = CublasLtOwned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using OwnedLayout = CublasLtOwned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using OwnedPreference = CublasLtOwned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// The library's handle of a stream: stream.state<CublasLtHandle>().
struct CublasLtHandle {
  explicit CublasLtHandle(Stream&);
  OwnedHandle handle;
};

// The addresses of the three row-major matrices of a matmul.
struct MatmulPointers {
  void* d;
  const void* a;
  const void* b;
};

// Returns the largest power of two, up to 256, that divides all three addresses.
uint32_t common_alignment(const MatmulPointers& pointers);

// The matmul d = op(a) op(b), or d += op(a) op(b). op(a) is [m, k] and op(b) is [k, n]; a transposed operand is stored
// as [k, m] or [n, k].
struct MatmulShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  DType a_dtype = DType::kFloat32;
  DType b_dtype = DType::kFloat32;
  DType d_dtype = DType::kFloat32;
  auto operator<=>(const MatmulShape&) const = default;
};

// The layouts of the three matrices of a matmul, as cuBLASLt takes them.
struct MatmulLayouts {
  explicit MatmulLayouts(const MatmulShape& shape);
  OwnedLayout a, b, d;
};

// A matmul that can be queued. The constructor sets in `descriptor` which operands are transposed. The caller sets how
// the operands are scaled, and choose_algorithm sets the algorithm.
struct MatmulPlan {
  explicit MatmulPlan(const MatmulShape& shape);

  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check(cublasLtMatmulDescSetAttribute(descriptor.get(), attribute, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  }

  MatmulShape shape;
  OwnedDescriptor descriptor;
  MatmulLayouts layouts;
  cublasLtMatmulAlgo_t algorithm{};
  size_t workspace_bytes = 0;
};

// Constraints on the algorithms that may be chosen.
struct MatmulLimits {
  uint32_t alignment = 0;  // bytes that the addresses of a, b and d are multiples of
  int64_t workspace_bytes = 0;
  bool deterministic = false;
};

// Sets the plan's algorithm and workspace.
//   - With deterministic limits, this is the first candidate without split-K.
//   - If the stream's TunedAlgorithms have an algorithm for the problem, it is taken.
//   - Otherwise the candidates are timed on random operands of the real size, and the fastest is taken and added to the
//     TunedAlgorithms. Operands for which there is no memory are shortened to part of their rows. If even those do not
//     fit, the first candidate is taken, and TunedAlgorithms record that.
//   - While TunedAlgorithms defer, the first candidate is taken until choose_deferred().
// No algorithm adds partial sums in less than float32. Waits for the GPU and allocates memory while it times.
// `description` contains everything that decides how fast the algorithms are and is not in plan.shape or the limits.
// Throws an error with the description if the library has no algorithm.
// Requires: `plan` keeps its address until a deferred choice is made.
void choose_algorithm(MatmulPlan& plan, const MatmulLimits& limits, const std::string& description, Stream& stream);

// Queues the matmul on `stream`.
void run_matmul(const MatmulPlan& plan, const MatmulPointers& pointers, Stream& stream);

}  // namespace octavo::cuda
