// Matrix multiplication by cuBLASLt.
#include <algorithm>
#include <compare>
#include <map>
#include <memory>

#include "core/error.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/matmul_plan_cublaslt.h"

namespace octavo::cuda {

namespace {

// Everything that decides which of cuBLASLt's algorithms can run a matmul and how fast they are.
struct Problem {
  MatmulShape shape;
  uint32_t alignment = 0;
  int64_t workspace_bytes = 0;
  bool deterministic = false;
  auto operator<=>(const Problem&) const = default;
};

std::unique_ptr<MatmulPlan> make_plan(const Problem& p, Stream& stream) {
  auto plan = std::make_unique<MatmulPlan>(p.shape);
  const std::string description = fmt::format("a {} x {} x {} product of {} into {}", p.shape.m, p.shape.n, p.shape.k,
                                              dtype_name(p.shape.a_dtype), dtype_name(p.shape.d_dtype));
  choose_algorithm(*plan, {p.alignment, p.workspace_bytes, p.deterministic}, description, stream);
  return plan;
}

struct MatmulPlans {
  explicit MatmulPlans(Stream&) {}
  std::map<Problem, std::unique_ptr<MatmulPlan>> plans;
};

}  // namespace

void matmul(const Matmul& args, Stream& stream) {
  const MatmulPointers pointers{args.d.raw(), args.a.raw(), args.b.raw()};
  const Problem problem{.shape = {.m = args.d.dim(0),
                                  .n = args.d.dim(1),
                                  .k = args.transpose_a ? args.a.dim(0) : args.a.dim(1),
                                  .transpose_a = args.transpose_a,
                                  .transpose_b = args.transpose_b,
                                  .accumulate = args.accumulate,
                                  .a_dtype = args.a.dtype(),
                                  .b_dtype = args.b.dtype(),
                                  .d_dtype = args.d.dtype()},
                        .alignment = common_alignment(pointers),
                        .workspace_bytes = std::min(kMatmulWorkspaceBytes, stream.workspace_bytes()),
                        .deterministic = stream.deterministic() || args.reproducible};
  if (problem.shape.m == 0 || problem.shape.n == 0) return;
  auto& plans = stream.state<MatmulPlans>().plans;
  auto found = plans.find(problem);
  if (found == plans.end()) found = plans.emplace(problem, make_plan(problem, stream)).first;
  run_matmul(*found->second, pointers, stream);
}

std::string cublaslt_version() {
  const size_t version = cublasLtGetVersion();  // 10000 * major + 100 * minor + patch
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace octavo::cuda
