#include "kernels/matmul/matmul_plan_cublaslt.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <sstream>
#include <utility>
#include <vector>

#include "core/cuda_check.h"
#include "core/error.h"
#include "core/median.h"
#include "kernels/matmul/tuned_algorithms.h"

namespace octavo::cuda {

namespace {

constexpr int kCandidates = 32;
constexpr int kRounds = 3;
// With split-K, partial sums are added in float32. The other schemes add in the output's dtype.
constexpr cublasLtReductionScheme_t kSplitKReduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
// Another candidate replaces the first only below this fraction of the first one's time. A smaller gain is noise.
constexpr double kClearlyFaster = 0.99;
// Multiples of the fastest candidate's time above which a candidate is dropped: after single runs, and after a burst.
constexpr double kNotWorthABurst = 2;
constexpr double kOutOfTheRunning = 1.15;
constexpr double kBurstMs = 1.5;    // duration of a burst of runs of one candidate
constexpr double kHeatingMs = 150;  // time after which a GPU's clock is that of a long run
constexpr int64_t kMostParts = 16;  // operands are sliced to at least 1/16 of their rows

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
  // CUBLAS_COMPUTE_32F selects float32 arithmetic, without tf32, for float32 operands too.
  check(cublasLtMatmulDescCreate(&descriptor, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  return OwnedDescriptor(descriptor);
}

// Makes the layout of a row-major matrix.
OwnedLayout make_layout(DType dtype, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, data_type(dtype), static_cast<uint64_t>(columns),
                                   static_cast<uint64_t>(rows), columns),
        "cublasLtMatrixLayoutCreate");
  return OwnedLayout(layout);
}

OwnedLayout make_operand_layout(DType dtype, int64_t rows, int64_t columns, bool transposed) {
  return transposed ? make_layout(dtype, columns, rows) : make_layout(dtype, rows, columns);
}

std::vector<cublasLtMatmulHeuristicResult_t> find_candidates(cublasLtHandle_t handle, const MatmulPlan& plan,
                                                             const MatmulLimits& limits, const std::string& description,
                                                             bool deterministic) {
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
  const auto ask = [&](cublasLtReductionScheme_t reduction_schemes) {
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(reduction_schemes));
    status = cublasLtMatmulAlgoGetHeuristic(handle, plan.descriptor.get(), plan.layouts.b.get(), plan.layouts.a.get(),
                                            plan.layouts.d.get(), plan.layouts.d.get(), raw, kCandidates,
                                            candidates.data(), &found);
    return status == CUBLAS_STATUS_SUCCESS && found > 0;
  };
  // Some FP8 matmuls have only algorithms with split-K, whose partial sums are added in a fixed order too.
  const bool without_split_k = deterministic && ask(CUBLASLT_REDUCTION_SCHEME_NONE);
  if (!without_split_k) ask(kSplitKReduction);
  CHECK(status == CUBLAS_STATUS_SUCCESS && found > 0,
        "cuBLASLt has no algorithm for {} (operands aligned to {} bytes): {}", description, limits.alignment,
        cublasLtGetStatusString(status));
  candidates.resize(static_cast<size_t>(found));
  return candidates;
}

// The arguments of a queued matmul. The matmul uses parts of the operands if `layouts` are smaller than the layouts of
// the plan.
struct Run {
  cublasLtHandle_t handle;
  const MatmulPlan& plan;
  const MatmulLayouts& layouts;
  const MatmulPointers& pointers;
};

cublasStatus_t run(const Run& r, const cublasLtMatmulAlgo_t& algorithm, size_t workspace_bytes, const Stream& stream) {
  const float alpha = 1.0f;
  const float beta = r.plan.shape.accumulate ? 1.0f : 0.0f;
  void* workspace = workspace_bytes == 0 ? nullptr : stream.workspace(static_cast<int64_t>(workspace_bytes));
  return cublasLtMatmul(r.handle, r.plan.descriptor.get(), &alpha, r.pointers.b, r.layouts.b.get(), r.pointers.a,
                        r.layouts.a.get(), &beta, r.pointers.d, r.layouts.d.get(), r.pointers.d, r.layouts.d.get(),
                        &algorithm, workspace, workspace_bytes, static_cast<cudaStream_t>(stream.native()));
}

// Masks for 32 bits that hold elements of a dtype: the bits that are random and the bits that are set. All values are
// finite, with magnitudes of 2^-7 to 2.
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

