#include "kernels/layers/embedding.h"

#include "core/error.h"
#include "core/profiler.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/layers/layers_cuda.h"
#include "kernels/math/cpu_math.h"

namespace octavo {

namespace cpu {

void embedding_forward(const EmbeddingForward& args) {
  const int64_t tokens = args.ids.numel();
  const int64_t row_bytes = args.out.dim(1) * dtype_bytes(args.out.dtype());
  const int32_t* ids = args.ids.data<int32_t>();
  const char* table = static_cast<const char*>(args.table.raw());
  char* out = static_cast<char*>(args.out.raw());
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t row = ids[t] - args.vocab_begin;
    if (row >= 0 && row < args.table.dim(0)) {
      std::copy_n(table + row * row_bytes, row_bytes, out + t * row_bytes);
    } else {
      std::fill_n(out + t * row_bytes, row_bytes, '\0');
    }
  }
}

// Each thread has some of the columns, so every sum runs over the tokens in `order` for any number of threads.
template <typename T>
void embedding_backward(const EmbeddingBackward& args) {
  const int64_t tokens = args.ids.numel();
  const int64_t hidden = args.d_table.dim(1);
  const int32_t* ids = args.ids.data<int32_t>();
  const int32_t* order = args.order.data<int32_t>();
  const T* d_out = args.d_out.data<T>();
  float* d_table = args.d_table.data<float>();
  constexpr int64_t kColumns = 64;
#pragma omp parallel for
  for (int64_t begin = 0; begin < hidden; begin += kColumns) {
    const int64_t end = std::min(begin + kColumns, hidden);
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t t = order[i];
      const int64_t row = ids[t] - args.vocab_begin;
      if (row < 0 || row >= args.d_table.dim(0)) continue;
      float* sum = d_table + row * hidden;
      const T* d_row = d_out + t * hidden;
#pragma omp simd
      for (int64_t c = begin; c < end; ++c) sum[c] += static_cast<float>(d_row[c]);
    }
  }
}

}  // namespace cpu

void embedding_forward(const EmbeddingForward& args, Stream& stream) {
  const int64_t tokens = args.ids.numel();
  const int64_t hidden = args.table.dim(1);
  expect_tensor(args.ids, "embedding_forward ids", DType::kInt32, {tokens});
  expect_tensor(args.out, "embedding_forward out", args.table.dtype(), {tokens, hidden});
  const OpTimer timer(stream, args.share < 1 ? "embedding_part_forward" : "embedding_forward",
                      (1.0 + args.share) * static_cast<double>(args.out.bytes()));
  if (ran_elsewhere<cuda::embedding_forward>(args, stream)) return;
  cpu::embedding_forward(args);
}

void embedding_backward(const EmbeddingBackward& args, Stream& stream) {
  const int64_t tokens = args.ids.numel();
  const int64_t hidden = args.d_table.dim(1);
  expect_tensor(args.ids, "embedding_backward ids", DType::kInt32, {tokens});
  expect_tensor(args.order, "embedding_backward order", DType::kInt32, {tokens});
  expect_tensor(args.d_table, "embedding_backward d_table", DType::kFloat32, {args.d_table.dim(0), hidden});
  expect_tensor(args.d_out, "embedding_backward d_out", args.d_out.dtype(), {tokens, hidden});
  const OpTimer timer(stream, args.share < 1 ? "embedding_part_backward" : "embedding_backward",
                      3.0 * args.share * static_cast<double>(args.d_out.bytes()));
  if (ran_elsewhere<cuda::embedding_backward>(args, stream)) return;
  cpu::with_compute_dtype(args.d_out.dtype(), [&]<typename T>() { cpu::embedding_backward<T>(args); });
}

}  // namespace octavo
