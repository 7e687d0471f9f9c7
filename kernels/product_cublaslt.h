// What the matrix products that cuBLASLt runs share (matmul_cublaslt.cpp, fp8_matmul_cublaslt.cpp): owned handles,
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
#include "kernels/product_workspace.h"

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

struct ProductMatrix {
  DType dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t columns = 0;
};

// A product d = op(a) op(b), or d += of it. `descriptor` says which operands are transposed and scaled; it and the
// algorithm are the caller's to set.
struct ProductPlan {
  ProductPlan(ProductMatrix a, ProductMatrix b, ProductMatrix d, bool accumulate);

  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check(cublasLtMatmulDescSetAttribute(descriptor.get(), attribute, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  }

  ProductMatrix a;
  ProductMatrix b;
  ProductMatrix d;
  bool accumulate;
  OwnedDescriptor descriptor;
  OwnedLayout a_layout;
  OwnedLayout b_layout;
  OwnedLayout d_layout;
  cublasLtMatmulAlgo_t algorithm{};
  size_t workspace_bytes = 0;
};

// What bounds the choice of an algorithm.
struct ProductLimits {
  uint32_t alignment = 0;  // bytes, of the least aligned of a, b and d
  int64_t workspace_bytes = 0;
};

// Sets the plan's algorithm and workspace: the fastest of the library's first candidates on random operands of the real
// size, or on a deterministic stream the first without split-K. Waits for the GPU and allocates for the time it takes.
// Throws, with `description`, when the library has no algorithm.
void choose_algorithm(ProductPlan& plan, const ProductLimits& limits, const std::string& description, Stream& stream);

// Queues the product.
void run_product(const ProductPlan& plan, const ProductPointers& pointers, Stream& stream);

}  // namespace octavo::cuda
