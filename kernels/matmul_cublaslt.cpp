// Matrix products by cuBLASLt.
#include <algorithm>
#include <compare>
#include <map>

#include "core/error.h"
#include "kernels/matmul.h"
#include "kernels/product_cublaslt.h"

namespace octavo::cuda {

namespace {

// What decides which algorithms can run and how fast they are.
struct Problem {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  DType operand_dtype = DType::kFloat32;
  DType result_dtype = DType::kFloat32;
  uint32_t alignment = 0;
  int64_t workspace_bytes = 0;
  bool deterministic = false;
  int multiprocessors = 0;
  auto operator<=>(const Problem&) const = default;
};

ProductMatrix matrix(DType dtype, int64_t rows, int64_t columns, bool transposed) {
  return transposed ? ProductMatrix{dtype, columns, rows} : ProductMatrix{dtype, rows, columns};
}

ProductPlan make_plan(const Problem& p, Stream& stream) {
  ProductPlan plan(matrix(p.operand_dtype, p.m, p.k, p.transpose_a), matrix(p.operand_dtype, p.k, p.n, p.transpose_b),
                   matrix(p.result_dtype, p.m, p.n, false), p.accumulate);
  plan.set(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  plan.set(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  const std::string description = fmt::format("a {} x {} x {} product of {} into {}", p.m, p.n, p.k,
                                              dtype_name(p.operand_dtype), dtype_name(p.result_dtype));
  choose_algorithm(plan, {p.alignment, p.workspace_bytes}, description, stream);
  return plan;
}

struct MatmulPlans {
  explicit MatmulPlans(Stream&) {}
  std::map<Problem, ProductPlan> plans;
};

}  // namespace

void matmul(const Matmul& args, Stream& stream) {
  const ProductPointers pointers{args.d.raw(), args.a.raw(), args.b.raw()};
  const Problem problem{.m = args.d.dim(0),
                        .n = args.d.dim(1),
                        .k = args.transpose_a ? args.a.dim(0) : args.a.dim(1),
                        .transpose_a = args.transpose_a,
                        .transpose_b = args.transpose_b,
                        .accumulate = args.accumulate,
                        .operand_dtype = args.a.dtype(),
                        .result_dtype = args.d.dtype(),
                        .alignment = common_alignment(pointers),
                        .workspace_bytes = std::min(kProductWorkspaceBytes, stream.workspace_bytes()),
                        .deterministic = stream.deterministic(),
                        .multiprocessors = stream.product_multiprocessors()};
  if (problem.m == 0 || problem.n == 0) return;
  auto& plans = stream.state<MatmulPlans>().plans;
  auto found = plans.find(problem);
  if (found == plans.end()) found = plans.emplace(problem, make_plan(problem, stream)).first;
  run_product(found->second, pointers, stream);
}

std::string cublaslt_version() {
  const size_t version = cublasLtGetVersion();  // 10000 * major + 100 * minor + patch
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace octavo::cuda
