// Matrix products by cuBLASLt. It thinks in column-major matrices: a row-major [r, c] matrix is, byte for byte, a
// column-major [c, r] one with leading dimension c. So d = op(a) op(b) is asked for as d^T = op(b)^T op(a)^T, with b as
// the first operand, n rows and m columns.
#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <compare>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "kernels/core/cuda_check.h"
#include "kernels/core/error.h"
#include "kernels/matmul.h"

namespace octavo::cuda {

namespace {

constexpr int64_t kWorkspaceBytes = 64 << 20;
constexpr int kCandidates = 8;
constexpr int kRounds = 5;
constexpr double kClearlyFaster = 0.99;  // of the first candidate's time; less of a gain is noise

void check(cublasStatus_t status, const char* what) {
  CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: {} failed: {}", what, cublasLtGetStatusString(status));
}

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
  uint32_t alignment = 0;  // bytes, of the least aligned of a, b and d
  int64_t workspace_bytes = 0;
  bool deterministic = false;
  auto operator<=>(const Problem&) const = default;
};

struct Operands {
  void* d;
  const void* a;
  const void* b;
};

template <typename Handle, cublasStatus_t (*Destroy)(Handle)>
struct Destroyer {
  void operator()(Handle handle) const { Destroy(handle); }
};
template <typename Handle, cublasStatus_t (*Destroy)(Handle)>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroyer<Handle, Destroy>>;
using OwnedHandle = Owned<cublasLtHandle_t, cublasLtDestroy>;
using OwnedDescriptor = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using OwnedLayout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using OwnedPreference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t data_type(DType dtype) { return dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F; }

// The layout of a row-major matrix of `rows` by `columns`.
OwnedLayout make_layout(DType dtype, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, data_type(dtype), static_cast<uint64_t>(columns),
                                   static_cast<uint64_t>(rows), columns),
        "cublasLtMatrixLayoutCreate");
  return OwnedLayout(layout);
}

// A product ready to run: descriptors and, once chosen, the algorithm.
struct Plan {
  OwnedDescriptor descriptor;
  OwnedLayout a;
  OwnedLayout b;
  OwnedLayout d;
  cublasLtMatmulAlgo_t algorithm{};
  size_t workspace_bytes = 0;
};

Plan make_plan(const Problem& p) {
  cublasLtMatmulDesc_t descriptor = nullptr;
  // Plain float32 arithmetic, also for float32 operands: no tf32.
  check(cublasLtMatmulDescCreate(&descriptor, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  Plan plan{.descriptor = OwnedDescriptor(descriptor),
            .a = p.transpose_a ? make_layout(p.operand_dtype, p.k, p.m) : make_layout(p.operand_dtype, p.m, p.k),
            .b = p.transpose_b ? make_layout(p.operand_dtype, p.n, p.k) : make_layout(p.operand_dtype, p.k, p.n),
            .d = make_layout(p.result_dtype, p.m, p.n)};
  const cublasOperation_t first = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  check(cublasLtMatmulDescSetAttribute(descriptor, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)), "TRANSA");
  check(cublasLtMatmulDescSetAttribute(descriptor, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second)), "TRANSB");
  return plan;
}

std::vector<cublasLtMatmulHeuristicResult_t> find_candidates(cublasLtHandle_t handle, const Problem& p,
                                                             const Plan& plan) {
  cublasLtMatmulPreference_t raw = nullptr;
  check(cublasLtMatmulPreferenceCreate(&raw), "cublasLtMatmulPreferenceCreate");
  const OwnedPreference preference(raw);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulPreferenceSetAttribute(raw, attribute, &value, sizeof(value)), "setting a preference");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(p.workspace_bytes));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.alignment);
  if (p.deterministic) {
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> candidates(kCandidates);
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, plan.descriptor.get(), plan.b.get(), plan.a.get(), plan.d.get(),
                                     plan.d.get(), raw, kCandidates, candidates.data(), &found);
  CHECK(status == CUBLAS_STATUS_SUCCESS && found > 0,
        "cuBLASLt has no algorithm for a {} x {} x {} product of {} into {} (operands aligned to {} bytes): {}", p.m,
        p.n, p.k, dtype_name(p.operand_dtype), dtype_name(p.result_dtype), p.alignment,
        cublasLtGetStatusString(status));
  candidates.resize(static_cast<size_t>(found));
  return candidates;
}

