#include "kernels/product_cublaslt.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "core/cuda_check.h"
#include "core/error.h"

namespace octavo::cuda {

namespace {

constexpr int kCandidates = 8;
constexpr int kRounds = 5;
constexpr double kClearlyFaster = 0.99;   // of the first candidate's time; less of a gain is noise
constexpr double kOutOfTheRunning = 1.3;  // of the fastest one's time; no later run makes up for so much

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return CUDA_R_16BF;
    case DType::kFloat8E4M3:
      return CUDA_R_8F_E4M3;
    case DType::kFloat8E5M2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_32F;
  }
}

OwnedDescriptor make_descriptor() {
  cublasLtMatmulDesc_t descriptor = nullptr;
  // Plain float32 arithmetic, also for float32 operands: no tf32.
  check(cublasLtMatmulDescCreate(&descriptor, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  return OwnedDescriptor(descriptor);
}

OwnedLayout make_layout(const ProductMatrix& matrix) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, data_type(matrix.dtype), static_cast<uint64_t>(matrix.columns),
                                   static_cast<uint64_t>(matrix.rows), matrix.columns),
        "cublasLtMatrixLayoutCreate");
  return OwnedLayout(layout);
}

std::vector<cublasLtMatmulHeuristicResult_t> find_candidates(cublasLtHandle_t handle, const ProductPlan& plan,
                                                             const ProductLimits& limits,
                                                             const std::string& description, bool deterministic) {
  cublasLtMatmulPreference_t raw = nullptr;
  check(cublasLtMatmulPreferenceCreate(&raw), "cublasLtMatmulPreferenceCreate");
  const OwnedPreference preference(raw);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulPreferenceSetAttribute(raw, attribute, &value, sizeof(value)), "setting a preference");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(limits.workspace_bytes));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, limits.alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, limits.alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, limits.alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, limits.alignment);
  std::vector<cublasLtMatmulHeuristicResult_t> candidates(kCandidates);
  int found = 0;
  cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
  const auto ask = [&](uint32_t reduction_schemes) {
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction_schemes);
    status = cublasLtMatmulAlgoGetHeuristic(handle, plan.descriptor.get(), plan.b_layout.get(), plan.a_layout.get(),
                                            plan.d_layout.get(), plan.d_layout.get(), raw, kCandidates,
                                            candidates.data(), &found);
    return status == CUBLAS_STATUS_SUCCESS && found > 0;
  };
  // Some FP8 products have none without split-K. Its parts are added in a fixed order as well.
  const bool without_split_k = deterministic && ask(CUBLASLT_REDUCTION_SCHEME_NONE);
  if (!without_split_k) ask(CUBLASLT_REDUCTION_SCHEME_MASK);
  CHECK(status == CUBLAS_STATUS_SUCCESS && found > 0,
        "cuBLASLt has no algorithm for {} (operands aligned to {} bytes): {}", description, limits.alignment,
        cublasLtGetStatusString(status));
  candidates.resize(static_cast<size_t>(found));
  return candidates;
}

cublasStatus_t run(cublasLtHandle_t handle, const ProductPlan& plan, const cublasLtMatmulAlgo_t& algorithm,
                   const ProductPointers& pointers, size_t workspace_bytes, const Stream& stream) {
  const float alpha = 1.0f;
  const float beta = plan.accumulate ? 1.0f : 0.0f;
  void* workspace = workspace_bytes == 0 ? nullptr : stream.workspace(static_cast<int64_t>(workspace_bytes));
  return cublasLtMatmul(handle, plan.descriptor.get(), &alpha, pointers.b, plan.b_layout.get(), pointers.a,
                        plan.a_layout.get(), &beta, pointers.d, plan.d_layout.get(), pointers.d, plan.d_layout.get(),
                        &algorithm, workspace, workspace_bytes, static_cast<cudaStream_t>(stream.native()));
}

// Of 32 bits of elements of this dtype, which may be random and which are one, so that the values are finite, of
// magnitude 2^-7 to 2.
struct RandomBits {
  uint32_t free;
  uint32_t ones;
};
RandomBits random_bits(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return {0x83ff83ffu, 0x3c003c00u};
    case DType::kFloat8E4M3:
      return {0xbfbfbfbfu, 0};
    case DType::kFloat8E5M2:
      return {0x9f9f9f9fu, 0x20202020u};
    default:
      return {0x83ffffffu, 0x3c000000u};
  }
}

