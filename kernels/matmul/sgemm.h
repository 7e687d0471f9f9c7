// The float32 product that the CPU references stand on, row-major: d = alpha op(a) op(b)  (+ d when accumulating).
//
// It is the library's that the build chose (OCTAVO_CPU_PRODUCTS): oneDNN on x86-64, which picks its kernels by what the
// processor can do, OpenBLAS elsewhere. Runs on OpenMP's threads; inside a parallel region on the calling thread alone.
// The same bits for the same sizes and number of threads. d may not alias a or b; what it held before does not matter
// unless accumulating.
#pragma once

#include <cstdint>
#include <string>

namespace octavo::cpu {

// op(a) is [m, k] with rows `lda` apart, or a is [k, m] when transposed; op(b) is [k, n], or b is [n, k]; d is [m, n].
struct Sgemm {
  int64_t m, n, k;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  int64_t lda, ldb, ldd;  // elements between rows as stored
  float alpha = 1;
};
void sgemm(const Sgemm& p, float* d, const float* a, const float* b);

// The library and the kernels it takes on this processor: "oneDNN 2.6.3 with AVX-512", "OpenBLAS 0.3.21 for Haswell".
std::string sgemm_kernels();

}  // namespace octavo::cpu
