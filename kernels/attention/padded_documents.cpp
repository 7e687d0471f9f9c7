#include "kernels/attention/padded_documents.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/attention/workspace_parts.h"

namespace octavo {

namespace {

constexpr int64_t kTokensOfBatch = 8192;  // fill a GPU
constexpr int64_t kShortest = 64;         // a tile of what attention computes at a time
constexpr int64_t kLeast = 2;             // cuDNN's backward refuses padded sequences of one token

int64_t length_at(const SdpaShape& shape, int64_t level) {
  const int64_t parts = int64_t{1} << level;
  return std::max((shape.seq_len + parts - 1) / parts, kLeast);
}

}  // namespace

int64_t num_padded_levels(const SdpaShape& shape) {
  int64_t levels = 1;
  while (length_at(shape, levels) >= kShortest) ++levels;
  return levels;
}

SdpaShape padded_shape(const SdpaShape& shape, int64_t level) {
  const int64_t rows = std::clamp<int64_t>(kTokensOfBatch / shape.seq_len, 1, shape.batch);
  SdpaShape padded = shape;
  padded.batch = rows << level;
  padded.seq_len = length_at(shape, level);
  return padded;
}

PaddedBatch padded_batch(const Documents& documents, int64_t first, const SdpaShape& shape) {
  const int64_t longest = documents.list[static_cast<size_t>(first)].length;
  int64_t level = num_padded_levels(shape) - 1;
  while (level > 0 && length_at(shape, level) < longest) --level;
  const SdpaShape padded = padded_shape(shape, level);
  return {.shape = padded, .first = first, .count = std::min(padded.batch, documents.size() - first)};
}

PaddedTensors::PaddedTensors(const SdpaShape& shape, DType dtype, void* memory) {
  WorkspaceParts parts(memory);
  const int64_t tokens = shape.batch * shape.seq_len;
  lengths = parts.take(DType::kInt32, {shape.batch});
  qkv = parts.take(dtype, {tokens, shape.qkv_width()});
  d_qkv = parts.take(dtype, {tokens, shape.qkv_width()});
  out = parts.take(dtype, {tokens, shape.out_width()});
  d_out = parts.take(dtype, {tokens, shape.out_width()});
  lse = parts.take(DType::kFloat32, {shape.batch, shape.num_heads, shape.seq_len});
  bytes = parts.bytes();
}

}  // namespace octavo
