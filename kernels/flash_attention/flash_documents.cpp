#include "kernels/flash_attention/flash_documents.h"

#include <algorithm>

namespace octavo {

namespace {

constexpr int64_t kTokensOfWindow = 16384;
constexpr int64_t kTokensPerDocument = 512;
constexpr int64_t kLeastDocuments = 32;

}  // namespace

int64_t window_tokens(const SdpaShape& shape) {
  if (shape.context.size > 1) return shape.chunk_length();
  return std::clamp<int64_t>(kTokensOfWindow / shape.seq_len, 1, shape.batch) * shape.seq_len;
}

int64_t documents_per_backward(const SdpaShape& shape) {
  return std::clamp(window_tokens(shape) / kTokensPerDocument, kLeastDocuments, kMostDocumentsPerLaunch);
}

std::vector<DocumentLaunch> document_launches(std::span<const Document> documents, const SdpaShape& shape,
                                              int64_t most_documents) {
  const int64_t window = window_tokens(shape);
  std::vector<DocumentLaunch> launches;
  for (int64_t i = 0; i < std::ssize(documents); ++i) {
    const Document& run = documents[static_cast<size_t>(i)];
    const int64_t begin = run.begin / window * window;
    if (launches.empty() || launches.back().window != begin || launches.back().count == most_documents) {
      launches.push_back({.first = i,
                          .window = begin,
                          .num_queries = std::min(window, shape.batch * shape.seq_len - begin),
                          .first_key = shape.first_key(run)});
    }
    DocumentLaunch& launch = launches.back();
    ++launch.count;
    launch.num_keys = shape.first_key(run) + run.keys() - launch.first_key;
    launch.most_queries = std::max<int64_t>(launch.most_queries, run.length);
    launch.most_keys = std::max(launch.most_keys, run.keys());
    launch.key_tiles += num_tiles(run.keys(), kFlashKeyTile);
  }
  return launches;
}

FlashBackwardSize backward_size(const SdpaShape& shape, const DocumentLaunch& launch) {
  const int64_t query_tile = flash_query_tile(shape.head_dim);
  // FlashAttention places document i at row (begin + i * tile) / tile * tile.
  return {.query_rows = (num_tiles(launch.num_queries, query_tile) + launch.count) * query_tile,
          .key_rows = (num_tiles(launch.num_keys, kFlashKeyTile) + launch.count) * kFlashKeyTile,
          .query_turns = num_tiles(launch.most_queries, query_tile) * launch.count,
          .key_turns = num_tiles(launch.most_keys, kFlashKeyTile) * launch.count};
}

namespace {

// Returns a launch of backward whose numbers are at least those of any launch of this shape.
DocumentLaunch largest_backward(const SdpaShape& shape) {
  const int64_t count = documents_per_backward(shape);
  const int64_t queries = window_tokens(shape);
  const int64_t keys = shape.context.size > 1 ? shape.whole_seq_len() : queries;
  return {.count = count,
          .num_queries = queries,
          .num_keys = keys,
          .most_queries = shape.chunk_length(),
          .most_keys = shape.whole_seq_len(),
          .key_tiles = num_tiles(keys, kFlashKeyTile) + count};
}

}  // namespace

DocumentArrays::DocumentArrays(int64_t documents, WorkspaceParts& parts) {
  for (Tensor* array : {&query_begin, &query_length, &key_begin, &key_length}) {
    *array = parts.take(DType::kInt32, {documents});
  }
}

DocumentForwardTensors::DocumentForwardTensors(void* memory) {
  WorkspaceParts parts(memory);
  documents = DocumentArrays(kMostDocumentsPerLaunch, parts);
  for (Tensor* array : {&order, &query_tiles, &heads_at_once}) {
    *array = parts.take(DType::kInt32, {kMostDocumentsPerLaunch});
  }
  next_tile = parts.take(DType::kInt32, {1});
  bytes = parts.bytes();
}

DocumentBackwardTensors::DocumentBackwardTensors(const SdpaShape& shape, DType dtype, void* memory) {
  WorkspaceParts parts(memory);
  documents = DocumentArrays(documents_per_backward(shape), parts);
  tiles = parts.take(DType::kInt32, {largest_backward(shape).key_tiles, 4});
  if (shape.context.size > 1) early_d_kv = parts.take(dtype, {shape.whole_seq_len() / 2, shape.kv_width()});
  bytes = parts.bytes();
}

int64_t document_workspace_bytes(const SdpaShape& shape, DType dtype) {
  const FlashBackwardTensors sums(shape, backward_size(shape, largest_backward(shape)), nullptr);
  return std::max(DocumentForwardTensors(nullptr).bytes,
                  DocumentBackwardTensors(shape, dtype, nullptr).bytes + sums.bytes);
}

}  // namespace octavo
