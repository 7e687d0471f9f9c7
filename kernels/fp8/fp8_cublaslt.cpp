// FP8 matmul by cuBLASLt, which on Hopper requires the contracted dimension innermost in both operands. As column-major
// matrices a and b are [k, m] and [k, n], so d^T = b a^T is a "TN" matmul.
#include <algorithm>
#include <compare>
#include <map>
#include <memory>

#include "core/error.h"
#include "kernels/fp8/fp8.h"
#include "kernels/matmul/matmul_plan_cublaslt.h"

namespace octavo::cuda {

namespace {

// Everything that decides which algorithms can run and how fast they are.
struct Fp8Problem {
  MatmulShape shape;
  Scaling a_scaling = Scaling::kTensor;
  Scaling b_scaling = Scaling::kTensor;
  bool fast_accumulation = false;
  uint32_t alignment = 0;
  int64_t workspace_bytes = 0;
  bool deterministic = false;
  auto operator<=>(const Fp8Problem&) const = default;
};

// cuBLASLt's scale modes in the order of kScalings.
constexpr cublasLtMatmulMatrixScale_t kScaleModes[] = {
    CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
    CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
    CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
    CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
};
static_assert(std::size(kScaleModes) == std::size(kScalings));

int32_t scale_mode(Scaling scaling) { return static_cast<int32_t>(kScaleModes[static_cast<size_t>(scaling)]); }

// Sets the addresses of the scales. b is cuBLASLt's first operand, a its second.
void set_scales(MatmulPlan& plan, const Fp8Matmul& args) {
  plan.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(args.b.scale_inv.raw()));
  plan.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(args.a.scale_inv.raw()));
}

std::unique_ptr<MatmulPlan> make_plan(const Fp8Problem& p, const Fp8Matmul& args, Stream& stream) {
  auto plan = std::make_unique<MatmulPlan>(p.shape);
  plan->set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(p.b_scaling));
  plan->set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(p.a_scaling));
  plan->set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(p.fast_accumulation ? 1 : 0));
  set_scales(*plan, args);  // the timing runs read the real scales
  const std::string description =
      fmt::format("a {} x {} x {} product of {} (scaling {}) with {} (scaling {}) into {}{}", p.shape.m, p.shape.n,
                  p.shape.k, dtype_name(p.shape.a_dtype), traits(p.a_scaling).name, dtype_name(p.shape.b_dtype),
                  traits(p.b_scaling).name, dtype_name(p.shape.d_dtype), p.fast_accumulation ? ", fast" : "");
  choose_algorithm(*plan, {p.alignment, p.workspace_bytes, p.deterministic}, description, stream);
  return plan;
}

struct Fp8MatmulPlans {
  explicit Fp8MatmulPlans(Stream&) {}
  std::map<Fp8Problem, std::unique_ptr<MatmulPlan>> plans;
};

}  // namespace

void fp8_matmul(const Fp8Matmul& args, Stream& stream) {
  const MatmulPointers pointers{args.d.raw(), args.a.data.raw(), args.b.data.raw()};
  const Fp8Problem problem{.shape = {.m = args.d.dim(0),
                                     .n = args.d.dim(1),
                                     .k = args.a.data.dim(1),
                                     .transpose_b = true,
                                     .accumulate = args.accumulate,
                                     .a_dtype = args.a.data.dtype(),
                                     .b_dtype = args.b.data.dtype(),
                                     .d_dtype = args.d.dtype()},
                           .a_scaling = args.a.scaling,
                           .b_scaling = args.b.scaling,
                           .fast_accumulation = args.fast_accumulation && !traits(args.a.scaling).blockwise,
                           .alignment = common_alignment(pointers),
                           .workspace_bytes = std::min(kMatmulWorkspaceBytes, stream.workspace_bytes()),
                           .deterministic = stream.deterministic()};
  if (problem.shape.m == 0 || problem.shape.n == 0) return;
  auto& plans = stream.state<Fp8MatmulPlans>().plans;
  auto found = plans.find(problem);
  if (found == plans.end()) found = plans.emplace(problem, make_plan(problem, args, stream)).first;
  set_scales(*found->second, args);
  run_matmul(*found->second, pointers, stream);
}

}  // namespace octavo::cuda
