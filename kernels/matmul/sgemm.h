// The float32 matmul that the CPU references use, row-major: d = alpha op(a) op(b)  (+ d when accumulating).
//
// OCTAVO_CPU_PRODUCTS chooses the library at build time: oneDNN on x86-64, which chooses kernels for the processor at
// run time, or OpenBLAS on other processors. Uses OpenMP's threads, but inside a parallel region only the calling
// thread. Equal sizes and numbers of threads give equal bits. d may not alias a or b, and is read only when
// accumulating.
#pragma once

#include <cstdint>
#include <string>

namespace octavo::cpu {

// a is stored [m, k], or [k, m] if transposed. b is stored [k, n], or [n, k] if transposed. d is [m, n].
struct Sgemm {
  int64_t m, n, k;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  int64_t lda, ldb, ldd;  // Number of elements from the start of a stored row to the start of the next row.
  float alpha = 1;
};
void sgemm(const Sgemm& p, float* d, const float* a, const float* b);

// Returns the library and its kernels for this processor: "oneDNN 2.6.3 with AVX-512", "OpenBLAS 0.3.21 for Haswell".
std::string sgemm_kernels();

}  // namespace octavo::cpu
