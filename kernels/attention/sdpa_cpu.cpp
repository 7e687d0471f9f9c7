// Attention on the CPU: one task a (document, kv head), or sequence where there are no documents, blocks of query rows
// whose scores fit in the cache, kernels/matmul/sgemm.h for the products (single-threaded inside a task). Heads in
// float32 are multiplied where they lie, as columns of the packed rows; others are widened into scratch and back.
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

// One head as float32: [seq_len, head_dim], rows `stride` apart.
struct Head {
  float* row(int64_t i) const { return data + i * stride; }

  float* data = nullptr;
  int64_t stride = 0;
};

// What a task works on; forward has the first four.
struct Heads {
  Head q, k, v, out;
  Head d_out, d_q, d_k, d_v;
};
constexpr int kNumHeads = 8;

// Scratch of one thread: scores of two kinds, [kBlockRows, keys] each, and the heads that are widened. `s` has the keys
// as its seq_len.
class Scratch {
 public:
  static int64_t floats(const SdpaShape& s, DType dtype) {
    const int64_t heads = dtype == DType::kFloat32 ? 0 : kNumHeads * s.seq_len * s.head_dim;
    return 2 * kBlockRows * s.seq_len + heads;
  }

  Scratch(void* workspace, const SdpaShape& s, DType dtype)
      : base_(static_cast<float*>(workspace) + omp_get_thread_num() * floats(s, dtype)), shape_(s) {}

  float* scores(int i) const { return base_ + i * kBlockRows * shape_.seq_len; }
  Head head(int i) const { return {scores(2) + i * shape_.seq_len * shape_.head_dim, shape_.head_dim}; }

 private:
  float* base_;
  SdpaShape shape_;
};

// The heads of one sequence: columns of packed rows.
template <typename T>
struct PackedHeads {
  // Where this head is read or written as float32: in place, or head `i` of the scratch.
  Head place(int64_t column, const Scratch& scratch, int i) const {
    if constexpr (std::is_same_v<T, float>) return {rows + column, width};
    return scratch.head(i);
  }
  Head load(int64_t column, const Scratch& scratch, int i, const SdpaShape& s) const {
    const Head head = place(column, scratch, i);
    if constexpr (std::is_same_v<T, float>) return head;
    for (int64_t r = 0; r < s.seq_len; ++r) {
      const T* row = rows + r * width + column;
#pragma omp simd
      for (int64_t c = 0; c < s.head_dim; ++c) head.row(r)[c] = static_cast<float>(row[c]);
    }
    return head;
  }
  void store(int64_t column, const Head& head, const SdpaShape& s) const {
    if constexpr (std::is_same_v<T, float>) return;
    for (int64_t r = 0; r < s.seq_len; ++r) {
      T* row = rows + r * width + column;
#pragma omp simd
      for (int64_t c = 0; c < s.head_dim; ++c) row[c] = T(head.row(r)[c]);
    }
  }

  T* rows;
  int64_t width;
};

void zero(const Head& head, const SdpaShape& s) {
  for (int64_t r = 0; r < s.seq_len; ++r) std::fill_n(head.row(r), s.head_dim, 0.0f);
}

// What attends to itself alone: documents, or sequences without them.
struct Spans {
  Spans(const SdpaShape& s, const Documents& d) : shape(s), documents(d) {}

  int64_t size() const { return documents.empty() ? shape.batch : documents.size(); }
  Document at(int64_t i) const {
    const auto seq_len = static_cast<int32_t>(shape.seq_len);
    return documents.empty() ? Document{static_cast<int32_t>(i) * seq_len, seq_len}
                             : documents.list[static_cast<size_t>(i)];
  }
  // The shape of one of them, and where the numbers of its tokens lie in lse.
  SdpaShape shape_of(const Document& span) const {
    SdpaShape one = shape;
    one.batch = 1;
    one.seq_len = span.length;
    return one;
  }
  float* lse(const Tensor& lse, const Document& span, int64_t head) const {
    const int64_t row = span.begin / shape.seq_len * shape.num_heads + head;
    return lse.data<float>() + row * shape.seq_len + span.begin % shape.seq_len;
  }

