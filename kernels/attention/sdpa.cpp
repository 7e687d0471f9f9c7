#include "kernels/attention/sdpa.h"

#include <algorithm>

#include "build_config.h"
#include "core/error.h"
#include "core/profiler.h"
#include "kernels/attention/flash_attention.h"
#include "kernels/attention/padded_documents.h"
#include "kernels/attention/sdpa_cpu.h"

namespace octavo {

namespace cuda {
std::string cudnn_version();
void sdpa_forward(const SdpaForward& args, Stream& stream);
void sdpa_backward(const SdpaBackward& args, Stream& stream);
int64_t sdpa_workspace_bytes(const SdpaShape& shape, DType dtype, Stream& stream, bool within_documents);
}  // namespace cuda

namespace {

void check_documents(const SdpaShape& shape, const Documents& documents, const Stream& stream) {
  if (documents.empty()) return;
  int64_t tokens = 0;
  for (size_t i = 0; i < documents.list.size(); ++i) {
    const int64_t begin = documents.list[i].begin;
    const int64_t length = documents.list[i].length;
    const bool fits = begin >= 0 && length > 0 && begin % shape.seq_len + length <= shape.seq_len;
    CHECK(fits && (i == 0 || length <= documents.list[i - 1].length),
          "sdpa: document {} has {} tokens from token {}, expected some of a sequence of {}, and no more than the one "
          "before",
          i, length, begin, shape.seq_len);
    tokens += length;
  }
  CHECK(tokens == shape.batch * shape.seq_len, "sdpa: documents of {} tokens, expected all {}", tokens,
        shape.batch * shape.seq_len);
  if (stream.is_cuda())
    expect_tensor(documents.device, "sdpa documents", DType::kInt32, {documents.size(), kNumbersOfDocument});
}

void check_common(const SdpaShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& lse,
                  const Documents& documents, const Stream& stream) {
  const int64_t tokens = shape.batch * shape.seq_len;
  CHECK(shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0, "sdpa: {} query heads, {} kv heads",
        shape.num_heads, shape.num_kv_heads);
  expect_tensor(qkv, "sdpa qkv", qkv.dtype(), {tokens, shape.qkv_width()});
  expect_tensor(out, "sdpa out", qkv.dtype(), {tokens, shape.out_width()});
  expect_tensor(lse, "sdpa lse", DType::kFloat32, {shape.batch, shape.num_heads, shape.seq_len});
  check_documents(shape, documents, stream);
}

// Products of the causal half: q k^T and p v forward; five of them backward.
double causal_flops(const SdpaShape& shape, const Documents& documents, int products) {
  const auto square = [](int64_t length) { return static_cast<double>(length) * static_cast<double>(length); };
  double scores = 0;
  for (const Document& document : documents.list) scores += square(document.length);
  if (documents.empty()) scores = static_cast<double>(shape.batch) * square(shape.seq_len);
  return products * scores * static_cast<double>(shape.num_heads * shape.head_dim);
}

int64_t planned_workspace_bytes_within_documents(const SdpaShape& shape, DType dtype, bool deterministic) {
  int64_t bytes = 0;
  for (int64_t level = 0; level < num_padded_levels(shape); ++level) {
    const SdpaShape padded = padded_shape(shape, level);
    bytes = std::max(bytes, PaddedTensors(padded, dtype, nullptr).bytes +
                                sdpa_planned_workspace_bytes(padded, padded.seq_len, deterministic));
  }
  return bytes;
}

}  // namespace

void sdpa_forward(const SdpaForward& args, Stream& stream) {
  check_common(args.shape, args.qkv, args.out, args.lse, args.documents, stream);
  const OpTimer timer(stream, {.name = "sdpa_forward",
                               .flops = causal_flops(args.shape, args.documents, 2),
                               .bound = OpBound::kAttentionForward});
  if (timer.planned()) return;
  if constexpr (kHasCuda) {
    if (stream.is_cuda()) return cuda::sdpa_forward(args, stream);
  }
  cpu::sdpa_forward(args, stream);
}

void sdpa_backward(const SdpaBackward& args, Stream& stream) {
  check_common(args.shape, args.qkv, args.out, args.lse, args.documents, stream);
  expect_tensor(args.d_qkv, "sdpa_backward d_qkv", args.qkv.dtype(), {args.qkv.dim(0), args.qkv.dim(1)});
  expect_tensor(args.d_out, "sdpa_backward d_out", args.qkv.dtype(), {args.out.dim(0), args.out.dim(1)});
  const OpTimer timer(stream, {.name = "sdpa_backward",
                               .flops = causal_flops(args.shape, args.documents, 5),
                               .bound = OpBound::kAttentionBackward});
  if (timer.planned()) return;
  if constexpr (kHasCuda) {
    if (stream.is_cuda()) return cuda::sdpa_backward(args, stream);
  }
  cpu::sdpa_backward(args, stream);
}

int64_t sdpa_planned_workspace_bytes(const SdpaShape& shape, int64_t keys, bool deterministic) {
  const int64_t keys_per_sum = shape.head_dim > 64 ? 256 : 128;
  const int64_t rows = shape.batch * shape.num_heads * shape.seq_len;
  const int64_t sums = deterministic ? (keys + keys_per_sum - 1) / keys_per_sum + 1 : 1;
  const int64_t d_q_and_statistics = rows * (sums * shape.head_dim + 1) * dtype_bytes(DType::kFloat32);
  const bool grouped = shape.num_kv_heads < shape.num_heads;
  const int64_t of_every_head = 2 * shape.batch * shape.num_heads * keys * shape.head_dim;  // d_k and d_v
  return d_q_and_statistics + (grouped ? of_every_head * dtype_bytes(DType::kBFloat16) : 0);
}

int64_t sdpa_workspace_bytes(const SdpaShape& shape, DType dtype, Stream& stream, bool within_documents) {
  if (stream.is_planned() && stream.is_cuda() && within_documents) {
    return planned_workspace_bytes_within_documents(shape, dtype, stream.deterministic());
  }
  if (stream.is_planned() && flash_attends(shape)) return flash_workspace_bytes(shape, shape.seq_len);
  if (stream.is_planned()) return sdpa_planned_workspace_bytes(shape, shape.seq_len, stream.deterministic());
  if constexpr (kHasCuda) {
    if (stream.is_cuda()) return cuda::sdpa_workspace_bytes(shape, dtype, stream, within_documents);
  }
  return cpu::sdpa_workspace_bytes(shape, dtype);
}

void sdpa_check_supported(int64_t head_dim, DType dtype, Device device) {
  if (device == Device::kCpu) return;
  CHECK_INPUT(dtype == DType::kBFloat16,
              "precision.compute is {}, but attention on GPUs computes in bfloat16; set precision.compute: bfloat16",
              dtype_name(dtype));
  CHECK_INPUT(sdpa_has_kernels_for(head_dim),
              "model.head_dim is {}, but attention on GPUs has kernels for 32, 64 and 128", head_dim);
}

std::string cudnn_version() {
  if constexpr (kHasCuda) return cuda::cudnn_version();
  return "";
}

}  // namespace octavo
