// Tile scheduler of backward within documents. For every document, FlashAttention's own scheduler starts a block for
// each tile of the longest document, and most of these blocks would find nothing to do. This scheduler starts one block
// for each tile that exists, those of long documents first.
#pragma once

#include <tile_scheduler.hpp>  // FlashAttention's

#include "kernels/flash_attention/tiles.h"

namespace octavo::cuda {

// Has the interface of FlashAttention's schedulers. A block of threads computes one tile of keys for one query head.
// Blocks wait only for blocks of lower index: for earlier query heads of their key head, and with kLastFirst, which the
// deterministic kernels need, for later tiles of the document.
template <bool kLastFirst>
class DocumentTileScheduler {
 public:
  using SharedStorage = int;

  struct Params {
    const int4* tiles;  // DocumentBackwardTensors::tiles
    int num_heads;
  };
  // flash_backward_within_documents() passes the table of tiles as the semaphore, which backward does not use, and the
  // number of blocks as the number of multiprocessors.
  static Params to_underlying_arguments(const flash::TileSchedulerArguments& args) {
    return {reinterpret_cast<const int4*>(args.tile_count_semaphore), args.num_head};
  }
  static dim3 get_grid_shape(const Params& /*params*/, int num_blocks) { return {static_cast<unsigned>(num_blocks)}; }

  struct WorkTileInfo {
    int tile;
    int head;
    int document;  // -1 means that there is no work.

    CUTLASS_DEVICE bool is_valid(const Params& /*params*/) const { return document >= 0; }
    CUTLASS_DEVICE cute::tuple<int32_t, int32_t, int32_t, int32_t> get_block_coord(const Params& /*params*/) const {
      return {tile, head, document, 0};
    }
  };

  CUTLASS_DEVICE explicit DocumentTileScheduler(SharedStorage* /*storage*/) {}

  template <bool kIsProducer = false>
  CUTLASS_DEVICE WorkTileInfo get_initial_work(const Params& params) const {
    const int block = static_cast<int>(blockIdx.x);
    const auto [document, first_tile, tiles, heads_at_once] = params.tiles[block / params.num_heads];
    const auto [tile, head] =
        tile_of_block(block - first_tile * params.num_heads, tiles, heads_at_once, params.num_heads);
    return {kLastFirst ? tiles - 1 - tile : tile, head, document};
  }
  template <bool kIsProducer = false>
  CUTLASS_DEVICE WorkTileInfo get_next_work(const Params& /*params*/, const WorkTileInfo& /*current*/) const {
    return {0, 0, -1};
  }
  CUTLASS_DEVICE void init_consumer() const {}
  CUTLASS_DEVICE void prefetch_next_work(const Params& /*params*/, WorkTileInfo& /*current*/) const {}
};

// Replaces FlashAttention's SingleTileBwdLPTScheduler: chooses it for sequences of equal length.
template <bool kVarlen, int kBlock, bool kLastFirst>
using BackwardTileScheduler = std::conditional_t<kVarlen, DocumentTileScheduler<kLastFirst>,
                                                 flash::SingleTileBwdLPTScheduler<kVarlen, kBlock, kLastFirst>>;

}  // namespace octavo::cuda

namespace flash {
using octavo::cuda::BackwardTileScheduler;
}
