// Token batches on the device: what the loader made on the host, uploaded ahead of the step that uses it.
#pragma once

#include <vector>

#include "app/config/config.h"
#include "core/arena.h"
#include "data/loader.h"
#include "model/llama.h"

namespace octavo {

// Returns the shape of a micro-batch of a rank.
BatchShape batch_shape(const Config& config, const Mesh& mesh);

class BatchBuffers {
 public:
  // Room for `rows` sequences of shape.seq_len, used in micro-batches of shape.micro_batch_size; two sets, so that one
  // can be filled while the step of the other still runs. With documents where the shape has a document mask; there is
  // a batch of zeros before the first is uploaded, with every sequence one document.
  BatchBuffers(const BatchShape& shape, int64_t rows, int64_t vocab_size, Arena& arena, Stream& stream);

  // Queues the upload of a batch, of as many rows or fewer whole micro-batches. The host waits only if the upload two
  // batches ago is not done.
  void upload(const Batch& batch);

  // Micro-batch i of the batch uploaded last, valid until the second upload from then.
  MicroBatch micro_batch(int64_t i) const;
  // Returns the number of micro-batches of the batch uploaded last, or of a full batch before there is one.
  int64_t num_micro_batches() const { return uploaded_rows_ / shape_.micro_batch_size; }
  // Returns the dataset of a sequence of the batch uploaded last.
  int64_t dataset(int64_t row) const { return datasets_[static_cast<size_t>(row)]; }

 private:
  // One set of int32 arrays: [rows * seq_len] each, and documents [rows * seq_len, 3], of which the list of a
  // micro-batch begins at its first token.
  struct Set {
    Tensor inputs, targets, order, documents;
  };
  // The lists of documents on the host, one after another, and where the list of each micro-batch begins.
  struct DocumentLists {
    std::vector<Document> documents;
    std::vector<size_t> begin;
  };
  Set view(const Tensor& memory) const;
  void sort_by_id(const int32_t* ids, int32_t* order);
  void list_documents(const Batch& batch, const Tensor& documents);

  BatchShape shape_;
  int64_t rows_;
  int64_t uploaded_rows_;
  Stream* stream_;
  Tensor device_[2];
  Buffer host_[2];
  DocumentLists lists_[2];
  std::vector<Event> uploaded_;
  std::vector<int32_t> counts_;    // of the sort
  std::vector<int64_t> datasets_;  // by row, of the batch uploaded last; 0 before there is one
  int current_ = 0;
};

}  // namespace octavo
