#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.h>

#include "core/error.h"
#include "kernels/matmul/sgemm.h"

namespace octavo::cpu {

void sgemm(const Sgemm& p, float* d, const float* a, const float* b) {
  const dnnl_status_t status = dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, p.alpha,
                                          a, p.lda, b, p.ldb, p.accumulate ? 1.0f : 0.0f, d, p.ldd);
  CHECK(status == dnnl_success, "dnnl_sgemm of {} x {} x {} failed: {}", p.m, p.n, p.k, static_cast<int>(status));
}

// The value of an instruction set contains the bits of the instruction sets that it extends.
std::string sgemm_kernels() {
  const unsigned isa = dnnl_get_effective_cpu_isa();
  const auto has = [&](unsigned wanted) { return (isa & wanted) == wanted; };
  const char* name = "SSE4.1";
  if (has(dnnl_cpu_isa_avx)) name = "AVX";
  if (has(dnnl_cpu_isa_avx2)) name = "AVX2";
  if (has(dnnl_cpu_isa_avx512_core)) name = "AVX-512";
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("oneDNN {}.{}.{} with {}", version->major, version->minor, version->patch, name);
}

}  // namespace octavo::cpu
