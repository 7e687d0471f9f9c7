#include "kernels/cuda/launch.cuh"
#include "kernels/flash_attention/flash_documents.h"

namespace octavo::cuda {

namespace {

// Kernel parameters of both passes.
struct Runs {
  SdpaShape shape;
  const Document* documents;  // Documents of the launch.
  int count;
  int64_t window;
  int64_t first_key;
  int32_t* query_begin;
  int32_t* query_length;
  int32_t* key_begin;
  int32_t* key_length;
};

Runs runs_of(const DocumentArrays& arrays, const DocumentLaunch& launch, const SdpaShape& shape,
             const Tensor& documents) {
  const Tensor list = documents.rows(launch.first, launch.first + launch.count);
  return {.shape = shape,
          .documents = pointer<const Document>(list),
          .count = static_cast<int>(launch.count),
          .window = launch.window,
          .first_key = launch.first_key,
          .query_begin = pointer<int32_t>(arrays.query_begin),
          .query_length = pointer<int32_t>(arrays.query_length),
          .key_begin = pointer<int32_t>(arrays.key_begin),
          .key_length = pointer<int32_t>(arrays.key_length)};
}

// Place of a document in the descending order of the numbers of keys.
struct Place {
  int rank = 0;        // Number of documents before it.
  int first_tile = 0;  // Number of tiles of keys before it.
};

// Each thread writes the lengths of one document and returns its place.
__device__ Place place_document(const Runs& a, int i) {
  __shared__ int keys[kMostDocumentsPerLaunch];
  if (i < a.count) {
    const Document run = a.documents[i];
    keys[i] = static_cast<int>(run.keys());
    a.query_begin[i] = static_cast<int>(run.begin - a.window);
    a.query_length[i] = run.length;
    a.key_begin[i] = static_cast<int>(a.shape.first_key(run) - a.first_key);
    a.key_length[i] = keys[i];
  }
  __syncthreads();
  Place place;
  for (int j = 0; i < a.count && j < a.count; ++j) {
    if (keys[j] < keys[i] || (keys[j] == keys[i] && j >= i)) continue;
    ++place.rank;
    place.first_tile += static_cast<int>(num_tiles(keys[j], kFlashKeyTile));
  }
  return place;
}

__global__ void __launch_bounds__(kMostDocumentsPerLaunch)
    forward_kernel(const Runs a, int32_t* order, int32_t* query_tiles, int32_t* heads_at_once, int32_t* next_tile) {
  const int i = static_cast<int>(threadIdx.x);
  const Place place = place_document(a, i);
  if (i == 0) *next_tile = 0;
  if (i >= a.count) return;
  const Document run = a.documents[i];
  order[place.rank] = i;
  query_tiles[place.rank] = static_cast<int>(num_tiles(run.length, flash_forward_tile(a.shape.head_dim)));
  heads_at_once[place.rank] = static_cast<int>(flash_forward_heads(a.shape, run.keys()));
}

__global__ void __launch_bounds__(kMostDocumentsPerLaunch) backward_kernel(const Runs a, int4* tiles) {
  const int i = static_cast<int>(threadIdx.x);
  const Place place = place_document(a, i);
  if (i >= a.count) return;
  const Document run = a.documents[i];
  const int count = static_cast<int>(num_tiles(run.keys(), kFlashKeyTile));
  const int heads = static_cast<int>(flash_backward_heads(a.shape, run.length));
  for (int t = 0; t < count; ++t) tiles[place.first_tile + t] = make_int4(i, place.first_tile, count, heads);
}

LaunchShape one_block(const DocumentLaunch& launch) {
  return {.grid = 1, .block = static_cast<unsigned>(round_up(launch.count, 32))};
}

}  // namespace

void schedule_forward(const DocumentForwardTensors& tensors, const DocumentLaunch& launch, const SdpaShape& shape,
                      const Tensor& documents, Stream& stream) {
  cuda::launch("schedule_forward", forward_kernel, one_block(launch), stream,
               runs_of(tensors.documents, launch, shape, documents), pointer<int32_t>(tensors.order),
               pointer<int32_t>(tensors.query_tiles), pointer<int32_t>(tensors.heads_at_once),
               pointer<int32_t>(tensors.next_tile));
}

void schedule_backward(const DocumentBackwardTensors& tensors, const DocumentLaunch& launch, const SdpaShape& shape,
                       const Tensor& documents, Stream& stream) {
  cuda::launch("schedule_backward", backward_kernel, one_block(launch), stream,
               runs_of(tensors.documents, launch, shape, documents), pointer<int4>(tensors.tiles));
}

}  // namespace octavo::cuda
