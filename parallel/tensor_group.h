// TensorGroup is the group of ranks that divide each layer of a model (tensor parallelism) and its tokens between the
// layers (sequence parallelism, Korthikanti et al., arXiv 2205.05198). Matmuls read and write all `tokens` of a
// micro-batch. All other ops process only this rank's share, 1/size of the tokens in rank order. Tokens are gathered
// before a matmul whose output features are divided, and partial sums are reduced and scattered after a matmul whose
// input features are divided.
//
// Collectives run on a separate stream; events order it with the given compute stream. All methods are collectives of
// the group in the sense of Communicator. Callers check alone() and do not call the collectives in a group of one rank.
#pragma once

#include <cstdint>

#include "core/stream.h"
#include "parallel/communicator.h"

namespace octavo {

class TensorGroup {
 public:
  // `ranks` is the communicator of the group. Null means a group of one rank.
  // Requires: `ranks` and `compute` outlive the group, and `tokens` is divisible by the number of ranks.
  TensorGroup(Communicator* ranks, int64_t tokens, Stream& compute);

  int rank() const { return ranks_ != nullptr ? ranks_->rank() : 0; }
  int size() const { return ranks_ != nullptr ? ranks_->size() : 1; }
  bool alone() const { return size() == 1; }
  // Returns the stream on which the collectives run.
  Stream& transfers() { return transfers_; }

  // All-gathers each rank's share [tokens / size, width] into all [tokens, width]; any dtype. The compute stream waits
  // for `all`.
  void gather(const Tensor& all, const Tensor& share, const char* what);

  // Sets share [tokens / size, width] = this rank's rows of the sum over ranks of all [tokens, width]; float32 or
  // bfloat16. The compute stream continues until wait() makes it wait for the share.
  void start_reduce_scatter(const Tensor& share, const Tensor& all, const char* what);
  void wait();
  // Calls start_reduce_scatter() and then wait().
  void reduce_scatter(const Tensor& share, const Tensor& all, const char* what);

  // Returns the communicator, for collectives of other tensors than tokens.
  Communicator& ranks() const { return *ranks_; }

 private:
  void check(const Tensor& all, const Tensor& share) const;
  void begin_transfer();

  Communicator* ranks_;
  int64_t tokens_;
  Stream* compute_;
  Stream transfers_;
  // Event that is recorded on the compute stream when the input of a collective is ready.
  Event ready_;
  // Event that is recorded on the transfer stream after a collective.
  Event arrived_;
};

}  // namespace octavo
