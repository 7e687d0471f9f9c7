#include <cblas.h>
#include <fmt/format.h>

#include "kernels/matmul/sgemm.h"

namespace octavo::cpu {

void sgemm(const Sgemm& p, float* d, const float* a, const float* b) {
  cblas_sgemm(CblasRowMajor, p.transpose_a ? CblasTrans : CblasNoTrans, p.transpose_b ? CblasTrans : CblasNoTrans,
              static_cast<blasint>(p.m), static_cast<blasint>(p.n), static_cast<blasint>(p.k), p.alpha, a,
              static_cast<blasint>(p.lda), b, static_cast<blasint>(p.ldb), p.accumulate ? 1.0f : 0.0f, d,
              static_cast<blasint>(p.ldd));
}

// OpenBLAS's configuration begins with its name and version: "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ...".
std::string sgemm_kernels() {
  const std::string config = openblas_get_config();
  const size_t version_end = config.find(' ', config.find(' ') + 1);
  return fmt::format("{} for {}", config.substr(0, version_end), openblas_get_corename());
}

}  // namespace octavo::cpu
