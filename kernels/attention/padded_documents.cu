#include "core/cuda_launch.cuh"
#include "kernels/attention/padded_documents.h"

namespace octavo::cuda {

namespace {

constexpr int kThreads = 256;

// Document `i` of a batch: its first token and its length; none behind the last.
__device__ int2 document_at(const int2* documents, int count, int i) {
  return i < count ? documents[i] : make_int2(0, 0);
}

__global__ void lengths_kernel(int32_t* lengths, int batch, const int2* documents, int count) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i < batch) lengths[i] = max(document_at(documents, count, i).y, 1);
}

struct Rows {
  uint4* padded;
  uint4* rows;
  const int2* documents;
  int count;
  int seq_len;  // of the padded sequences
  int vectors;  // of 16 bytes in a row
};

// A block takes a row of a padded sequence.
template <bool kPad>
__global__ void __launch_bounds__(kThreads) copy_rows(const Rows a) {
  const int2 document = document_at(a.documents, a.count, static_cast<int>(blockIdx.x) / a.seq_len);
  const int position = static_cast<int>(blockIdx.x) % a.seq_len;
  const bool is_padding = position >= document.y;
  if (!kPad && is_padding) return;
  uint4* padded = a.padded + static_cast<int64_t>(blockIdx.x) * a.vectors;
  uint4* row = a.rows + static_cast<int64_t>(document.x + position) * a.vectors;
  for (int i = static_cast<int>(threadIdx.x); i < a.vectors; i += static_cast<int>(blockDim.x)) {
    if constexpr (kPad) {
      padded[i] = is_padding ? make_uint4(0, 0, 0, 0) : row[i];
    } else {
      row[i] = padded[i];
    }
  }
}

template <bool kPad>
void launch_rows(const char* name, const Tensor& padded, const Tensor& rows, const Tensor& documents, int64_t seq_len,
                 const Stream& stream) {
  const int64_t row_bytes = rows.dim(1) * dtype_bytes(rows.dtype());
  const int64_t vectors = row_bytes / static_cast<int64_t>(sizeof(uint4));
  const Rows a{.padded = pointer<uint4>(padded),
               .rows = pointer<uint4>(rows),
               .documents = pointer<const int2>(documents),
               .count = static_cast<int>(documents.dim(0)),
               .seq_len = static_cast<int>(seq_len),
               .vectors = static_cast<int>(vectors)};
  const auto threads = static_cast<unsigned>(std::min<int64_t>(kThreads, round_up(vectors, 32)));
  launch(name, copy_rows<kPad>, {.grid = grid_dim(padded.dim(0)), .block = threads}, stream, a);
}

struct Lse {
  float* padded;
  float* lse;
  const int2* documents;
  int count;
  int heads;
  int padded_seq_len;
  int seq_len;
};

// A block takes one head of a padded sequence.
template <bool kPad>
__global__ void __launch_bounds__(kThreads) copy_lse(const Lse a) {
  const int2 document = document_at(a.documents, a.count, static_cast<int>(blockIdx.x) / a.heads);
  const int head = static_cast<int>(blockIdx.x) % a.heads;
  float* padded = a.padded + static_cast<int64_t>(blockIdx.x) * a.padded_seq_len;
  const int64_t sequence = document.x / a.seq_len;
  float* lse = a.lse + (sequence * a.heads + head) * a.seq_len + document.x % a.seq_len;
  const int end = kPad ? a.padded_seq_len : document.y;
  for (int i = static_cast<int>(threadIdx.x); i < end; i += kThreads) {
    if constexpr (kPad) {
      padded[i] = i < document.y ? lse[i] : 0.0f;
    } else {
      lse[i] = padded[i];
    }
  }
}

template <bool kPad>
void launch_lse(const char* name, const Tensor& padded, const Tensor& lse, const Tensor& documents,
                const Stream& stream) {
  const Lse a{.padded = pointer<float>(padded),
              .lse = pointer<float>(lse),
              .documents = pointer<const int2>(documents),
              .count = static_cast<int>(documents.dim(0)),
              .heads = static_cast<int>(padded.dim(1)),
              .padded_seq_len = static_cast<int>(padded.dim(2)),
              .seq_len = static_cast<int>(lse.dim(2))};
  launch(name, copy_lse<kPad>, {.grid = grid_dim(padded.dim(0) * padded.dim(1)), .block = kThreads}, stream, a);
}

}  // namespace

void padded_lengths(const Tensor& lengths, const Tensor& documents, Stream& stream) {
  launch("padded_lengths", lengths_kernel, {.grid = grid_dim(ceil_div(lengths.numel(), kThreads)), .block = kThreads},
         stream, pointer<int32_t>(lengths), static_cast<int>(lengths.numel()), pointer<const int2>(documents),
         static_cast<int>(documents.dim(0)));
}

void pad_rows(const Tensor& padded, const Tensor& rows, const Tensor& documents, int64_t seq_len, Stream& stream) {
  launch_rows<true>("pad_rows", padded, rows, documents, seq_len, stream);
}

void unpad_rows(const Tensor& rows, const Tensor& padded, const Tensor& documents, int64_t seq_len, Stream& stream) {
  launch_rows<false>("unpad_rows", padded, rows, documents, seq_len, stream);
}

void pad_lse(const Tensor& padded, const Tensor& lse, const Tensor& documents, Stream& stream) {
  launch_lse<true>("pad_lse", padded, lse, documents, stream);
}

void unpad_lse(const Tensor& lse, const Tensor& padded, const Tensor& documents, Stream& stream) {
  launch_lse<false>("unpad_lse", padded, lse, documents, stream);
}

}  // namespace octavo::cuda
