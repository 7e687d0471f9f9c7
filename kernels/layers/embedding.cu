#include "kernels/cuda/launch.cuh"
#include "kernels/layers/embedding.h"

namespace octavo::cuda {

namespace {

// Rows of an embedding table, which belong to the ids [first, first + count). Any other id has row -1.
struct TableRows {
  int32_t first;
  int32_t count;
  __device__ int32_t of(int32_t id) const {
    const int32_t row = id - first;
    return row >= 0 && row < count ? row : -1;
  }
};

TableRows table_rows(int64_t vocab_begin, const Tensor& table) {
  return {static_cast<int32_t>(vocab_begin), static_cast<int32_t>(table.dim(0))};
}

// In forward a thread copies one 16-byte column of kRows tokens, with all loads in flight at once.
constexpr int kThreads = 256;
constexpr int kRows = 4;

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) embedding_forward_kernel(T* out, const int32_t* ids, const T* table,
                                                                     TableRows rows, int64_t tokens, int64_t hidden) {
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kRows;
  if (column >= hidden) return;
  Vec<T, N> values[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int32_t row = token + r < tokens ? rows.of(ids[token + r]) : -1;
    values[r] = row >= 0 ? Vec<T, N>::load(table + row * hidden + column) : Vec<T, N>{};
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (token + r < tokens) values[r].store(out + (token + r) * hidden + column);
  }
}

// In backward the tokens are sorted by id, and the tokens of one id form a run. Ids without a row in the table are
// skipped. A block owns the runs that start at its kPositions sorted positions, for kLanes * N columns, and no other
// block writes these elements of the table. A short run is summed by one group of kLanes threads. A long run is divided
// over all groups of the block, whose sums are added in the order of the groups. (With a vocabulary of bytes an id has
// thousands of tokens.) The order of additions is fixed in both cases.
constexpr int kLanes = 8;
constexpr int kPositions = 32;
constexpr int kGroups = kPositions;  // one group per position
constexpr int kShortRun = 16;
constexpr int kShortUnroll = 4;
constexpr int kLongUnroll = 8;

template <typename T>
struct BackwardArguments {
  float* d_table;
  const T* d_out;
  const int32_t* ids;
  const int32_t* order;
  TableRows rows;
  int64_t tokens;
  int64_t hidden;
};

template <int N>
__device__ void add_to_row(float* row, const float (&sum)[N]) {
  float values[N];
  load_floats(row, values);
#pragma unroll
  for (int j = 0; j < N; ++j) values[j] += sum[j];
  store_floats(row, values);
}

// Adds the rows d_out[token_at(k)] to `sum` for k = 0, step, 2 step, ... in this order, until token_at(k) is -1.
template <int kUnroll, int N, typename T, typename TokenAt>
__device__ void sum_rows(float (&sum)[N], const T* d_out, int64_t hidden, int64_t step, TokenAt token_at) {
  for (int64_t k = 0;; k += kUnroll * step) {
    int32_t token[kUnroll];
    Vec<T, N> values[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) token[u] = token_at(k + u * step);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (token[u] >= 0) values[u] = Vec<T, N>::load(d_out + token[u] * hidden);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (token[u] < 0) return;
      float x[N];
      values[u].widen(x);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += x[j];
    }
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(kLanes* kGroups) embedding_backward_kernel(const BackwardArguments<T> args) {
  constexpr int kWindow = kPositions + kShortRun;  // positions that tell which runs start here and which are long
  __shared__ int32_t window_token[kWindow];
  __shared__ int32_t window_row[kWindow + 1];  // rows of the table; [0] is that of the position before the window
  __shared__ unsigned long_runs;
  __shared__ float group_sum[kGroups][kLanes * N];

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kLanes;
  const int group = thread / kLanes;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kPositions;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kLanes + lane) * N;
  const bool active = column < args.hidden;

  if (thread == 0) long_runs = 0;
  if (thread <= kWindow) {
    const int64_t position = begin + thread - 1;
    const bool inside = position >= 0 && position < args.tokens;
    const int32_t token = inside ? args.order[position] : -1;
    window_row[thread] = inside ? args.rows.of(args.ids[token]) : -1;
    if (thread > 0) window_token[thread - 1] = token;
  }
  __syncthreads();

  const int32_t row = window_row[group + 1];
  const bool starts = row >= 0 && row != window_row[group];
  if (starts && window_row[group + 1 + kShortRun] == row) {
    if (lane == 0) atomicOr(&long_runs, 1u << group);
  } else if (starts && active) {
    float sum[N] = {};
    sum_rows<kShortUnroll>(sum, args.d_out + column, args.hidden, 1, [&](int64_t k) {
      const int i = group + static_cast<int>(k);
      return i < kWindow && window_row[i + 1] == row ? window_token[i] : -1;
    });
    add_to_row(args.d_table + row * args.hidden + column, sum);
  }
  __syncthreads();

  for (unsigned left = long_runs; left != 0; left &= left - 1) {
    const int start = __ffs(static_cast<int>(left)) - 1;
    const int32_t run_row = window_row[start + 1];
    float sum[N] = {};
    if (active) {
      const int64_t first = begin + start + group;
      sum_rows<kLongUnroll>(sum, args.d_out + column, args.hidden, kGroups, [&](int64_t k) {
        if (first + k >= args.tokens) return -1;
        const int32_t token = args.order[first + k];
        return args.rows.of(args.ids[token]) == run_row ? token : -1;
      });
    }
#pragma unroll
    for (int j = 0; j < N; ++j) group_sum[group][lane * N + j] = sum[j];
    __syncthreads();
    const int64_t sum_column = static_cast<int64_t>(blockIdx.y) * kLanes * N + thread;
    if (thread < kLanes * N && sum_column < args.hidden) {
      float total = 0;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) total += group_sum[g][thread];
      args.d_table[run_row * args.hidden + sum_column] += total;
    }
    __syncthreads();
  }
}

}  // namespace

