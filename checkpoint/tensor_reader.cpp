#include "checkpoint/tensor_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "core/files/mapped_file.h"

namespace octavo {
namespace {

constexpr int64_t kReadAheadBytes = int64_t{8} << 20;

// Copies with all threads of the rank, because one thread copies more slowly than good disks read.
void copy_bytes(char* out, const std::byte* source, int64_t bytes) {
  constexpr int64_t kBytesATime = int64_t{1} << 20;
#pragma omp parallel for if (bytes > 4 * kBytesATime)
  for (int64_t begin = 0; begin < bytes; begin += kBytesATime) {
    std::memcpy(out + begin, source + begin, static_cast<size_t>(std::min(kBytesATime, bytes - begin)));
  }
}

// Converts `count` elements of `dtype` at `source` (unaligned) to elements of `out`, of the same or another dtype.
void copy_elements(DType dtype, const std::byte* source, int64_t count, const Tensor& out, int64_t out_begin,
                   const std::string& where) {
  if (out.dtype() == dtype) {
    const int64_t size = dtype_bytes(dtype);
    return copy_bytes(static_cast<char*>(out.raw()) + out_begin * size, source, count * size);
  }
  if (out.dtype() == DType::kFloat32) {
    return convert_to_float32(safetensors_dtype(dtype), source, count, out.data<float>() + out_begin, where);
  }
  CHECK_INPUT(out.dtype() == DType::kBFloat16 && dtype == DType::kFloat32,
              "{} is stored as {}, which cannot be read as {}", where, dtype_name(dtype), dtype_name(out.dtype()));
  for (int64_t i = 0; i < count; ++i) {
    float value;
    std::memcpy(&value, source + i * static_cast<int64_t>(sizeof(float)), sizeof(float));
    out.data<BFloat16>()[out_begin + i] = BFloat16(value);
  }
}

}  // namespace

void PieceCheck::add_up_to(int64_t end) {
  if (!checksum_) checksum_ = std::make_unique<Checksum>();
  while (added_ < end) {
    if (added_ == read_ahead_) {
      read_ahead_ = std::min(added_ + kReadAheadBytes, std::ssize(bytes_));
      read_ahead(bytes_.subspan(static_cast<size_t>(added_), static_cast<size_t>(read_ahead_ - added_)));
    }
    const int64_t next = std::min(end, read_ahead_);
    checksum_->add(bytes_.data() + added_, next - added_);
    added_ = next;
  }
}

void PieceCheck::finish() {
  add_up_to(std::ssize(bytes_));
  const std::string checksum = std::exchange(checksum_, nullptr)->hex();
  CHECK_AS(DamagedCheckpoint, checksum == piece_->checksum,
           "{}: tensor {} is damaged: its checksum is {}, the manifest says {}", shard_, piece_->key, checksum,
           piece_->checksum);
}

void TensorReader::read(int64_t begin, int64_t end, const Tensor& out) {
  const TensorSlice wanted = checked_slice(where_, tensor_->shape, columns_, begin, end);
  CHECK(out.numel() == end - begin, "{}: elements {} to {} were requested into {}", where_, begin, end, out.describe());
  const int64_t size = dtype_bytes(tensor_->dtype);
  for (Source& source : sources_) {
    for_each_run(source.slice, wanted, [&](int64_t from, int64_t to, int64_t count) {
      if (!source.is_verified) source.check.add_up_to((from + count) * size);
      copy_elements(tensor_->dtype, source.check.bytes().data() + from * size, count, out, to, where_);
    });
  }
  try {
    check_finite(where_, tensor_->shape, columns_, begin, out);
  } catch (const InputError&) {
    if (!not_finite_) not_finite_ = std::current_exception();
  }
  if (end < end_) return;
  for (Source& source : sources_) {
    if (!source.is_verified) source.check.finish();
  }
  if (not_finite_) std::rethrow_exception(not_finite_);
}

}  // namespace octavo
