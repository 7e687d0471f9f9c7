#include "app/run/batch_buffers.h"

#include <algorithm>

#include "app/run/utilization.h"
#include "core/error.h"

namespace octavo {

BatchShape batch_shape(const Config& config, const Mesh& mesh) {
  const ContextRank context = mesh.context_rank();
  return {.micro_batch_size = config.training.micro_batch_size,
          .seq_len = context.share(config.data.seq_len),
          .document_mask = config.data.document_mask,
          .context = context};
}

BatchBuffers::BatchBuffers(const BatchShape& shape, int64_t rows, int64_t vocab_size, Arena& arena, Stream& stream)
    : shape_(shape),
      rows_(rows),
      uploaded_rows_{rows, rows},
      stream_(&stream),
      attended_tokens_(causal_attended_tokens(shape.whole_seq_len())) {
  const int64_t arrays = shape.document_mask ? 3 + kNumbersOfDocument : 3;
  for (Tensor& set : device_)
    set = arena.allocate("token batch", DType::kInt32, {arrays, rows * shape.seq_len}, Lifetime::kStep);
  for (auto& datasets : datasets_) datasets.assign(static_cast<size_t>(rows), 0);
  if (arena.planning()) return;
  for (Buffer& buffer : host_) buffer = Buffer::host(stream.device(), device_[0].bytes());
  counts_.resize(static_cast<size_t>(vocab_size) + 1);
  for (int i = 0; i < 2; ++i) uploaded_.emplace_back(stream.device());
  if (!shape.document_mask) return;
  Batch zeros;
  for (auto* array : {&zeros.inputs, &zeros.targets, &zeros.document_start}) {
    array->assign(static_cast<size_t>(rows * shape.seq_len), 0);
  }
  upload(zeros);
}

BatchBuffers::Set BatchBuffers::view(const Tensor& memory) const {
  const int64_t tokens = memory.dim(1);
  const auto row = [&](int64_t i) { return memory.rows(i, i + 1).view({tokens}); };
  return {row(0), row(1), row(2),
          shape_.document_mask ? memory.rows(3, memory.dim(0)).view({tokens, kNumbersOfDocument}) : Tensor()};
}

void BatchBuffers::upload(const Batch& batch) {
  const int64_t capacity = rows_ * shape_.seq_len;
  const auto tokens = std::ssize(batch.inputs);
  CHECK(tokens > 0 && tokens <= capacity && tokens % shape_.tokens() == 0,
        "a batch has {} tokens, expected at most {} in micro-batches of {}", tokens, capacity, shape_.tokens());
  current_ = 1 - current_;
  uploaded_rows_[current_] = tokens / shape_.seq_len;
  if (!batch.dataset.empty()) datasets_[current_] = batch.dataset;
  const auto slot = static_cast<size_t>(current_);
  uploaded_[slot].synchronize();  // Waits for the upload two batches ago, the last one that read this host memory.
  const Tensor host(host_[slot].data(), DType::kInt32, {device_[slot].dim(0), capacity});
  const Set set = view(host);
  std::ranges::copy(batch.inputs, set.inputs.data<int32_t>());
  std::ranges::copy(batch.targets, set.targets.data<int32_t>());
  if (shape_.document_mask) list_documents(batch, set.documents);
  for (int64_t begin = 0; begin < tokens; begin += shape_.tokens()) {
    sort_by_id(set.inputs.data<int32_t>() + begin, set.order.data<int32_t>() + begin);
  }
  stream_->copy(device_[slot], host);
  uploaded_[slot].record(*stream_);
}

// Sorts the positions of one micro-batch by token id with a counting sort. Positions of equal ids stay in ascending
// order.
void BatchBuffers::sort_by_id(const int32_t* ids, int32_t* order) {
  std::ranges::fill(counts_, 0);
  const int64_t tokens = shape_.tokens();
  for (int64_t t = 0; t < tokens; ++t) ++counts_[static_cast<size_t>(ids[t]) + 1];
  for (size_t id = 1; id < counts_.size(); ++id) counts_[id] += counts_[id - 1];
  for (int64_t t = 0; t < tokens; ++t) order[counts_[static_cast<size_t>(ids[t])]++] = static_cast<int32_t>(t);
}

void BatchBuffers::list_documents(const Batch& batch, const Tensor& documents) {
  auto& [list, begin] = lists_[current_];
  list.clear();
  begin.assign(1, 0);
  const auto tokens = static_cast<size_t>(shape_.tokens());
  for (size_t token = 0; token < batch.document_start.size(); token += tokens) {
    append_documents(std::span(batch.document_start).subspan(token, tokens), shape_.seq_len, list, shape_.context);
    write_documents(std::span(list).subspan(begin.back()), documents.data<int32_t>() + kNumbersOfDocument * token);
    begin.push_back(list.size());
  }
  double pairs = 0;
  for (const Document& d : list) {
    pairs += static_cast<double>(d.length) * (d.before + (static_cast<double>(d.length) + 1) / 2);
  }
  attended_tokens_ = pairs / static_cast<double>(batch.document_start.size());
}

MicroBatch BatchBuffers::micro_batch(int64_t i) const {
  const Set set = view(device_[current_]);
  const int64_t token = i * shape_.tokens();
  const auto slice = [&](const Tensor& t) { return t.rows(token, token + shape_.tokens()); };
  MicroBatch micro_batch{slice(set.inputs), slice(set.targets), slice(set.order), {}};
  if (const auto& [list, begin] = lists_[current_]; !list.empty()) {
    const auto first = static_cast<size_t>(i);
    Documents& documents = micro_batch.documents;
    documents.list = std::span(list).subspan(begin[first], begin[first + 1] - begin[first]);
    documents.device = set.documents.rows(token, token + documents.size());
  }
  return micro_batch;
}

}  // namespace octavo