void embedding_forward(const EmbeddingForward& args, Stream& stream) {
  const int64_t tokens = args.out.dim(0);
  const int64_t hidden = args.out.dim(1);
  with_element(args.out.dtype(), [&]<typename T>() {
    const bool aligned = rows_are_aligned<T>(hidden, {args.out.raw(), args.table.raw()});
    const int64_t columns = aligned ? hidden / kVector<T> : hidden;
    const int64_t threads = columns < kThreads ? round_up(columns, 32) : kThreads;
    const LaunchShape shape{dim3(grid_dim(ceil_div(tokens, kRows)), grid_dim(ceil_div(columns, threads))),
                            grid_dim(threads)};
    auto* kernel = aligned ? embedding_forward_kernel<T, kVector<T>> : embedding_forward_kernel<T, 1>;
    launch("embedding_forward", kernel, shape, stream, pointer<T>(args.out), pointer<const int32_t>(args.ids),
           pointer<const T>(args.table), table_rows(args.vocab_begin, args.table), tokens, hidden);
  });
}

void embedding_backward(const EmbeddingBackward& args, Stream& stream) {
  with_element(args.d_out.dtype(), [&]<typename T>() {
    const BackwardArguments<T> arguments{.d_table = pointer<float>(args.d_table),
                                         .d_out = pointer<const T>(args.d_out),
                                         .ids = pointer<const int32_t>(args.ids),
                                         .order = pointer<const int32_t>(args.order),
                                         .rows = table_rows(args.vocab_begin, args.d_table),
                                         .tokens = args.d_out.dim(0),
                                         .hidden = args.d_out.dim(1)};
    const bool aligned = rows_are_aligned<T>(arguments.hidden, {arguments.d_out, arguments.d_table});
    const int64_t columns = kLanes * (aligned ? kVector<T> : 1);
    const LaunchShape shape{
        dim3(grid_dim(ceil_div(arguments.tokens, kPositions)), grid_dim(ceil_div(arguments.hidden, columns))),
        kLanes * kGroups};
    auto* kernel = aligned ? embedding_backward_kernel<T, kVector<T>> : embedding_backward_kernel<T, 1>;
    launch("embedding_backward", kernel, shape, stream, arguments);
  });
}

}  // namespace octavo::cuda