  const SdpaShape& shape;
  const Documents& documents;
};

// p = softmax over the first `end` keys of one row of scores, zeros behind up to `keys`; returns the log-sum-exp.
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

// The head of `out` and `lse` of one query head, whose first query sees `before` keys and its own.
void forward_head(const SdpaShape& s, int64_t before, const Heads& h, const Scratch& scratch, float* lse) {
  const int64_t d = s.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  float* p = scratch.scores(0);
  for (int64_t begin = 0; begin < s.seq_len; begin += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, s.seq_len - begin);
    const int64_t keys = before + begin + rows;
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
      lse[begin + i] = softmax_row(p + i * keys, before + begin + i + 1, keys);
    }
    sgemm({.m = rows, .n = d, .k = keys, .lda = keys, .ldb = h.v.stride, .ldd = h.out.stride}, h.out.row(begin), p,
          h.v.data);
  }
}

// body(span, s, kv, scratch) for each span, of the shape s, and each key/value head, on all threads.
template <typename Body>
void for_each_kv_head(const Spans& spans, DType dtype, void* workspace, const Body& body) {
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int64_t i = 0; i < spans.size(); ++i) {
    for (int64_t kv = 0; kv < spans.shape.num_kv_heads; ++kv) {
      const Scratch scratch(workspace, spans.shape, dtype);
      const Document span = spans.at(i);
      body(span, spans.shape_of(span), kv, scratch);
    }
  }
}

template <typename T>
void forward(const SdpaForward& args, void* workspace) {
  const Spans spans(args.shape, args.documents);
  const int64_t d = args.shape.head_dim;
  const int64_t group = args.shape.num_heads / args.shape.num_kv_heads;
  const auto kv_head = [&](const Document& span, const SdpaShape& s, int64_t kv, const Scratch& scratch) {
    const PackedHeads<T> qkv{args.qkv.data<T>() + span.begin * s.qkv_width(), s.qkv_width()};
    const PackedHeads<T> out{args.out.data<T>() + span.begin * s.out_width(), s.out_width()};
    Heads h;
    h.k = qkv.load((s.num_heads + kv) * d, scratch, 0, s);
    h.v = qkv.load((s.num_heads + s.num_kv_heads + kv) * d, scratch, 1, s);
    for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
      h.q = qkv.load(head * d, scratch, 2, s);
      h.out = out.place(head * d, scratch, 3);
      forward_head(s, 0, h, scratch, spans.lse(args.lse, span, head));
      out.store(head * d, h.out, s);
    }
  };
  for_each_kv_head(spans, args.qkv.dtype(), workspace, kv_head);
}

// p = exp(s - lse) and ds = p * (dp - D) / sqrt(head_dim) of one row, in place of scores and dp.
void backward_row(float* p, float* ds, int64_t end, int64_t keys, float lse, float delta, float scale) {
#pragma omp simd
  for (int64_t j = 0; j < end; ++j) {
    p[j] = exp_fast(p[j] - lse);
    ds[j] = p[j] * (ds[j] - delta) * scale;
  }
  for (float* row : {p, ds}) std::fill(row + end, row + keys, 0.0f);
}

