// Device buffers for batches of tokens. The loader prepares a batch on the host. The batch is uploaded before the step
// that uses it.
#pragma once

#include <vector>

#include "app/config/config.h"
#include "core/arena.h"
#include "data/loader.h"
#include "model/llama.h"

namespace octavo {

// Returns the shape of the micro-batches of one rank.
BatchShape batch_shape(const Config& config, const Mesh& mesh);

class BatchBuffers {
 public:
  // Allocates two sets of buffers, so that one can be filled while a step still reads the other. Each set holds `rows`
  // sequences of shape.seq_len, in micro-batches of shape.micro_batch_size, and lists of documents if the shape has a
  // document mask. Until the first upload, the current batch is all zeros, with one document per sequence.
  BatchBuffers(const BatchShape& shape, int64_t rows, int64_t vocab_size, Arena& arena, Stream& stream);

  // Queues the upload of a batch. The host waits only if the upload two batches ago is not complete.
  // Requires: the batch has at most `rows` rows, in whole micro-batches.
  void upload(const Batch& batch);

  // Switches the current batch, which the methods below read, from the last upload to the one before it, or back.
  void swap() { current_ = 1 - current_; }

  // Returns micro-batch `i` of the current batch. The result is valid until the second upload after this call.
  MicroBatch micro_batch(int64_t i) const;
  // Returns the number of micro-batches in the current batch, or in a full batch before the first upload.
  int64_t num_micro_batches() const { return uploaded_rows_[current_] / shape_.micro_batch_size; }
  // Returns the index of the dataset that a sequence of the current batch belongs to.
  int64_t dataset(int64_t row) const { return datasets_[current_][static_cast<size_t>(row)]; }
  // Returns the mean number of tokens that a token of this rank attends to in the batch uploaded last.
  double attended_tokens() const { return attended_tokens_; }

 private:
  // One set of int32 arrays. inputs, targets and order are [rows * seq_len]. order has the positions within each
  // micro-batch, sorted by token id. documents is [rows * seq_len, 3] and has the members of each document
  // (Documents::device). The documents of a micro-batch begin at the row of its first token.
  struct Set {
    Tensor inputs, targets, order, documents;
  };
  // Documents of all micro-batches on the host, and the index at which the list of each micro-batch begins.
  struct DocumentLists {
    std::vector<Document> documents;
    std::vector<size_t> begin;
  };
  Set view(const Tensor& memory) const;
  void sort_by_id(const int32_t* ids, int32_t* order);
  void list_documents(const Batch& batch, const Tensor& documents);

  BatchShape shape_;
  int64_t rows_;
  int64_t uploaded_rows_[2];
  Stream* stream_;
  Tensor device_[2];
  Buffer host_[2];
  DocumentLists lists_[2];
  std::vector<Event> uploaded_;
  std::vector<int32_t> counts_;       // Scratch memory of sort_by_id.
  std::vector<int64_t> datasets_[2];  // Dataset of each row of a batch. 0 before the first upload.
  double attended_tokens_;
  int current_ = 0;
};

}  // namespace octavo
