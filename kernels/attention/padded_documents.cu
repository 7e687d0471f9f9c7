#include "kernels/attention/padded_documents.h"
#include "kernels/cuda/launch.cuh"

namespace octavo::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void lengths_kernel(int32_t* lengths, int batch, const PaddedRows map) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i < batch) lengths[i] = static_cast<int32_t>(max(map.length(i), int64_t{1}));
}

enum class Copy : uint8_t { kPad, kUnpad, kAdd };

struct Rows {
  using Element = __nv_bfloat16;
  static constexpr int kElements = kVector<Element>;

  Element* padded;
  Element* rows;
  int width;          // Number of elements of a padded row.
  int64_t row_width;  // Number of elements of an unpadded row.
  PaddedRows map;
  int64_t chunk;  // Index of the chunk whose rows are added.
};

// Each block copies one row of a padded sequence.
template <Copy kCopy>
__global__ void __launch_bounds__(kThreads) copy_rows(const Rows a) {
  using Vector = Vec<Rows::Element>;
  const int64_t sequence = blockIdx.x / a.map.seq_len;
  const int64_t position = blockIdx.x % a.map.seq_len;
  const bool is_padding = position >= a.map.length(sequence);
  if (kCopy != Copy::kPad && is_padding) return;
  if (kCopy == Copy::kAdd && a.map.chunk(sequence) != a.chunk) return;
  Rows::Element* padded = a.padded + static_cast<int64_t>(blockIdx.x) * a.width;
  Rows::Element* row = a.rows + (is_padding ? 0 : (a.map.first_row(sequence) + position) * a.row_width);
  const int step = static_cast<int>(blockDim.x) * Rows::kElements;
  for (int i = static_cast<int>(threadIdx.x) * Rows::kElements; i < a.width; i += step) {
    if constexpr (kCopy == Copy::kPad) {
      (is_padding ? Vector{make_uint4(0, 0, 0, 0)} : Vector::load(row + i)).store(padded + i);
    } else if constexpr (kCopy == Copy::kUnpad) {
      Vector::load(padded + i).store(row + i);
    } else {
      float sum[Rows::kElements];
      float term[Rows::kElements];
      Vector::load(row + i).widen(sum);
      Vector::load(padded + i).widen(term);
#pragma unroll
      for (int j = 0; j < Rows::kElements; ++j) sum[j] += term[j];
      Vector::narrow(sum).store(row + i);
    }
  }
}

template <Copy kCopy>
void launch_rows(const char* name, const Tensor& padded, const Tensor& rows, const PaddedRows& map,
                 const Stream& stream, int64_t chunk = 0) {
  const int64_t width = padded.dim(1);
  const Rows a{.padded = pointer<Rows::Element>(padded),
               .rows = pointer<Rows::Element>(rows),
               .width = static_cast<int>(width),
               .row_width = rows.dim(1),
               .map = map,
               .chunk = chunk};
  const auto threads = static_cast<unsigned>(std::min<int64_t>(kThreads, round_up(width / Rows::kElements, 32)));
  launch(name, copy_rows<kCopy>, {.grid = grid_dim(padded.dim(0)), .block = threads}, stream, a);
}

struct Lse {
  float* padded;
  float* lse;
  int heads;
  PaddedRows map;
};

// Each block copies one head of a padded sequence.
template <bool kPad>
__global__ void __launch_bounds__(kThreads) copy_lse(const Lse a) {
  const int64_t sequence = blockIdx.x / a.heads;
  const int64_t head = blockIdx.x % a.heads;
  float* padded = a.padded + static_cast<int64_t>(blockIdx.x) * a.map.seq_len;
  const int64_t length = a.map.length(sequence);
  float* lse = a.lse + (length > 0 ? a.map.first_lse(sequence, head) : 0);
  const int64_t end = kPad ? a.map.seq_len : length;
  for (int64_t i = threadIdx.x; i < end; i += kThreads) {
    if constexpr (kPad) {
      padded[i] = i < length ? lse[i] : 0.0f;
    } else {
      lse[i] = padded[i];
    }
  }
}

template <bool kPad>
void launch_lse(const char* name, const Tensor& padded, const Tensor& lse, const PaddedRows& map,
                const Stream& stream) {
  const Lse a{.padded = pointer<float>(padded),
              .lse = pointer<float>(lse),
              .heads = static_cast<int>(padded.dim(1)),
              .map = map};
  launch(name, copy_lse<kPad>, {.grid = grid_dim(padded.dim(0) * padded.dim(1)), .block = kThreads}, stream, a);
}

}  // namespace

void padded_lengths(const Tensor& lengths, const PaddedRows& map, Stream& stream) {
  launch("padded_lengths", lengths_kernel, {.grid = grid_dim(ceil_div(lengths.numel(), kThreads)), .block = kThreads},
         stream, pointer<int32_t>(lengths), static_cast<int>(lengths.numel()), map);
}

void pad_rows(const Tensor& padded, const Tensor& rows, const PaddedRows& map, Stream& stream) {
  launch_rows<Copy::kPad>("pad_rows", padded, rows, map, stream);
}

void unpad_rows(const Tensor& rows, const Tensor& padded, const PaddedRows& map, Stream& stream) {
  launch_rows<Copy::kUnpad>("unpad_rows", padded, rows, map, stream);
}

void add_unpadded_rows(const Tensor& rows, const Tensor& padded, const PaddedRows& map, int64_t chunk, Stream& stream) {
  launch_rows<Copy::kAdd>("add_unpadded_rows", padded, rows, map, stream, chunk);
}

void pad_lse(const Tensor& padded, const Tensor& lse, const PaddedRows& map, Stream& stream) {
  launch_lse<true>("pad_lse", padded, lse, map, stream);
}

void unpad_lse(const Tensor& lse, const Tensor& padded, const PaddedRows& map, Stream& stream) {
  launch_lse<false>("unpad_lse", padded, lse, map, stream);
}

}  // namespace octavo::cuda
