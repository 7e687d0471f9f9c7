#include "kernels/attention/sdpa.h"

#include <bit>

#include "build_config.h"
#include "core/error.h"
#include "core/profiler.h"
#include "core/suggestions.h"
#include "core/workspace_parts.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/sdpa_cpu.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/flash_attention/flash_attention.h"
#include "kernels/flash_attention/flash_documents.h"

namespace octavo {

namespace {

// Checks that the runs of the documents contain every token of the micro-batch, in the order of the tokens, and that no
// run extends beyond its chunk of the sequence.
void check_documents(const SdpaShape& shape, const Documents& documents, const Stream& stream) {
  if (documents.empty()) return;
  const int64_t length = shape.chunk_length();
  int64_t end = 0;  // End of the documents checked so far.
  for (size_t i = 0; i < documents.list.size(); ++i) {
    const Document& run = documents.list[i];
    const bool follows = run.begin == end && run.length > 0 && run.before >= 0;
    const bool fits = follows && run.begin % length + run.length <= length &&
                      (run.before == 0 || run.begin % length == 0) &&
                      shape.first_key(run) >= run.begin / shape.seq_len * shape.whole_seq_len();
    CHECK(fits,
          "sdpa: document {} has {} tokens from token {} on and {} before them, expected a document that begins at "
          "token {} and lies in one chunk of {} tokens",
          i, run.length, run.begin, run.before, end, length);
    end += run.length;
  }
  const int64_t tokens = shape.batch * shape.seq_len;
  CHECK(end == tokens, "sdpa: the documents have {} tokens, expected all {}", end, tokens);
  if (stream.is_cuda())
    expect_tensor(documents.device, "sdpa documents", DType::kInt32, {documents.size(), kNumbersOfDocument});
}

void check(const SdpaForward& args, const Stream& stream) {
  const SdpaShape& s = args.shape;
  const int64_t chunks = s.context.chunks();
  const int64_t tokens = s.batch * s.seq_len;
  CHECK(s.num_kv_heads > 0 && s.num_heads % s.num_kv_heads == 0 && s.seq_len % chunks == 0,
        "sdpa: {} query heads for {} kv heads and {} tokens in {} chunks, expected multiples", s.num_heads,
        s.num_kv_heads, s.seq_len, chunks);
  const bool are_tiles = chunks == 1 || s.chunk_length() % kContextChunkUnit == 0;
  CHECK(!stream.is_cuda() || are_tiles || !args.documents.empty(),
        "sdpa: {} chunks of {} tokens each, expected a multiple of {} tokens on a GPU", chunks, s.chunk_length(),
        kContextChunkUnit);
  expect_tensor(args.qkv, "sdpa qkv", args.qkv.dtype(), {tokens, s.qkv_width()});
  if (s.context.size > 1) {
    expect_tensor(args.kv, "sdpa kv", args.qkv.dtype(), {tokens * s.context.size, s.kv_width()});
  }
  expect_tensor(args.out, "sdpa out", args.qkv.dtype(), {tokens, s.out_width()});
  expect_tensor(args.lse, "sdpa lse", DType::kFloat32, {chunks * s.batch, s.num_heads, s.chunk_length()});
  check_documents(s, args.documents, stream);
}

// Returns the FLOPs of `matmuls` matrix multiplications over the causal half of the scores. Forward has two (q k^T and
// p v), backward has five. The number of scores of a run is half the difference of the squares of the positions at its
// end and at its beginning.
double causal_flops(const SdpaShape& s, const Documents& documents, int matmuls) {
  const auto scores_of = [](int64_t length, int64_t before) {
    return static_cast<double>(length) * (2 * static_cast<double>(before) + static_cast<double>(length));
  };
  double scores = 0;
  for (const Document& run : documents.list) scores += scores_of(run.length, run.before);
  const int64_t length = s.chunk_length();
  for (int64_t i = 0; documents.empty() && i < s.context.chunks(); ++i) {
    scores += static_cast<double>(s.batch) * scores_of(length, s.context.chunk(i) * length);
  }
  return matmuls * scores * static_cast<double>(s.num_heads * s.head_dim);
}

// Returns the bytes of those tensors that exist: kv and d_kv exist only under context parallelism.
double bytes_of(std::initializer_list<Tensor> tensors) {
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.ndim() > 0 ? tensor.bytes() : 0;
  return static_cast<double>(bytes);
}

}  // namespace

void sdpa_forward(const SdpaForward& args, Stream& stream) {
  check(args, stream);
  const OpTimer timer(stream, {.name = "sdpa_forward",
                               .flops = causal_flops(args.shape, args.documents, 2),
                               .bytes = bytes_of({args.qkv, args.kv, args.out, args.lse}),
                               .bound = OpBound::kAttentionForward});
  if (ran_elsewhere<cuda::sdpa_forward>(args, stream)) return;
  cpu::sdpa_forward(args, stream);
}

void sdpa_backward(const SdpaBackward& args, Stream& stream) {
  check({.shape = args.shape,
         .out = args.out,
         .lse = args.lse,
         .qkv = args.qkv,
         .kv = args.kv,
         .documents = args.documents},
        stream);
  const DType dtype = args.qkv.dtype();
  expect_tensor(args.d_qkv, "sdpa_backward d_qkv", dtype, {args.qkv.dim(0), args.qkv.dim(1)});
  if (args.shape.context.size > 1) {
    expect_tensor(args.d_kv, "sdpa_backward d_kv", dtype, {args.kv.dim(0), args.kv.dim(1)});
  }
  expect_tensor(args.d_out, "sdpa_backward d_out", dtype, {args.out.dim(0), args.out.dim(1)});
  const OpTimer timer(stream,
                      {.name = "sdpa_backward",
                       .flops = causal_flops(args.shape, args.documents, 5),
                       .bytes = bytes_of({args.qkv, args.kv, args.out, args.lse, args.d_out, args.d_qkv, args.d_kv}),
                       .bound = OpBound::kAttentionBackward});
  if (ran_elsewhere<cuda::sdpa_backward>(args, stream)) return;
  cpu::sdpa_backward(args, stream);
}

int64_t sdpa_planned_workspace_bytes(const SdpaShape& shape, int64_t keys, bool deterministic) {
  const int64_t keys_per_sum = shape.head_dim == 128 ? 256 : shape.head_dim > 128 ? 64 : 128;
  const auto padded_head = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(shape.head_dim)));
  const int64_t rows = shape.batch * shape.num_heads * shape.seq_len;
  const int64_t sums = (keys + keys_per_sum - 1) / keys_per_sum + 1;
  const int64_t sums_of_row = deterministic ? sums * padded_head : shape.head_dim;
  const int64_t d_q_and_statistics = rows * (sums_of_row + 1) * dtype_bytes(DType::kFloat32);
  const bool grouped = shape.num_kv_heads < shape.num_heads;
  // Number of elements of d_k and d_v if every query head has its own.
  const int64_t of_every_head = 2 * shape.batch * shape.num_heads * keys * shape.head_dim;
  return d_q_and_statistics + (grouped ? of_every_head * dtype_bytes(DType::kBFloat16) : 0);
}

