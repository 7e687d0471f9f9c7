// Token batches on the device: what the loader made on the host, uploaded ahead of the step that uses it.
#pragma once

#include <vector>

#include "core/arena.h"
#include "data/loader.h"
#include "model/llama.h"

namespace octavo {

class BatchBuffers {
 public:
  // Room for `rows` sequences of shape.seq_len, used in micro-batches of shape.micro_batch_size; two sets, so that one
  // can be filled while the step of the other still runs. document_start is uploaded only when `document_mask`.
  BatchBuffers(const BatchShape& shape, int64_t rows, int64_t vocab_size, bool document_mask, Arena& arena,
               Stream& stream);

  // Queues the upload of a batch. The host waits only if the upload two batches ago is not done.
  void upload(const Batch& batch);

  // Micro-batch i of the batch uploaded last.
  MicroBatch micro_batch(int64_t i) const;
  int64_t num_micro_batches() const { return rows_ / shape_.micro_batch_size; }
  // That a sequence of the batch uploaded last is of.
  int64_t dataset(int64_t row) const { return datasets_[static_cast<size_t>(row)]; }

 private:
  // One set of the four arrays, [rows * seq_len] int32 each.
  struct Set {
    Tensor inputs, targets, order, document_start;
  };
  Set view(const Tensor& memory) const;
  void sort_by_id(const int32_t* ids, int32_t* order);

  BatchShape shape_;
  int64_t rows_;
  bool document_mask_;
  Stream* stream_;
  Tensor device_[2];
  Buffer host_[2];
  std::vector<Event> uploaded_;
  std::vector<int32_t> counts_;    // of the sort
  std::vector<int64_t> datasets_;  // by row, of the batch uploaded last; 0 before there is one
  int current_ = 0;
};

}  // namespace octavo