// d_q = the gradient of one query head; d_k and d_v += its share.
void backward_head(const SdpaShape& s, int64_t before, const Heads& h, const Scratch& scratch, const float* lse) {
  const int64_t d = s.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  float* p = scratch.scores(0);
  float* ds = scratch.scores(1);
  for (int64_t begin = 0; begin < s.seq_len; begin += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, s.seq_len - begin);
    const int64_t keys = before + begin + rows;
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
      backward_row(p + i * keys, ds + i * keys, before + begin + i + 1, keys, lse[begin + i], delta, scale);
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
  const Spans spans(args.shape, args.documents);
  const int64_t d = args.shape.head_dim;
  const int64_t group = args.shape.num_heads / args.shape.num_kv_heads;
  const auto kv_head = [&](const Document& span, const SdpaShape& s, int64_t kv, const Scratch& scratch) {
    const PackedHeads<T> qkv{args.qkv.data<T>() + span.begin * s.qkv_width(), s.qkv_width()};
    const PackedHeads<T> d_qkv{args.d_qkv.data<T>() + span.begin * s.qkv_width(), s.qkv_width()};
    const PackedHeads<T> out{args.out.data<T>() + span.begin * s.out_width(), s.out_width()};
    const PackedHeads<T> d_out{args.d_out.data<T>() + span.begin * s.out_width(), s.out_width()};
    const int64_t k_column = (s.num_heads + kv) * d;
    const int64_t v_column = (s.num_heads + s.num_kv_heads + kv) * d;
    Heads h;
    h.k = qkv.load(k_column, scratch, 0, s);
    h.v = qkv.load(v_column, scratch, 1, s);
    h.d_k = d_qkv.place(k_column, scratch, 2);
    h.d_v = d_qkv.place(v_column, scratch, 3);
    zero(h.d_k, s);
    zero(h.d_v, s);
    for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
      h.q = qkv.load(head * d, scratch, 4, s);
      h.out = out.load(head * d, scratch, 5, s);
      h.d_out = d_out.load(head * d, scratch, 6, s);
      h.d_q = d_qkv.place(head * d, scratch, 7);
      backward_head(s, 0, h, scratch, spans.lse(args.lse, span, head));
      d_qkv.store(head * d, h.d_q, s);
    }
    d_qkv.store(k_column, h.d_k, s);
    d_qkv.store(v_column, h.d_v, s);
  };
  for_each_kv_head(spans, args.qkv.dtype(), workspace, kv_head);
}

// The queries of a rank that shares its sequences, and all their keys.
struct Shared {
  Shared(const ContextSdpaShape& s, const Documents& d) : shape(s), documents(d) {}

  // Its runs of sequence b that attend to keys of their own: documents, or pieces without them.
  template <typename Body>
  void for_each_run(int64_t b, const Body& body) const {
    const int64_t seq_len = shape.queries.seq_len;
    for (const Document& document : documents.list) {
      if (document.begin / seq_len == b) body(document);
    }
    for (int64_t i = 0; documents.empty() && i < shape.context.pieces(); ++i) {
      const int64_t length = shape.piece_length();
      const int64_t begin = i * length;
      body(Document{.begin = static_cast<int32_t>(b * seq_len + begin),
                    .length = static_cast<int32_t>(length),
                    .before = static_cast<int32_t>(shape.context.position(begin, shape.whole_seq_len()))});
    }
  }
  // The position in its sequence of the first key of a run.
  int64_t first_key(const Document& run) const { return shape.first_key(run) % shape.whole_seq_len(); }
  SdpaShape shape_of(const Document& run) const {
    SdpaShape one = shape.queries;
    one.batch = 1;
    one.seq_len = run.length;
    return one;
  }
  // All keys of a sequence.
  SdpaShape whole() const {
    SdpaShape one = shape.queries;
    one.batch = 1;
    one.seq_len = shape.whole_seq_len();
    return one;
  }
  float* lse(const Tensor& lse, const Document& run, int64_t head) const {
    return lse.data<float>() + shape.first_lse(run, head);
  }

  const ContextSdpaShape& shape;
  const Documents& documents;
};

Head rows_from(const Head& head, int64_t row) { return {head.row(row), head.stride}; }

template <typename T>
PackedHeads<T> rows_of(const Tensor& tensor, int64_t row) {
  return {tensor.data<T>() + row * tensor.dim(1), tensor.dim(1)};
}

// body(b, kv, scratch) for each sequence and key/value head, on all threads: its runs add to the same keys' gradients.
template <typename Body>
void for_each_sequence(const Shared& shared, DType dtype, void* workspace, const Body& body) {
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int64_t b = 0; b < shared.shape.queries.batch; ++b) {
    for (int64_t kv = 0; kv < shared.shape.queries.num_kv_heads; ++kv) {
      body(b, kv, Scratch(workspace, shared.whole(), dtype));
    }
  }
}

