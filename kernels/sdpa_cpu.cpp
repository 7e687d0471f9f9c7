// Attention on the CPU: one task a (sequence, kv head), its heads widened to contiguous float32, blocks of query rows
// whose scores fit in the cache, OpenBLAS for the products (single-threaded inside a task).
#include "kernels/sdpa_cpu.h"

#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu_math.h"

namespace octavo::cpu {

namespace {

constexpr int64_t kBlockRows = 64;

// Scratch of one thread. Heads are [seq_len, head_dim]; scores are [kBlockRows, seq_len].
struct Scratch {
  static constexpr int kHeads = 8;
  static constexpr int kScores = 2;
  static int64_t floats(const SdpaShape& s) {
    return kHeads * s.seq_len * s.head_dim + kScores * kBlockRows * s.seq_len;
  }

  float* head(int i) const { return base + i * seq_len * head_dim; }
  float* scores(int i) const { return head(kHeads) + i * kBlockRows * seq_len; }

  float* base;
  int64_t seq_len;
  int64_t head_dim;
};

enum Head { kQ, kK, kV, kOut, kDOut, kDQ, kDK, kDV };

Scratch thread_scratch(void* workspace, const SdpaShape& s) {
  return {static_cast<float*>(workspace) + omp_get_thread_num() * Scratch::floats(s), s.seq_len, s.head_dim};
}

// One head's columns of packed rows, to contiguous float32 and back.
template <typename T>
void load_head(float* head, const T* rows, int64_t row_width, int64_t column, const SdpaShape& s) {
  for (int64_t i = 0; i < s.seq_len; ++i) {
    const T* row = rows + i * row_width + column;
#pragma omp simd
    for (int64_t c = 0; c < s.head_dim; ++c) head[i * s.head_dim + c] = static_cast<float>(row[c]);
  }
}

template <typename T>
void store_head(T* rows, const float* head, int64_t row_width, int64_t column, const SdpaShape& s) {
  for (int64_t i = 0; i < s.seq_len; ++i) {
    T* row = rows + i * row_width + column;
#pragma omp simd
    for (int64_t c = 0; c < s.head_dim; ++c) row[c] = T(head[i * s.head_dim + c]);
  }
}

struct Product {
  int64_t m, n, k;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  int64_t lda, ldb, ldd;
};

void gemm(const Product& p, float* d, const float* a, const float* b, float alpha = 1.0f) {
  cblas_sgemm(CblasRowMajor, p.transpose_a ? CblasTrans : CblasNoTrans, p.transpose_b ? CblasTrans : CblasNoTrans,
              static_cast<blasint>(p.m), static_cast<blasint>(p.n), static_cast<blasint>(p.k), alpha, a,
              static_cast<blasint>(p.lda), b, static_cast<blasint>(p.ldb), p.accumulate ? 1.0f : 0.0f, d,
              static_cast<blasint>(p.ldd));
}

int64_t first_key(const int32_t* document_start, int64_t i) {
  return document_start == nullptr ? 0 : document_start[i];
}

// p = softmax over the allowed keys of one row of scores, zeros elsewhere up to `keys`; returns the log-sum-exp.
float softmax_row(float* row, int64_t begin, int64_t end, int64_t keys) {
  float max = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : max)
  for (int64_t j = begin; j < end; ++j) max = row[j] > max ? row[j] : max;
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t j = begin; j < end; ++j) {
    row[j] = exp_fast(row[j] - max);
    total += row[j];
  }
  const float inverse = 1.0f / total;
#pragma omp simd
  for (int64_t j = begin; j < end; ++j) row[j] *= inverse;
  std::fill(row, row + begin, 0.0f);
  std::fill(row + end, row + keys, 0.0f);
  return max + std::log(total);
}

// The head of `out` and `lse` of one query head, from kQ, kK, kV into kOut.
void forward_head(const SdpaShape& s, const Scratch& scratch, const int32_t* document_start, float* lse) {
  const int64_t d = s.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  float* scores = scratch.scores(0);
  for (int64_t begin = 0; begin < s.seq_len; begin += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, s.seq_len - begin);
    const int64_t keys = begin + rows;
    gemm({.m = rows, .n = keys, .k = d, .transpose_b = true, .lda = d, .ldb = d, .ldd = keys}, scores,
         scratch.head(kQ) + begin * d, scratch.head(kK), scale);
    for (int64_t i = 0; i < rows; ++i) {
      lse[begin + i] = softmax_row(scores + i * keys, first_key(document_start, begin + i), begin + i + 1, keys);
    }
    gemm({.m = rows, .n = d, .k = keys, .lda = keys, .ldb = d, .ldd = d}, scratch.head(kOut) + begin * d, scores,
         scratch.head(kV));
  }
}

template <typename T>
void forward(const SdpaForward& args, void* workspace) {
  const SdpaShape& s = args.shape;
  const int64_t group = s.num_heads / s.num_kv_heads;
  const int64_t width = s.qkv_width();
#pragma omp parallel for collapse(2)
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t kv = 0; kv < s.num_kv_heads; ++kv) {
      const Scratch scratch = thread_scratch(workspace, s);
      const T* qkv = args.qkv.data<T>() + b * s.seq_len * width;
      const int32_t* start =
          args.document_start.defined() ? args.document_start.data<int32_t>() + b * s.seq_len : nullptr;
      load_head(scratch.head(kK), qkv, width, (s.num_heads + kv) * s.head_dim, s);
      load_head(scratch.head(kV), qkv, width, (s.num_heads + s.num_kv_heads + kv) * s.head_dim, s);
      for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
        load_head(scratch.head(kQ), qkv, width, head * s.head_dim, s);
        forward_head(s, scratch, start, args.lse.data<float>() + (b * s.num_heads + head) * s.seq_len);
        store_head(args.out.data<T>() + b * s.seq_len * s.out_width(), scratch.head(kOut), s.out_width(),
                   head * s.head_dim, s);
      }
    }
  }
}

