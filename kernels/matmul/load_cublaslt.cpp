#include "kernels/matmul/load_cublaslt.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include "core/error.h"

namespace octavo::cuda {
namespace {

// Loads the library and never unloads it, because handles of the library may be destroyed at any time.
void* open_library() {
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen(OCTAVO_CUBLASLT_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  CHECK(library != nullptr, "cuBLASLt cannot be loaded ({}), expected {} where dlopen finds it or in {}", dlerror(),
        name, OCTAVO_CUBLASLT_LIBRARY);
  return library;
}

}  // namespace

void* cublaslt_function(const char* name) {
  static void* const library = open_library();
  void* const function = dlsym(library, name);
  CHECK(function != nullptr, "cuBLASLt has no {}, expected the library of version {} or newer", name, CUBLAS_VERSION);
  return function;
}

}  // namespace octavo::cuda

// Defines a function of <cublasLt.h> that passes its arguments to the library's function.
#define LOADED(Result, name, parameters, ...)                                                             \
  Result name parameters {                                                                                \
    static const auto loaded = reinterpret_cast<decltype(&name)>(octavo::cuda::cublaslt_function(#name)); \
    return loaded(__VA_ARGS__);                                                                           \
  }

using Handle = cublasLtHandle_t;
using Operation = cublasLtMatmulDesc_t;
using Layout = cublasLtMatrixLayout_t;
using Preference = cublasLtMatmulPreference_t;
using Algorithm = cublasLtMatmulAlgo_t;
using Choice = cublasLtMatmulHeuristicResult_t;

LOADED(size_t, cublasLtGetVersion, ())
LOADED(const char*, cublasLtGetStatusString, (cublasStatus_t status), status)
LOADED(cublasStatus_t, cublasLtCreate, (Handle * handle), handle)
LOADED(cublasStatus_t, cublasLtDestroy, (Handle handle), handle)
LOADED(cublasStatus_t, cublasLtMatmul,
       (Handle handle, Operation operation, const void* alpha, const void* a, Layout a_layout, const void* b,
        Layout b_layout, const void* beta, const void* c, Layout c_layout, void* d, Layout d_layout,
        const Algorithm* algorithm, void* workspace, size_t workspace_bytes, cudaStream_t stream),
       handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm, workspace,
       workspace_bytes, stream)
LOADED(cublasStatus_t, cublasLtMatmulAlgoCheck,
       (Handle handle, Operation operation, Layout a, Layout b, Layout c, Layout d, const Algorithm* algorithm,
        Choice* result),
       handle, operation, a, b, c, d, algorithm, result)
LOADED(cublasStatus_t, cublasLtMatmulAlgoConfigGetAttribute,
       (const Algorithm* algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute, void* value, size_t bytes,
        size_t* written),
       algorithm, attribute, value, bytes, written)
LOADED(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
       (Handle handle, Operation operation, Layout a, Layout b, Layout c, Layout d, Preference preference, int wanted,
        Choice* results, int* found),
       handle, operation, a, b, c, d, preference, wanted, results, found)
LOADED(cublasStatus_t, cublasLtMatmulDescCreate,
       (Operation * operation, cublasComputeType_t compute, cudaDataType_t scale), operation, compute, scale)
LOADED(cublasStatus_t, cublasLtMatmulDescDestroy, (Operation operation), operation)
LOADED(cublasStatus_t, cublasLtMatmulDescSetAttribute,
       (Operation operation, cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes), operation,
       attribute, value, bytes)
LOADED(cublasStatus_t, cublasLtMatmulPreferenceCreate, (Preference * preference), preference)
LOADED(cublasStatus_t, cublasLtMatmulPreferenceDestroy, (Preference preference), preference)
LOADED(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
       (Preference preference, cublasLtMatmulPreferenceAttributes_t attribute, const void* value, size_t bytes),
       preference, attribute, value, bytes)
LOADED(cublasStatus_t, cublasLtMatrixLayoutCreate,
       (Layout * layout, cudaDataType type, uint64_t rows, uint64_t columns, int64_t stride), layout, type, rows,
       columns, stride)
LOADED(cublasStatus_t, cublasLtMatrixLayoutDestroy, (Layout layout), layout)

#undef LOADED