cublasStatus_t run(cublasLtHandle_t handle, const Problem& p, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                   const Operands& operands, size_t workspace_bytes, const Stream& stream) {
  const float alpha = 1.0f;
  const float beta = p.accumulate ? 1.0f : 0.0f;
  void* workspace = workspace_bytes == 0 ? nullptr : stream.workspace(static_cast<int64_t>(workspace_bytes));
  return cublasLtMatmul(handle, plan.descriptor.get(), &alpha, operands.b, plan.b.get(), operands.a, plan.a.get(),
                        &beta, operands.d, plan.d.get(), operands.d, plan.d.get(), &algorithm, workspace,
                        workspace_bytes, static_cast<cudaStream_t>(stream.native()));
}

// Operands of a problem's real size filled with finite random numbers (zeros would run faster than real data do), for
// timing; freed with the object.
class ScratchOperands {
 public:
  // Nothing when the GPU has no room for them.
  static std::optional<ScratchOperands> allocate(const Problem& p, Stream& stream) {
    ScratchOperands scratch;
    const int64_t a_bytes = p.m * p.k * dtype_bytes(p.operand_dtype);
    const int64_t b_bytes = p.k * p.n * dtype_bytes(p.operand_dtype);
    const int64_t d_bytes = p.m * p.n * dtype_bytes(p.result_dtype);
    for (auto [slot, bytes] : {std::pair{&scratch.a_, a_bytes}, {&scratch.b_, b_bytes}, {&scratch.d_, d_bytes}}) {
      void* pointer = nullptr;
      const cudaError_t status = cudaMalloc(&pointer, static_cast<size_t>(bytes));
      if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return std::nullopt;
      }
      cuda::check(status, "cudaMalloc");
      slot->reset(pointer);
    }
    fill(scratch.a_.get(), a_bytes, p.operand_dtype, stream);
    fill(scratch.b_.get(), b_bytes, p.operand_dtype, stream);
    fill(scratch.d_.get(), d_bytes, p.result_dtype, stream);
    return scratch;
  }

  Operands operands() const { return {d_.get(), a_.get(), b_.get()}; }

 private:
  struct Free {
    void operator()(void* pointer) const { cudaFree(pointer); }
  };

  // A block of random numbers of magnitude 2^-7 to 2, copied over and over.
  static void fill(void* out, int64_t bytes, DType dtype, Stream& stream) {
    constexpr int64_t kBlockBytes = 1 << 20;
    std::vector<uint32_t> words(kBlockBytes / sizeof(uint32_t));
    std::mt19937 random(1234);
    // Sign and mantissa are free, of the exponent (127 stands for 2^0) only the low three bits are.
    const uint32_t free_bits = dtype == DType::kBFloat16 ? 0x83ff83ffu : 0x83ffffffu;
    const uint32_t exponent = dtype == DType::kBFloat16 ? 0x3c003c00u : 0x3c000000u;
    for (uint32_t& word : words) word = (static_cast<uint32_t>(random()) & free_bits) | exponent;
    int64_t filled = std::min(bytes, kBlockBytes);
    stream.copy(out, words.data(), filled);
    stream.synchronize();
    while (filled < bytes) {
      const int64_t more = std::min(filled, bytes - filled);
      stream.copy(static_cast<char*>(out) + filled, out, more);
      filled += more;
    }
  }

  std::unique_ptr<void, Free> a_;
  std::unique_ptr<void, Free> b_;
  std::unique_ptr<void, Free> d_;
};

// Milliseconds of one run; infinity when the candidate cannot run.
double time_run(cublasLtHandle_t handle, const Problem& p, const Plan& plan,
                const cublasLtMatmulHeuristicResult_t& candidate, const Operands& operands, Stream& stream) {
  Event begin(Device::kCuda, true);
  Event end(Device::kCuda, true);
  begin.record(stream);
  if (run(handle, p, plan, candidate.algo, operands, candidate.workspaceSize, stream) != CUBLAS_STATUS_SUCCESS) {
    return std::numeric_limits<double>::infinity();
  }
  end.record(stream);
  end.synchronize();
  return end.milliseconds_since(begin);
}