// Operands to time a matmul with, of its real size or of part of its rows. They hold finite random numbers, because
// zeros run faster than real data. The destructor frees them.
class ScratchOperands {
 public:
  // Returns no value if the GPU has no memory even for 1 / kMostParts of the rows.
  static std::optional<ScratchOperands> allocate(const MatmulShape& whole, Stream& stream) {
    for (int64_t parts = 1; parts <= kMostParts && whole.m / parts > 0; parts *= 2) {
      MatmulShape shape = whole;
      shape.m = whole.m / parts;
      ScratchOperands scratch(shape);
      const bool fits = allocate(scratch.d_, shape.d_dtype, shape.m * shape.n, stream) &&
                        allocate(scratch.b_, shape.b_dtype, shape.k * shape.n, stream) &&
                        allocate(scratch.a_, shape.a_dtype, shape.m * shape.k, stream);
      if (fits) return scratch;
    }
    return std::nullopt;
  }

  const MatmulLayouts& layouts() const { return layouts_; }
  MatmulPointers pointers() const { return {d_.get(), a_.get(), b_.get()}; }

 private:
  struct Free {
    void operator()(void* pointer) const { cudaFree(pointer); }
  };
  using Memory = std::unique_ptr<void, Free>;

  explicit ScratchOperands(const MatmulShape& shape) : layouts_(shape) {}

  static bool allocate(Memory& memory, DType dtype, int64_t elements, Stream& stream) {
    void* pointer = nullptr;
    const int64_t bytes = elements * dtype_bytes(dtype);
    const cudaError_t status = cudaMalloc(&pointer, static_cast<size_t>(bytes));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return false;
    }
    check(status, "cudaMalloc");
    memory.reset(pointer);
    fill(pointer, bytes, dtype, stream);
    return true;
  }

  // Fills memory with copies of one block of random numbers.
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

  MatmulLayouts layouts_;
  Memory a_;
  Memory b_;
  Memory d_;
};

using Candidates = std::vector<cublasLtMatmulHeuristicResult_t>;

// Returns the milliseconds per run of `runs` consecutive runs, or infinity if the candidate cannot run.
double time_burst(const Run& r, const cublasLtMatmulHeuristicResult_t& candidate, int64_t runs, Stream& stream) {
  Event begin(Device::kCuda, true);
  Event end(Device::kCuda, true);
  begin.record(stream);
  for (int64_t i = 0; i < runs; ++i) {
    if (run(r, candidate.algo, candidate.workspaceSize, stream) != CUBLAS_STATUS_SUCCESS) {
      return std::numeric_limits<double>::infinity();
    }
  }
  end.record(stream);
  end.synchronize();
  return end.milliseconds_since(begin) / static_cast<double>(runs);
}

int64_t runs_in(double total_ms, double one_ms) {
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(total_ms / one_ms)));
}

// Whether this stream's GPU has been heated. After an idle time a GPU runs faster than in a training step, and another
// candidate may be the fastest.
struct Heated {
  explicit Heated(Stream&) {}
  bool done = false;
};

// Returns the index of the candidate with the smallest median time. Candidates alternate in bursts, because the GPU's
// clock changes with its temperature. Candidates that are much slower in their first burst are dropped. The library's
// first candidate stays unless another is clearly faster.
size_t fastest_candidate(const Run& r, const Candidates& candidates, Stream& stream) {
  std::vector<double> once(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    time_burst(r, candidates[i], 1, stream);  // loads the kernel
    once[i] = time_burst(r, candidates[i], 1, stream);
  }
  const auto quickest = static_cast<size_t>(std::ranges::min_element(once) - once.begin());
  if (std::isinf(once[quickest])) return 0;
  if (bool& heated = stream.state<Heated>().done; !heated) {
    time_burst(r, candidates[quickest], runs_in(kHeatingMs, once[quickest]), stream);
    heated = true;
  }
  std::vector<size_t> running;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (once[i] <= kNotWorthABurst * once[quickest]) running.push_back(i);
  }
  std::vector<std::vector<double>> times(candidates.size());
  const int64_t runs = runs_in(kBurstMs, once[quickest]);
  for (int round = 0; round < kRounds; ++round) {
    for (const size_t i : running) times[i].push_back(time_burst(r, candidates[i], runs, stream));
    if (round > 0) continue;
    const auto first_time = [&](size_t i) { return times[i].front(); };
    const double fastest = first_time(*std::ranges::min_element(running, {}, first_time));
    std::erase_if(running, [&](size_t i) { return first_time(i) > kOutOfTheRunning * fastest; });
  }
  size_t best = running.front();
  double best_ms = median(times[best]) * (best == 0 ? kClearlyFaster : 1);
  for (const size_t i : running) {
    if (const double ms = median(times[i]); ms < best_ms) {
      best_ms = ms;
      best = i;
    }
  }
  return best;
}

// Returns an algorithm as text. The library documents that its bytes may be stored and used by the same version.
std::string algorithm_text(const cublasLtMatmulAlgo_t& algorithm) {
  return fmt::format("{:016x}", fmt::join(algorithm.data, " "));
}

