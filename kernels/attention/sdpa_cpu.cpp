// Attention on the CPU. All threads process tasks (Tasks), in blocks of query rows whose scores fit into the cache.
// Matrix multiplications use kernels/matmul/sgemm.h with one thread per task. Float32 heads are multiplied in place, as
// columns of the packed rows. Bfloat16 heads are converted to float32 in scratch, and results are converted back.
#include "kernels/attention/sdpa_cpu.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/math/cpu_math.h"
#include "kernels/matmul/sgemm.h"

namespace octavo::cpu {

namespace {

constexpr int64_t kBlockRows = 64;

// One head in float32: [seq_len, head_dim], with rows `stride` elements apart.
struct Head {
  float* row(int64_t i) const { return data + i * stride; }

  float* data = nullptr;
  int64_t stride = 0;
};

// Heads that a task processes. Forward uses the first four.
struct Heads {
  Head q, k, v, out;
  Head d_out, d_q, d_k, d_v;
};
constexpr int kNumHeads = 8;

// Scratch of one thread: two score buffers of [kBlockRows, keys] each, and the heads converted to float32.
class Scratch {
 public:
  static int64_t floats(const SdpaShape& s, DType dtype) {
    const int64_t heads = dtype == DType::kFloat32 ? 0 : kNumHeads * s.whole_seq_len() * s.head_dim;
    return 2 * kBlockRows * s.whole_seq_len() + heads;
  }

  Scratch(void* workspace, const SdpaShape& s, DType dtype)
      : base_(static_cast<float*>(workspace) + omp_get_thread_num() * floats(s, dtype)),
        keys_(s.whole_seq_len()),
        head_dim_(s.head_dim) {}

  float* scores(int i) const { return base_ + i * kBlockRows * keys_; }
  Head head(int i) const { return {scores(2) + i * keys_ * head_dim_, head_dim_}; }

 private:
  float* base_;
  int64_t keys_, head_dim_;
};

// Rows of a tensor from row `row` on. Each row consists of heads.
template <typename T>
struct HeadRows {
  HeadRows(const Tensor& tensor, int64_t row) : rows(tensor.data<T>() + row * tensor.dim(1)), width(tensor.dim(1)) {}

  // Returns the float32 memory of the head that begins at this column. Float32 rows are used in place, and other rows
  // need head `i` of the scratch.
  Head place(int64_t column, const Scratch& scratch, int i) const {
    if constexpr (std::is_same_v<T, float>) return {rows + column, width};
    return scratch.head(i);
  }
  Head load(int64_t column, const Scratch& scratch, int i, int64_t count, int64_t head_dim) const {
    const Head head = place(column, scratch, i);
    if constexpr (std::is_same_v<T, float>) return head;
    for (int64_t r = 0; r < count; ++r) {
      const T* row = rows + r * width + column;
#pragma omp simd
      for (int64_t c = 0; c < head_dim; ++c) head.row(r)[c] = static_cast<float>(row[c]);
    }
    return head;
  }
  void store(int64_t column, const Head& head, int64_t count, int64_t head_dim) const {
    if constexpr (std::is_same_v<T, float>) return;
    for (int64_t r = 0; r < count; ++r) {
      T* row = rows + r * width + column;
#pragma omp simd
      for (int64_t c = 0; c < head_dim; ++c) row[c] = T(head.row(r)[c]);
    }
  }

  T* rows;
  int64_t width;
};

void zero(const Head& head, int64_t count, int64_t head_dim) {
  for (int64_t r = 0; r < count; ++r) std::fill_n(head.row(r), head_dim, 0.0f);
}

Head rows_from(const Head& head, int64_t row) { return {head.row(row), head.stride}; }

// Divides the runs of queries into tasks that threads can compute independently, because no two tasks have a key in
// common. A document of a whole sequence is a task. The two chunks of a shared sequence add to the gradients of the
// same keys, so all runs of such a sequence are one task.
class Tasks {
 public:
  // Rows [first, first + count) of the keys and values.
  struct Keys {
    int64_t first, count;
  };

  Tasks(const SdpaShape& shape, const Documents& documents) : shape_(shape), documents_(documents) {}

  int64_t size() const { return by_document() ? documents_.size() : shape_.batch; }
  Keys keys(int64_t task) const {
    if (!by_document()) return {task * shape_.whole_seq_len(), shape_.whole_seq_len()};
    const Document& document = documents_.list[static_cast<size_t>(task)];
    return {document.begin, document.length};
  }
  // Calls body(run) for each run of the task. The runs are documents, or chunks if there are no documents.
  template <typename Body>
  void for_each_run(int64_t task, const Body& body) const {
    if (by_document()) return body(documents_.list[static_cast<size_t>(task)]);
    for (const Document& document : documents_.list) {
      if (document.begin / shape_.seq_len == task) body(document);
    }
    const int64_t length = shape_.chunk_length();
    for (int64_t i = 0; documents_.empty() && i < shape_.context.chunks(); ++i) {
      body(Document{.begin = static_cast<int32_t>(task * shape_.seq_len + i * length),
                    .length = static_cast<int32_t>(length),
                    .before = static_cast<int32_t>(shape_.context.chunk(i) * length)});
    }
  }