int64_t early_d_kv_bytes(const SdpaShape& shape, DType dtype) {
  if (shape.context.size == 1) return 0;
  WorkspaceParts parts(nullptr);
  parts.take(dtype, {shape.batch * shape.whole_seq_len() / 2, shape.kv_width()});
  return parts.bytes();
}

int64_t sdpa_workspace_bytes(const SdpaShape& shape, DType dtype, Stream& stream, bool within_documents) {
  if (stream.is_planned() && stream.is_cuda() && within_documents) return document_workspace_bytes(shape, dtype);
  if (stream.is_planned()) {
    const SdpaShape chunk = shape.chunk();
    const int64_t keys = shape.whole_seq_len();
    return early_d_kv_bytes(shape, dtype) + (flash_attends(chunk)
                                                 ? flash_workspace_bytes(chunk, keys)
                                                 : sdpa_planned_workspace_bytes(chunk, keys, stream.deterministic()));
  }
  if constexpr (kHasCuda) {
    if (stream.is_cuda()) return cuda::sdpa_workspace_bytes(shape, dtype, stream, within_documents);
  }
  return cpu::sdpa_workspace_bytes(shape, dtype);
}

std::string sdpa_error_without_plan(int64_t head_dim, const std::string& what, const std::string& reason,
                                    bool other_order) {
  return fmt::format(
      "model.head_dim is {}, but cuDNN {} has no {} for such heads on this GPU ({}); {}", head_dim, cudnn_version(),
      what, reason,
      other_order ? "set training.deterministic: false" : "use heads of 64 or 128, or another version of cuDNN");
}

void sdpa_check_supported(int64_t head_dim, DType dtype, Device device, bool within_documents) {
  if (device == Device::kCpu) return;
  CHECK_INPUT(dtype == DType::kBFloat16,
              "precision.compute is {}, but attention on GPUs computes in bfloat16; set precision.compute: bfloat16",
              dtype_name(dtype));
  CHECK_INPUT(sdpa_has_kernels_for(head_dim), "model.head_dim is {}, but attention on GPUs has kernels for {}",
              head_dim, one_of(kSdpaHeadSizes));
  if (!within_documents) return;
  CHECK_INPUT(kHasFlashAttention || !kHasCuda,
              "data.document_mask needs FlashAttention on GPUs, and this program was built without it; build it again "
              "after scripts/setup.sh, or set data.document_mask: false");
  CHECK_INPUT(flash_has_kernels_for(head_dim),
              "data.document_mask is true and model.head_dim is {}, but attention within documents has kernels on GPUs "
              "for 64 and 128; set data.document_mask: false",
              head_dim);
}

std::string cudnn_version() {
  if constexpr (kHasCuda) return cuda::cudnn_version();
  return "";
}

}  // namespace octavo
