#include "parallel/context_group.h"

#include "core/error.h"
#include "kernels/math/sum_terms.h"

namespace octavo {

namespace {

int64_t bytes_of_row(const Tensor& rows) { return rows.dim(1) * dtype_bytes(rows.dtype()); }

Tensor flat(const Tensor& rows) { return rows.view({rows.numel()}); }

char* first_byte(const Tensor& tensor) { return static_cast<char*>(tensor.raw()); }

// Copies between `all`, which holds the chunks of all ranks in rank order, and `whole`, which holds them in the order
// of their positions. `to_whole` selects the direction.
void reorder(const Tensor& whole, const Tensor& all, int64_t batch, int64_t ranks, bool to_whole, Stream& stream) {
  const ContextRank first{.rank = 0, .size = ranks};
  const int64_t chunk_bytes = whole.bytes() / (batch * first.whole_chunks());
  const int64_t sequence_bytes = whole.bytes() / batch;
  for (ContextRank rank = first; rank.rank < ranks; ++rank.rank) {
    for (int64_t i = 0; i < rank.chunks(); ++i) {
      char* in_whole = first_byte(whole) + rank.chunk(i) * chunk_bytes;
      char* in_all = first_byte(all) + rank.rank * (all.bytes() / ranks) + i * chunk_bytes;
      const int64_t share_bytes = sequence_bytes / ranks;
      stream.copy_rows({.dst = to_whole ? in_whole : in_all,
                        .dst_stride = to_whole ? sequence_bytes : share_bytes,
                        .src = to_whole ? in_all : in_whole,
                        .src_stride = to_whole ? share_bytes : sequence_bytes,
                        .row_bytes = chunk_bytes,
                        .count = batch});
    }
  }
}

void check_shapes(const Tensor& whole, const ContextGroup::Columns& columns, int64_t batch,
                  const ContextScratch& scratch) {
  const Tensor& mine = scratch.mine;
  expect_tensor(columns.rows, "rows of a share", mine.dtype(), {mine.dim(0), columns.rows.dim(1)});
  expect_tensor(whole, "whole sequences", mine.dtype(), {scratch.all.dim(0), mine.dim(1)});
  CHECK(columns.begin + mine.dim(1) <= columns.rows.dim(1) && mine.dim(0) % batch == 0,
        "columns from {} on of {} do not fill the scratch {} of {} whole sequences", columns.begin,
        columns.rows.describe(), mine.describe(), batch);
}

}  // namespace

ContextScratch::ContextScratch(const ContextRank& context, int64_t tokens, int64_t width, DType dtype, Arena& arena)
    : mine(arena.allocate("keys and values of a rank", dtype, {tokens, width}, Lifetime::kBlock)),
      all(arena.allocate("keys and values of all ranks", dtype, {context.size * tokens, width}, Lifetime::kBlock)) {}

ContextGroup::ContextGroup(const ContextGroupOptions& options, Stream& compute)
    : options_(options),
      compute_(&compute),
      transfers_(Stream::beside(compute)),
      ready_(compute.device()),
      starting_(compute.device()),
      arrived_(compute.device()) {}

ContextRank ContextGroup::context_rank() const {
  const Communicator* ranks = options_.ranks;
  return ranks != nullptr ? ContextRank{.rank = ranks->rank(), .size = ranks->size()} : ContextRank{};
}

// Makes the transfer stream wait for the rows to send. A matmul that starts before the transfer would use all
// multiprocessors until it ends, so the compute stream waits until the transfer is about to start.
void ContextGroup::begin_transfer() {
  ready_.record(*compute_);
  ready_.wait(transfers_);
  starting_.record(transfers_);
  starting_.wait(*compute_);
}

void ContextGroup::start_gather(const Tensor& whole, const Columns& mine, int64_t batch, const ContextScratch& scratch,
                                const char* what) {
  check_shapes(whole, mine, batch, scratch);
  compute_->copy_rows({.dst = scratch.mine.raw(),
                       .dst_stride = bytes_of_row(scratch.mine),
                       .src = first_byte(mine.rows) + mine.begin * dtype_bytes(mine.rows.dtype()),
                       .src_stride = bytes_of_row(mine.rows),
                       .row_bytes = bytes_of_row(scratch.mine),
                       .count = scratch.mine.dim(0)});
  begin_transfer();
  options_.ranks->all_gather(scratch.all, scratch.mine, transfers_, what);
  reorder(whole, scratch.all, batch, options_.ranks->size(), true, transfers_);
  arrived_.record(transfers_);
}

void ContextGroup::start_reduce_scatter(const Columns& mine, const Tensor& whole, int64_t batch,
                                        const ContextScratch& scratch, const char* what) {
  check_shapes(whole, mine, batch, scratch);
  reorder(whole, scratch.all, batch, options_.ranks->size(), false, *compute_);
  begin_transfer();
  options_.ranks->all_to_all(whole, scratch.all, 0, transfers_, what);
  sum_terms({.out = flat(scratch.mine), .terms = flat(whole)}, transfers_);
  transfers_.copy_rows({.dst = first_byte(mine.rows) + mine.begin * dtype_bytes(mine.rows.dtype()),
                        .dst_stride = bytes_of_row(mine.rows),
                        .src = scratch.mine.raw(),
                        .src_stride = bytes_of_row(scratch.mine),
                        .row_bytes = bytes_of_row(scratch.mine),
                        .count = scratch.mine.dim(0)});
  arrived_.record(transfers_);
}

}  // namespace octavo