 private:
  bool by_document() const { return shape_.context.size == 1 && !documents_.empty(); }

  const SdpaShape& shape_;
  const Documents& documents_;
};

// Calls body(task, kv, scratch) for each task and key/value head, on all threads.
template <typename Body>
void for_each_kv_head(const Tasks& tasks, const SdpaShape& shape, DType dtype, void* workspace, const Body& body) {
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int64_t task = 0; task < tasks.size(); ++task) {
    for (int64_t kv = 0; kv < shape.num_kv_heads; ++kv) {
      body(task, kv, Scratch(workspace, shape, dtype));
    }
  }
}

// Replaces the first `end` scores of a row with their softmax and the rest, up to `keys`, with zeros. Returns the
// log-sum-exp.
float softmax_row(float* row, int64_t end, int64_t keys) {
  float max = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : max)
  for (int64_t j = 0; j < end; ++j) max = row[j] > max ? row[j] : max;
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < end; ++j) {
    row[j] = exp_fast(row[j] - max);
    total += row[j];
  }
  const float inverse = 1.0f / total;
#pragma omp simd
  for (int64_t j = 0; j < end; ++j) row[j] *= inverse;
  std::fill(row + end, row + keys, 0.0f);
  return max + std::log(total);
}

// Computes the rows of `out` and `lse` for one query head of a run.
void forward_head(const Document& run, int64_t d, const Heads& h, const Scratch& scratch, float* lse) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  float* p = scratch.scores(0);
  for (int64_t begin = 0; begin < run.length; begin += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, run.length - begin);
    const int64_t keys = run.before + begin + rows;
    sgemm({.m = rows,
           .n = keys,
           .k = d,
           .transpose_b = true,
           .lda = h.q.stride,
           .ldb = h.k.stride,
           .ldd = keys,
           .alpha = scale},
          p, h.q.row(begin), h.k.data);
    for (int64_t i = 0; i < rows; ++i) {
      lse[begin + i] = softmax_row(p + i * keys, run.before + begin + i + 1, keys);
    }
    sgemm({.m = rows, .n = d, .k = keys, .lda = keys, .ldb = h.v.stride, .ldd = h.out.stride}, h.out.row(begin), p,
          h.v.data);
  }
}

template <typename T>
void forward(const SdpaForward& args, void* workspace) {
  const SdpaShape& s = args.shape;
  const Tasks tasks(s, args.documents);
  const KeyRows keys(s, args.qkv, args.kv);
  const int64_t d = s.head_dim;
  const int64_t group = s.num_heads / s.num_kv_heads;
  for_each_kv_head(tasks, s, args.qkv.dtype(), workspace, [&](int64_t task, int64_t kv, const Scratch& scratch) {
    const Tasks::Keys of = tasks.keys(task);
    const HeadRows<T> key_rows(keys.rows, of.first);
    const Head k = key_rows.load(keys.k_column + kv * d, scratch, 0, of.count, d);
    const Head v = key_rows.load(keys.v_column + kv * d, scratch, 1, of.count, d);
    tasks.for_each_run(task, [&](const Document& run) {
      const HeadRows<T> qkv(args.qkv, run.begin);
      const HeadRows<T> out(args.out, run.begin);
      Heads h;
      h.k = rows_from(k, s.first_key(run) - of.first);
      h.v = rows_from(v, s.first_key(run) - of.first);
      for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
        h.q = qkv.load(head * d, scratch, 2, run.length, d);
        h.out = out.place(head * d, scratch, 3);
        forward_head(run, d, h, scratch, args.lse.data<float>() + s.first_lse(run, head));
        out.store(head * d, h.out, run.length, d);
      }
    });
  });
}

// Computes p = exp(s - lse) and ds = p * (dp - D) / sqrt(head_dim) for one row, in place of the scores and dp.
void backward_row(float* p, float* ds, int64_t end, int64_t keys, float lse, float delta, float scale) {
#pragma omp simd
  for (int64_t j = 0; j < end; ++j) {
    p[j] = exp_fast(p[j] - lse);
    ds[j] = p[j] * (ds[j] - delta) * scale;
  }
  for (float* row : {p, ds}) std::fill(row + end, row + keys, 0.0f);
}

