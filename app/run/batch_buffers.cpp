#include "app/run/batch_buffers.h"

#include <algorithm>

#include "core/error.h"

namespace octavo {

BatchBuffers::BatchBuffers(const BatchShape& shape, int64_t rows, int64_t vocab_size, bool document_mask, Arena& arena,
                           Stream& stream)
    : shape_(shape), rows_(rows), document_mask_(document_mask), stream_(&stream) {
  for (Tensor& set : device_)
    set = arena.allocate("token batch", DType::kInt32, {4, rows * shape.seq_len}, Lifetime::kStep);
  datasets_.assign(static_cast<size_t>(rows), 0);
  if (arena.planning()) return;
  for (Buffer& buffer : host_) buffer = Buffer::host(stream.device(), device_[0].bytes());
  counts_.resize(static_cast<size_t>(vocab_size) + 1);
  for (int i = 0; i < 2; ++i) uploaded_.emplace_back(stream.device());
}

BatchBuffers::Set BatchBuffers::view(const Tensor& memory) const {
  const auto row = [&](int64_t i) { return memory.rows(i, i + 1).view({memory.dim(1)}); };
  return {row(0), row(1), row(2), row(3)};
}

void BatchBuffers::upload(const Batch& batch) {
  const int64_t tokens = rows_ * shape_.seq_len;
  CHECK(static_cast<int64_t>(batch.inputs.size()) == tokens, "a batch of {} tokens, room for {}", batch.inputs.size(),
        tokens);
  current_ = 1 - current_;
  if (!batch.dataset.empty()) datasets_ = batch.dataset;
  const auto slot = static_cast<size_t>(current_);
  uploaded_[slot].synchronize();  // this host memory was last read two batches ago
  const Tensor host(host_[slot].data(), DType::kInt32, {4, tokens});
  const Set set = view(host);
  std::copy(batch.inputs.begin(), batch.inputs.end(), set.inputs.data<int32_t>());
  std::copy(batch.targets.begin(), batch.targets.end(), set.targets.data<int32_t>());
  std::copy(batch.document_start.begin(), batch.document_start.end(), set.document_start.data<int32_t>());
  for (int64_t begin = 0; begin < tokens; begin += shape_.tokens()) {
    sort_by_id(set.inputs.data<int32_t>() + begin, set.order.data<int32_t>() + begin);
  }
  stream_->copy(device_[slot], host);
  uploaded_[slot].record(*stream_);
}

// Counting sort of one micro-batch: positions by id, equal ids in rising order.
void BatchBuffers::sort_by_id(const int32_t* ids, int32_t* order) {
  std::fill(counts_.begin(), counts_.end(), 0);
  const int64_t tokens = shape_.tokens();
  for (int64_t t = 0; t < tokens; ++t) ++counts_[static_cast<size_t>(ids[t]) + 1];
  for (size_t id = 1; id < counts_.size(); ++id) counts_[id] += counts_[id - 1];
  for (int64_t t = 0; t < tokens; ++t) order[counts_[static_cast<size_t>(ids[t])]++] = static_cast<int32_t>(t);
}

MicroBatch BatchBuffers::micro_batch(int64_t i) const {
  const Set set = view(device_[current_]);
  const int64_t begin = i * shape_.tokens();
  const auto slice = [&](const Tensor& t) { return t.rows(begin, begin + shape_.tokens()); };
  return {slice(set.inputs), slice(set.targets), slice(set.order),
          document_mask_ ? slice(set.document_start) : Tensor()};
}

}  // namespace octavo