// p = exp(s - lse) and ds = p * (dp - D) / sqrt(head_dim) of one row, in place of scores and dp.
void backward_row(float* p, float* ds, int64_t begin, int64_t end, int64_t keys, float lse, float delta, float scale) {
#pragma omp simd
  for (int64_t j = begin; j < end; ++j) {
    p[j] = exp_fast(p[j] - lse);
    ds[j] = p[j] * (ds[j] - delta) * scale;
  }
  for (float* row : {p, ds}) {
    std::fill(row, row + begin, 0.0f);
    std::fill(row + end, row + keys, 0.0f);
  }
}

// kDQ = gradient of one query head; kDK and kDV += its share. From kQ, kK, kV, kOut, kDOut.
void backward_head(const SdpaShape& s, const Scratch& scratch, const int32_t* document_start, const float* lse) {
  const int64_t d = s.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  float* p = scratch.scores(0);
  float* ds = scratch.scores(1);
  for (int64_t begin = 0; begin < s.seq_len; begin += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, s.seq_len - begin);
    const int64_t keys = begin + rows;
    const float* q = scratch.head(kQ) + begin * d;
    const float* out = scratch.head(kOut) + begin * d;
    const float* d_out = scratch.head(kDOut) + begin * d;
    const Product scores{.m = rows, .n = keys, .k = d, .transpose_b = true, .lda = d, .ldb = d, .ldd = keys};
    gemm(scores, p, q, scratch.head(kK), scale);
    gemm(scores, ds, d_out, scratch.head(kV));
    for (int64_t i = 0; i < rows; ++i) {
      float delta = 0;
#pragma omp simd reduction(+ : delta)
      for (int64_t c = 0; c < d; ++c) delta += out[i * d + c] * d_out[i * d + c];
      backward_row(p + i * keys, ds + i * keys, first_key(document_start, begin + i), begin + i + 1, keys,
                   lse[begin + i], delta, scale);
    }
    gemm({.m = rows, .n = d, .k = keys, .lda = keys, .ldb = d, .ldd = d}, scratch.head(kDQ) + begin * d, ds,
         scratch.head(kK));
    const Product keys_gradient{
        .m = keys, .n = d, .k = rows, .transpose_a = true, .accumulate = true, .lda = keys, .ldb = d, .ldd = d};
    gemm(keys_gradient, scratch.head(kDK), ds, q);
    gemm(keys_gradient, scratch.head(kDV), p, d_out);
  }
}

template <typename T>
void backward(const SdpaBackward& args, void* workspace) {
  const SdpaShape& s = args.shape;
  const int64_t group = s.num_heads / s.num_kv_heads;
  const int64_t width = s.qkv_width();
#pragma omp parallel for collapse(2)
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t kv = 0; kv < s.num_kv_heads; ++kv) {
      const Scratch scratch = thread_scratch(workspace, s);
      const T* qkv = args.qkv.data<T>() + b * s.seq_len * width;
      T* d_qkv = args.d_qkv.data<T>() + b * s.seq_len * width;
      const int64_t out_offset = b * s.seq_len * s.out_width();
      const int32_t* start =
          args.document_start.defined() ? args.document_start.data<int32_t>() + b * s.seq_len : nullptr;
      const int64_t k_column = (s.num_heads + kv) * s.head_dim;
      const int64_t v_column = (s.num_heads + s.num_kv_heads + kv) * s.head_dim;
      load_head(scratch.head(kK), qkv, width, k_column, s);
      load_head(scratch.head(kV), qkv, width, v_column, s);
      std::fill(scratch.head(kDK), scratch.head(kDK) + 2 * s.seq_len * s.head_dim, 0.0f);  // kDK and kDV
      for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
        load_head(scratch.head(kQ), qkv, width, head * s.head_dim, s);
        load_head(scratch.head(kOut), args.out.data<T>() + out_offset, s.out_width(), head * s.head_dim, s);
        load_head(scratch.head(kDOut), args.d_out.data<T>() + out_offset, s.out_width(), head * s.head_dim, s);
        backward_head(s, scratch, start, args.lse.data<float>() + (b * s.num_heads + head) * s.seq_len);
        store_head(d_qkv, scratch.head(kDQ), width, head * s.head_dim, s);
      }
      store_head(d_qkv, scratch.head(kDK), width, k_column, s);
      store_head(d_qkv, scratch.head(kDV), width, v_column, s);
    }
  }
}

}  // namespace

void sdpa_forward(const SdpaForward& args, Stream& stream) {
  void* workspace = stream.workspace(sdpa_workspace_bytes(args.shape));
  with_compute_dtype(args.qkv.dtype(), [&]<typename T>() { forward<T>(args, workspace); });
}

void sdpa_backward(const SdpaBackward& args, Stream& stream) {
  void* workspace = stream.workspace(sdpa_workspace_bytes(args.shape));
  with_compute_dtype(args.qkv.dtype(), [&]<typename T>() { backward<T>(args, workspace); });
}

int64_t sdpa_workspace_bytes(const SdpaShape& shape) {
  return omp_get_max_threads() * Scratch::floats(shape) * dtype_bytes(DType::kFloat32);
}

}  // namespace octavo::cpu