// Computes d_q of one query head of a run and adds its terms to d_k and d_v.
void backward_head(const Document& run, int64_t d, const Heads& h, const Scratch& scratch, const float* lse) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  float* p = scratch.scores(0);
  float* ds = scratch.scores(1);
  for (int64_t begin = 0; begin < run.length; begin += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, run.length - begin);
    const int64_t keys = run.before + begin + rows;
    const Sgemm scores{.m = rows, .n = keys, .k = d, .transpose_b = true, .lda = 0, .ldb = 0, .ldd = keys};
    Sgemm of_k = scores;
    of_k.lda = h.q.stride;
    of_k.ldb = h.k.stride;
    of_k.alpha = scale;
    sgemm(of_k, p, h.q.row(begin), h.k.data);
    Sgemm of_v = scores;
    of_v.lda = h.d_out.stride;
    of_v.ldb = h.v.stride;
    sgemm(of_v, ds, h.d_out.row(begin), h.v.data);
    for (int64_t i = 0; i < rows; ++i) {
      const float* out = h.out.row(begin + i);
      const float* d_out = h.d_out.row(begin + i);
      float delta = 0;
#pragma omp simd reduction(+ : delta)
      for (int64_t c = 0; c < d; ++c) delta += out[c] * d_out[c];
      backward_row(p + i * keys, ds + i * keys, run.before + begin + i + 1, keys, lse[begin + i], delta, scale);
    }
    sgemm({.m = rows, .n = d, .k = keys, .lda = keys, .ldb = h.k.stride, .ldd = h.d_q.stride}, h.d_q.row(begin), ds,
          h.k.data);
    Sgemm over_rows{
        .m = keys, .n = d, .k = rows, .transpose_a = true, .accumulate = true, .lda = keys, .ldb = 0, .ldd = 0};
    over_rows.ldb = h.q.stride;
    over_rows.ldd = h.d_k.stride;
    sgemm(over_rows, h.d_k.data, ds, h.q.row(begin));
    over_rows.ldb = h.d_out.stride;
    over_rows.ldd = h.d_v.stride;
    sgemm(over_rows, h.d_v.data, p, h.d_out.row(begin));
  }
}

template <typename T>
void backward(const SdpaBackward& args, void* workspace) {
  const SdpaShape& s = args.shape;
  const Tasks tasks(s, args.documents);
  const KeyRows keys(s, args.qkv, args.kv);
  const KeyRows d_keys(s, args.d_qkv, args.d_kv);
  const int64_t d = s.head_dim;
  const int64_t group = s.num_heads / s.num_kv_heads;
  for_each_kv_head(tasks, s, args.qkv.dtype(), workspace, [&](int64_t task, int64_t kv, const Scratch& scratch) {
    const int64_t k_column = keys.k_column + kv * d;
    const int64_t v_column = keys.v_column + kv * d;
    const Tasks::Keys of = tasks.keys(task);
    const HeadRows<T> key_rows(keys.rows, of.first);
    const HeadRows<T> d_key_rows(d_keys.rows, of.first);
    const Head k = key_rows.load(k_column, scratch, 0, of.count, d);
    const Head v = key_rows.load(v_column, scratch, 1, of.count, d);
    const Head d_k = d_key_rows.place(k_column, scratch, 2);
    const Head d_v = d_key_rows.place(v_column, scratch, 3);
    zero(d_k, of.count, d);
    zero(d_v, of.count, d);
    tasks.for_each_run(task, [&](const Document& run) {
      const HeadRows<T> qkv(args.qkv, run.begin);
      const HeadRows<T> out(args.out, run.begin);
      const HeadRows<T> d_out(args.d_out, run.begin);
      const HeadRows<T> d_qkv(args.d_qkv, run.begin);
      const int64_t first_key = s.first_key(run) - of.first;
      Heads h;
      h.k = rows_from(k, first_key);
      h.v = rows_from(v, first_key);
      h.d_k = rows_from(d_k, first_key);
      h.d_v = rows_from(d_v, first_key);
      for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
        h.q = qkv.load(head * d, scratch, 4, run.length, d);
        h.out = out.load(head * d, scratch, 5, run.length, d);
        h.d_out = d_out.load(head * d, scratch, 6, run.length, d);
        h.d_q = d_qkv.place(head * d, scratch, 7);
        backward_head(run, d, h, scratch, args.lse.data<float>() + s.first_lse(run, head));
        d_qkv.store(head * d, h.d_q, run.length, d);
      }
    });
    d_key_rows.store(k_column, d_k, of.count, d);
    d_key_rows.store(v_column, d_v, of.count, d);
  });
}

}  // namespace

void sdpa_forward(const SdpaForward& args, Stream& stream) {
  void* workspace = stream.workspace(sdpa_workspace_bytes(args.shape, args.qkv.dtype()));
  with_compute_dtype(args.qkv.dtype(), [&]<typename T>() { forward<T>(args, workspace); });
}

void sdpa_backward(const SdpaBackward& args, Stream& stream) {
  void* workspace = stream.workspace(sdpa_workspace_bytes(args.shape, args.qkv.dtype()));
  with_compute_dtype(args.qkv.dtype(), [&]<typename T>() { backward<T>(args, workspace); });
}

int64_t sdpa_workspace_bytes(const SdpaShape& shape, DType dtype) {
  return omp_get_max_threads() * Scratch::floats(shape, dtype) * dtype_bytes(DType::kFloat32);
}

}  // namespace octavo::cpu