// The index of the candidate with the smallest median time. They take turns, as the GPU slows down when it gets warm,
// and the library's own first choice stays unless another is clearly faster.
size_t fastest_candidate(cublasLtHandle_t handle, const Problem& p, const Plan& plan,
                         const std::vector<cublasLtMatmulHeuristicResult_t>& candidates, const Operands& operands,
                         Stream& stream) {
  std::vector<std::vector<double>> times(candidates.size());
  for (int round = 0; round <= kRounds; ++round) {
    for (size_t i = 0; i < candidates.size(); ++i) {
      const double ms = time_run(handle, p, plan, candidates[i], operands, stream);
      if (round > 0) times[i].push_back(ms);  // the first run loads the kernel
    }
  }
  const auto median = [&](size_t i) {
    std::nth_element(times[i].begin(), times[i].begin() + kRounds / 2, times[i].end());
    return times[i][kRounds / 2];
  };
  size_t best = 0;
  double best_ms = median(0) * kClearlyFaster;
  for (size_t i = 1; i < candidates.size(); ++i) {
    if (const double ms = median(i); ms < best_ms) {
      best_ms = ms;
      best = i;
    }
  }
  return best;
}

class CublasLtState {
 public:
  explicit CublasLtState(Stream&) {
    cublasLtHandle_t handle = nullptr;
    check(cublasLtCreate(&handle), "cublasLtCreate");
    handle_.reset(handle);
  }

  void multiply(const Problem& problem, const Operands& operands, Stream& stream) {
    auto found = plans_.find(problem);
    if (found == plans_.end()) found = plans_.emplace(problem, choose(problem, stream)).first;
    const Plan& plan = found->second;
    check(run(handle_.get(), problem, plan, plan.algorithm, operands, plan.workspace_bytes, stream), "cublasLtMatmul");
  }

 private:
  Plan choose(const Problem& problem, Stream& stream) const {
    Plan plan = make_plan(problem);
    const auto candidates = find_candidates(handle_.get(), problem, plan);
    size_t best = 0;
    if (!problem.deterministic && candidates.size() > 1) {
      if (const auto scratch = ScratchOperands::allocate(problem, stream)) {
        best = fastest_candidate(handle_.get(), problem, plan, candidates, scratch->operands(), stream);
      }
    }
    plan.algorithm = candidates[best].algo;
    plan.workspace_bytes = candidates[best].workspaceSize;
    return plan;
  }

  OwnedHandle handle_;
  std::map<Problem, Plan> plans_;
};

// The largest power of two, up to 256, that divides all three addresses.
uint32_t common_alignment(const Operands& operands) {
  constexpr uintptr_t kLargest = 256;
  const auto bits = reinterpret_cast<uintptr_t>(operands.d) | reinterpret_cast<uintptr_t>(operands.a) |
                    reinterpret_cast<uintptr_t>(operands.b) | kLargest;
  return uint32_t{1} << std::countr_zero(bits);
}

}  // namespace

void matmul(const Matmul& args, Stream& stream) {
  const Operands operands{args.d.raw(), args.a.raw(), args.b.raw()};
  const Problem problem{.m = args.d.dim(0),
                        .n = args.d.dim(1),
                        .k = args.transpose_a ? args.a.dim(0) : args.a.dim(1),
                        .transpose_a = args.transpose_a,
                        .transpose_b = args.transpose_b,
                        .accumulate = args.accumulate,
                        .operand_dtype = args.a.dtype(),
                        .result_dtype = args.d.dtype(),
                        .alignment = common_alignment(operands),
                        .workspace_bytes = std::min(kWorkspaceBytes, stream.workspace_bytes()),
                        .deterministic = stream.deterministic()};
  if (problem.m == 0 || problem.n == 0) return;
  stream.state<CublasLtState>().multiply(problem, operands, stream);
}

int64_t matmul_workspace_bytes(int64_t m, int64_t n, int64_t k, DType dtype, const Stream& stream) {
  static_cast<void>(m), static_cast<void>(n), static_cast<void>(k), static_cast<void>(dtype);
  static_cast<void>(stream);
  return kWorkspaceBytes;
}

}  // namespace octavo::cuda
