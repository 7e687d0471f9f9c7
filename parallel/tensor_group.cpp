#include "parallel/tensor_group.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"

namespace octavo {

TensorGroup::TensorGroup(const TensorGroupOptions& options, int64_t tokens, Stream& compute)
    : ranks_(options.ranks),
      tokens_(tokens),
      chunks_(std::max<int64_t>(options.chunks, 1)),
      overlap_multiprocessors_(options.overlap_multiprocessors),
      compute_(&compute),
      transfers_(Stream::beside(compute)),
      ready_(compute.device()),
      starting_(compute.device()) {
  CHECK(tokens_ % size() == 0, "{} tokens are not divisible among {} tensor-parallel ranks", tokens_, size());
  // If the share is a multiple of 16 tokens, so is every chunk, because cuBLASLt requires this alignment of the scales
  // of a chunk's rows.
  const int64_t share = tokens_ / size();
  const int64_t unit = std::gcd(share, 16);
  while (share % (chunks_ * unit) != 0) --chunks_;
  for (int64_t chunk = 0; chunk < chunks_; ++chunk) arrived_.emplace_back(compute.device());
}

TensorGroup::Rows TensorGroup::all_rows(int64_t chunk) const {
  const int64_t rows = tokens_ / chunks_;
  return {chunk * rows, (chunk + 1) * rows};
}

TensorGroup::Rows TensorGroup::share_rows(int64_t chunk) const {
  const int64_t rows = tokens_ / chunks_ / size();
  return {chunk * rows, (chunk + 1) * rows};
}

void TensorGroup::check(const Tensor& all, const Tensor& share) const {
  CHECK(all.dim(0) == tokens_ && share.dim(0) * size() == tokens_ && all.dtype() == share.dtype(),
        "the whole tensor is {} and the share is {}, expected {} tokens and 1/{} of them", all.describe(),
        share.describe(), tokens_, size());
}

void TensorGroup::gather(const Tensor& all, const Tensor& share, const char* what, const Work& work) {
  check(all, share);
  ready_.record(*compute_);
  ready_.wait(transfers_);
  starting_.record(transfers_);
  for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
    const Rows whole = all_rows(chunk);
    const Rows mine = share_rows(chunk);
    ranks_->all_gather(all.rows(whole.begin, whole.end), share.rows(mine.begin, mine.end), transfers_, what);
    arrived_[static_cast<size_t>(chunk)].record(transfers_);
  }
  cover();
  for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
    arrived_[static_cast<size_t>(chunk)].wait(*compute_);
    const Rows whole = all_rows(chunk);
    if (work) work(whole.begin, whole.end);
  }
}

void TensorGroup::start_reduce_scatter(const Tensor& share, const Tensor& all, const char* what, const Work& work) {
  check(all, share);
  for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
    const Rows whole = all_rows(chunk);
    const Rows mine = share_rows(chunk);
    if (work) work(whole.begin, whole.end);
    ready_.record(*compute_);
    ready_.wait(transfers_);
    starting_.record(transfers_);
    ranks_->reduce_scatter_sum(share.rows(mine.begin, mine.end), all.rows(whole.begin, whole.end), transfers_, what);
  }
}

void TensorGroup::wait() {
  arrived_.back().record(transfers_);
  cover();
  arrived_.back().wait(*compute_);
}

void TensorGroup::reduce_scatter(const Tensor& share, const Tensor& all, const char* what, const Work& work) {
  start_reduce_scatter(share, all, what, work);
  wait();
}

void TensorGroup::defer(std::function<void()> work, bool covers) { deferred_.push_back({std::move(work), covers}); }

// A GEMM that starts before the collective would use all multiprocessors until it ends. So the compute stream waits
// until the collective is about to start.
void TensorGroup::cover() {
  if (deferred_.empty()) return;
  starting_.wait(*compute_);
  compute_->set_matmul_multiprocessors(overlap_multiprocessors_);
  run_next();
  compute_->set_matmul_multiprocessors(0);
}

// Runs the next deferred function, and those after it that are short.
void TensorGroup::run_next() {
  bool covered = false;
  while (!deferred_.empty() && !(covered && deferred_.front().covers)) {
    covered |= deferred_.front().covers;
    deferred_.front().work();
    deferred_.pop_front();
  }
}

void TensorGroup::run_deferred() {
  while (!deferred_.empty()) run_next();
}

void TensorGroup::gather_whole(const Tensor& out, const Tensor& mine, const char* what) {
  ranks_->all_gather(out, mine, *compute_, what);
}

void TensorGroup::all_reduce_max(const Tensor& tensor, const char* what) {
  ranks_->all_reduce_max(tensor, *compute_, what);
}

void TensorGroup::all_reduce_sum(const Tensor& tensor, const char* what) {
  ranks_->all_reduce_sum(tensor, *compute_, what);
}

}  // namespace octavo
