// What the matrix products that cuBLASLt runs share (matmul_cublaslt.cpp, fp8_cublaslt.cpp): owned handles,
// layouts, and the choice of the fastest algorithm, timed once for each kind of product.
//
// cuBLASLt thinks in column-major matrices: a row-major [r, c] matrix is, byte for byte, a column-major [c, r] one with
// leading dimension c. So d = op(a) op(b) is asked for as d^T = op(b)^T op(a)^T, with b as cuBLASLt's first operand
// "A", n rows and m columns.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <string>
#include <type_traits>

#include "core/stream.h"
#include "kernels/matmul/product_workspace.h"

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

// The library's handle, one a stream: stream.state<CublasLtHandle>().
struct CublasLtHandle {
  explicit CublasLtHandle(Stream&);
  OwnedHandle handle;
};

// The three row-major matrices of a product.
struct ProductPointers {
  void* d;
  const void* a;
  const void* b;
};

// The largest power of two, up to 256, that divides all three addresses.
uint32_t common_alignment(const ProductPointers& pointers);

// d = op(a) op(b), or d += of it. op(a) is [m, k] and op(b) [k, n]; a transposed operand is stored the other way round.
struct ProductShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  DType a_dtype = DType::kFloat32;
  DType b_dtype = DType::kFloat32;
  DType d_dtype = DType::kFloat32;
  auto operator<=>(const ProductShape&) const = default;
};

// The layouts of a product's three matrices, as cuBLASLt takes them.
struct ProductLayouts {
  explicit ProductLayouts(const ProductShape& shape);
  OwnedLayout a, b, d;
};

// `descriptor` says which operands are transposed; how they are scaled, and the algorithm, are the caller's to set.
struct ProductPlan {
  explicit ProductPlan(const ProductShape& shape);

  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check(cublasLtMatmulDescSetAttribute(descriptor.get(), attribute, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  }

  ProductShape shape;
  OwnedDescriptor descriptor;
  ProductLayouts layouts;
  cublasLtMatmulAlgo_t algorithm{};
  size_t workspace_bytes = 0;
};

// What bounds the choice of an algorithm.
struct ProductLimits {
  uint32_t alignment = 0;  // bytes, of the least aligned of a, b and d
  int64_t workspace_bytes = 0;
  bool deterministic = false;
  int multiprocessors = 0;  // 0: all
};

// Sets the plan's algorithm and workspace: what the stream's TunedAlgorithms have for it, or else the fastest of the
// library's candidates on random operands of the real size, which those then have; where the limits say deterministic
// the first candidate without split-K. Operands that do not fit are cut to a part of their rows; where there is no room
// even for that, the first candidate is taken and TunedAlgorithms told. While TunedAlgorithms defers, the first
// candidate is taken until the choice is made, so the plan has to stay where it is. No algorithm adds parts of sums in
// less than float32. Waits for the GPU and allocates for the time it takes. `description`: all that decides how fast
// the algorithms are, but for what plan.shape and limits say. Throws, with it, when the library has no algorithm.
void choose_algorithm(ProductPlan& plan, const ProductLimits& limits, const std::string& description, Stream& stream);

// Queues the product.
void run_product(const ProductPlan& plan, const ProductPointers& pointers, Stream& stream);

}  // namespace octavo::cuda