std::optional<cublasLtMatmulAlgo_t> algorithm_of(const std::string& text) {
  cublasLtMatmulAlgo_t algorithm{};
  std::istringstream words(text);
  for (uint64_t& word : algorithm.data) words >> std::hex >> word;
  if (words.fail()) return std::nullopt;
  return algorithm;
}

// Returns whether an algorithm adds partial sums in float32 or has none.
bool adds_in_float32(const cublasLtMatmulAlgo_t& algorithm) {
  uint32_t scheme = 0;
  check(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof(scheme),
                                             nullptr),
        "asking for a reduction scheme");
  return scheme == CUBLASLT_REDUCTION_SCHEME_NONE || scheme == kSplitKReduction;
}

// Sets the plan's algorithm from its text. Returns false if the library does not run it with these limits, or if it
// does not add in float32.
bool take(MatmulPlan& plan, const std::string& text, const MatmulLimits& limits, cublasLtHandle_t handle) {
  const std::optional<cublasLtMatmulAlgo_t> algorithm = algorithm_of(text);
  if (!algorithm || !adds_in_float32(*algorithm)) return false;
  cublasLtMatmulHeuristicResult_t result{};
  const MatmulLayouts& layouts = plan.layouts;
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle, plan.descriptor.get(), layouts.b.get(), layouts.a.get(),
                                                        layouts.d.get(), layouts.d.get(), &*algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS || std::cmp_greater(result.workspaceSize, limits.workspace_bytes)) return false;
  plan.algorithm = *algorithm;
  plan.workspace_bytes = result.workspaceSize;
  return true;
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

uint32_t common_alignment(const MatmulPointers& pointers) {
  constexpr uintptr_t kLargest = 256;
  const auto bits = reinterpret_cast<uintptr_t>(pointers.d) | reinterpret_cast<uintptr_t>(pointers.a) |
                    reinterpret_cast<uintptr_t>(pointers.b) | kLargest;
  return uint32_t{1} << std::countr_zero(bits);
}

MatmulLayouts::MatmulLayouts(const MatmulShape& s)
    : a(make_operand_layout(s.a_dtype, s.m, s.k, s.transpose_a)),
      b(make_operand_layout(s.b_dtype, s.k, s.n, s.transpose_b)),
      d(make_layout(s.d_dtype, s.m, s.n)) {}

MatmulPlan::MatmulPlan(const MatmulShape& of) : shape(of), descriptor(make_descriptor()), layouts(of) {
  set(CUBLASLT_MATMUL_DESC_TRANSA, of.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, of.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
}

void choose_algorithm(MatmulPlan& plan, const MatmulLimits& limits, const std::string& description, Stream& stream) {
  cublasLtHandle_t handle = stream.state<CublasLtHandle>().handle.get();
  const auto use = [&](const cublasLtMatmulHeuristicResult_t& candidate) {
    plan.algorithm = candidate.algo;
    plan.workspace_bytes = candidate.workspaceSize;
  };
  if (limits.deterministic) {
    return use(find_candidates(handle, plan, limits, description, true).front());
  }
  const std::string problem = fmt::format(
      "{}{}{}; operands at multiples of {} bytes, {} of workspace", description,
      plan.shape.transpose_a || plan.shape.transpose_b
          ? fmt::format(", transposed {}{}", plan.shape.transpose_a ? "a" : "", plan.shape.transpose_b ? "b" : "")
          : "",
      plan.shape.accumulate ? ", added" : "", limits.alignment, limits.workspace_bytes);
  auto& tuned = stream.state<TunedAlgorithms>();
  if (const std::string* known = tuned.find(problem); known != nullptr && take(plan, *known, limits, handle)) return;
  const Candidates candidates = find_candidates(handle, plan, limits, description, false);
  size_t best = 0;
  if (candidates.size() > 1 && tuned.deferring()) {
    tuned.defer([&plan, limits, description, &stream] { choose_algorithm(plan, limits, description, stream); });
    return use(candidates.front());
  }
  if (candidates.size() > 1) {
    const auto scratch = ScratchOperands::allocate(plan.shape, stream);
    if (!scratch) {
      tuned.leave(description);
      return use(candidates.front());
    }
    best = fastest_candidate({handle, plan, scratch->layouts(), scratch->pointers()}, candidates, stream);
  }
  use(candidates[best]);
  tuned.keep(problem, algorithm_text(plan.algorithm));
}

void run_matmul(const MatmulPlan& plan, const MatmulPointers& pointers, Stream& stream) {
  cublasLtHandle_t handle = stream.state<CublasLtHandle>().handle.get();
  check(run({handle, plan, plan.layouts, pointers}, plan.algorithm, plan.workspace_bytes, stream), "cublasLtMatmul");
}

}  // namespace octavo::cuda