template <typename T>
void context_forward(const ContextSdpaForward& args, void* workspace) {
  const Shared shared(args.shape, args.documents);
  const SdpaShape& q = args.shape.queries;
  const int64_t d = q.head_dim;
  const int64_t group = q.num_heads / q.num_kv_heads;
  for_each_sequence(shared, args.qkv.dtype(), workspace, [&](int64_t b, int64_t kv, const Scratch& scratch) {
    const PackedHeads<T> keys = rows_of<T>(args.kv, b * shared.shape.whole_seq_len());
    const Head k = keys.load(kv * d, scratch, 0, shared.whole());
    const Head v = keys.load((q.num_kv_heads + kv) * d, scratch, 1, shared.whole());
    shared.for_each_run(b, [&](const Document& run) {
      const SdpaShape s = shared.shape_of(run);
      Heads h;
      h.k = rows_from(k, shared.first_key(run));
      h.v = rows_from(v, shared.first_key(run));
      for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
        h.q = rows_of<T>(args.qkv, run.begin).load(head * d, scratch, 2, s);
        h.out = rows_of<T>(args.out, run.begin).place(head * d, scratch, 3);
        forward_head(s, run.before, h, scratch, shared.lse(args.lse, run, head));
        rows_of<T>(args.out, run.begin).store(head * d, h.out, s);
      }
    });
  });
}

template <typename T>
void context_backward(const ContextSdpaBackward& args, void* workspace) {
  const Shared shared(args.shape, args.documents);
  const SdpaShape& q = args.shape.queries;
  const SdpaShape whole = shared.whole();
  const int64_t d = q.head_dim;
  const int64_t group = q.num_heads / q.num_kv_heads;
  for_each_sequence(shared, args.qkv.dtype(), workspace, [&](int64_t b, int64_t kv, const Scratch& scratch) {
    const int64_t k_column = kv * d;
    const int64_t v_column = (q.num_kv_heads + kv) * d;
    const PackedHeads<T> keys = rows_of<T>(args.kv, b * whole.seq_len);
    const PackedHeads<T> d_keys = rows_of<T>(args.d_kv, b * whole.seq_len);
    const Head k = keys.load(k_column, scratch, 0, whole);
    const Head v = keys.load(v_column, scratch, 1, whole);
    const Head d_k = d_keys.place(k_column, scratch, 2);
    const Head d_v = d_keys.place(v_column, scratch, 3);
    zero(d_k, whole);
    zero(d_v, whole);
    shared.for_each_run(b, [&](const Document& run) {
      const SdpaShape s = shared.shape_of(run);
      const int64_t first = shared.first_key(run);
      Heads h;
      h.k = rows_from(k, first);
      h.v = rows_from(v, first);
      h.d_k = rows_from(d_k, first);
      h.d_v = rows_from(d_v, first);
      for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
        h.q = rows_of<T>(args.qkv, run.begin).load(head * d, scratch, 4, s);
        h.out = rows_of<T>(args.out, run.begin).load(head * d, scratch, 5, s);
        h.d_out = rows_of<T>(args.d_out, run.begin).load(head * d, scratch, 6, s);
        h.d_q = rows_of<T>(args.d_qkv, run.begin).place(head * d, scratch, 7);
        backward_head(s, run.before, h, scratch, shared.lse(args.lse, run, head));
        rows_of<T>(args.d_qkv, run.begin).store(head * d, h.d_q, s);
      }
    });
    d_keys.store(k_column, d_k, whole);
    d_keys.store(v_column, d_v, whole);
  });
}

}  // namespace

void context_sdpa_forward(const ContextSdpaForward& args, Stream& stream) {
  void* workspace = stream.workspace(context_sdpa_workspace_bytes(args.shape, args.qkv.dtype()));
  with_compute_dtype(args.qkv.dtype(), [&]<typename T>() { context_forward<T>(args, workspace); });
}

void context_sdpa_backward(const ContextSdpaBackward& args, Stream& stream) {
  void* workspace = stream.workspace(context_sdpa_workspace_bytes(args.shape, args.qkv.dtype()));
  with_compute_dtype(args.qkv.dtype(), [&]<typename T>() { context_backward<T>(args, workspace); });
}

int64_t context_sdpa_workspace_bytes(const ContextSdpaShape& shape, DType dtype) {
  SdpaShape whole = shape.queries;
  whole.seq_len = shape.whole_seq_len();
  return sdpa_workspace_bytes(whole, dtype);
}

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
