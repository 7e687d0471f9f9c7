#include "parallel/tensor_group.h"

#include "core/error.h"

namespace octavo {

TensorGroup::TensorGroup(Communicator* ranks, int64_t tokens, Stream& compute)
    : ranks_(ranks),
      tokens_(tokens),
      compute_(&compute),
      transfers_(Stream::beside(compute)),
      ready_(compute.device()),
      arrived_(compute.device()) {
  CHECK(tokens_ % size() == 0, "{} tokens are not divisible among {} tensor-parallel ranks", tokens_, size());
}

void TensorGroup::check(const Tensor& all, const Tensor& share) const {
  CHECK(all.dim(0) == tokens_ && share.dim(0) * size() == tokens_ && all.dtype() == share.dtype(),
        "the whole tensor is {} and the share is {}, expected {} tokens and 1/{} of them", all.describe(),
        share.describe(), tokens_, size());
}

void TensorGroup::gather(const Tensor& all, const Tensor& share, const char* what) {
  check(all, share);
  begin_transfer();
  ranks_->all_gather(all, share, transfers_, what);
  wait();
}

void TensorGroup::start_reduce_scatter(const Tensor& share, const Tensor& all, const char* what) {
  check(all, share);
  begin_transfer();
  ranks_->reduce_scatter_sum(share, all, transfers_, what);
}

void TensorGroup::reduce_scatter(const Tensor& share, const Tensor& all, const char* what) {
  start_reduce_scatter(share, all, what);
  wait();
}

void TensorGroup::begin_transfer() {
  ready_.record(*compute_);
  ready_.wait(transfers_);
}

void TensorGroup::wait() {
  arrived_.record(transfers_);
  arrived_.wait(*compute_);
}

}  // namespace octavo