// Operands of a product's real size filled with finite random numbers (zeros would run faster than real data do), for
// timing; freed with the object.
class ScratchOperands {
 public:
  // Nothing when the GPU has no room for them.
  static std::optional<ScratchOperands> allocate(const ProductPlan& plan, Stream& stream) {
    ScratchOperands scratch;
    for (auto [slot, matrix] :
         {std::pair{&scratch.a_, plan.a}, std::pair{&scratch.b_, plan.b}, std::pair{&scratch.d_, plan.d}}) {
      void* pointer = nullptr;
      const int64_t bytes = matrix.rows * matrix.columns * dtype_bytes(matrix.dtype);
      const cudaError_t status = cudaMalloc(&pointer, static_cast<size_t>(bytes));
      if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return std::nullopt;
      }
      check(status, "cudaMalloc");
      slot->reset(pointer);
      fill(pointer, bytes, matrix.dtype, stream);
    }
    return scratch;
  }

  ProductPointers pointers() const { return {d_.get(), a_.get(), b_.get()}; }

 private:
  struct Free {
    void operator()(void* pointer) const { cudaFree(pointer); }
  };

  // A block of random numbers, copied over and over.
  static void fill(void* out, int64_t bytes, DType dtype, Stream& stream) {
    constexpr int64_t kBlockBytes = 1 << 20;
    const RandomBits bits = random_bits(dtype);
    std::vector<uint32_t> words(kBlockBytes / sizeof(uint32_t));
    std::mt19937 random(1234);
    for (uint32_t& word : words) word = (static_cast<uint32_t>(random()) & bits.free) | bits.ones;
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
double time_run(cublasLtHandle_t handle, const ProductPlan& plan, const cublasLtMatmulHeuristicResult_t& candidate,
                const ProductPointers& pointers, Stream& stream) {
  Event begin(Device::kCuda, true);
  Event end(Device::kCuda, true);
  begin.record(stream);
  if (run(handle, plan, candidate.algo, pointers, candidate.workspaceSize, stream) != CUBLAS_STATUS_SUCCESS) {
    return std::numeric_limits<double>::infinity();
  }
  end.record(stream);
  end.synchronize();
  return end.milliseconds_since(begin);
}

// The index of the candidate with the smallest median time. They take turns, as the GPU slows down when it gets warm;
// those that one timed run finds far behind have no further ones, and the library's own first choice stays unless
// another is clearly faster.
size_t fastest_candidate(cublasLtHandle_t handle, const ProductPlan& plan,
                         const std::vector<cublasLtMatmulHeuristicResult_t>& candidates,
                         const ProductPointers& pointers, Stream& stream) {
  std::vector<std::vector<double>> times(candidates.size());
  std::vector<size_t> running(candidates.size());
  std::iota(running.begin(), running.end(), size_t{0});
  for (int round = 0; round <= kRounds; ++round) {
    for (const size_t i : running) {
      const double ms = time_run(handle, plan, candidates[i], pointers, stream);
      if (round > 0) times[i].push_back(ms);  // the first run loads the kernel
    }
    if (round != 1) continue;
    const auto first_time = [&](size_t i) { return times[i].front(); };
    const double fastest = first_time(*std::ranges::min_element(running, {}, first_time));
    std::erase_if(running, [&](size_t i) { return first_time(i) > kOutOfTheRunning * fastest; });
  }
  const auto median = [&](size_t i) {
    std::nth_element(times[i].begin(), times[i].begin() + kRounds / 2, times[i].end());
    return times[i][kRounds / 2];
  };
  size_t best = running.front();
  double best_ms = median(best) * kClearlyFaster;
  for (const size_t i : running) {
    if (const double ms = median(i); ms < best_ms) {
      best_ms = ms;
      best = i;
    }
  }
  return best;
}

}  // namespace

void check(cublasStatus_t status, const char* what) {
  CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: {} failed: {}", what, cublasLtGetStatusString(status));
}

CublasLtHandle::CublasLtHandle(Stream&) {
  cublasLtHandle_t raw = nullptr;
  check(cublasLtCreate(&raw), "cublasLtCreate");
  handle.reset(raw);
}

uint32_t common_alignment(const ProductPointers& pointers) {
  constexpr uintptr_t kLargest = 256;
  const auto bits = reinterpret_cast<uintptr_t>(pointers.d) | reinterpret_cast<uintptr_t>(pointers.a) |
                    reinterpret_cast<uintptr_t>(pointers.b) | kLargest;
  return uint32_t{1} << std::countr_zero(bits);
}

ProductPlan::ProductPlan(ProductMatrix a_matrix, ProductMatrix b_matrix, ProductMatrix d_matrix, bool accumulates)
    : a(a_matrix),
      b(b_matrix),
      d(d_matrix),
      accumulate(accumulates),
      descriptor(make_descriptor()),
      a_layout(make_layout(a)),
      b_layout(make_layout(b)),
      d_layout(make_layout(d)) {}

void choose_algorithm(ProductPlan& plan, const ProductLimits& limits, const std::string& description, Stream& stream) {
  cublasLtHandle_t handle = stream.state<CublasLtHandle>().handle.get();
  if (const int32_t count = stream.product_multiprocessors(); count > 0) {
    plan.set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, count);
  }
  const auto candidates = find_candidates(handle, plan, limits, description, stream.deterministic());
  size_t best = 0;
  if (!stream.deterministic() && candidates.size() > 1) {
    if (const auto scratch = ScratchOperands::allocate(plan, stream)) {
      best = fastest_candidate(handle, plan, candidates, scratch->pointers(), stream);
    }
  }
  plan.algorithm = candidates[best].algo;
  plan.workspace_bytes = candidates[best].workspaceSize;
}

void run_product(const ProductPlan& plan, const ProductPointers& pointers, Stream& stream) {
  cublasLtHandle_t handle = stream.state<CublasLtHandle>().handle.get();
  check(run(handle, plan, plan.algorithm, pointers, plan.workspace_bytes, stream), "cublasLtMatmul");
}

}  // namespace octavo::cuda
