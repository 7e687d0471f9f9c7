// Attention by cuDNN through its C++ frontend. A graph describes q, k and v as strided views into the packed qkv
// buffer, so nothing is copied; its plan is built once a shape and kept with the stream. Documents are copied into
// batches of sequences of equal length, with padding that cuDNN is told of (kernels/padded_documents.h). Of a rank that
// shares its sequences (kernels/context_sdpa.h), each piece of queries is a graph of its own, over the keys up to its
// end.
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/arena.h"
#include "core/cuda_check.h"
#include "core/error.h"
#include "kernels/context_sdpa.h"
#include "kernels/padded_documents.h"
#include "kernels/sum_terms.h"

namespace octavo::cuda {

namespace {

namespace fe = cudnn_frontend;
using TensorAttributes = std::shared_ptr<fe::graph::Tensor_attributes>;
using Pointers = std::unordered_map<int64_t, void*>;

void check(cudnnStatus_t status, const char* what) {
  CHECK(status == CUDNN_STATUS_SUCCESS, "cuDNN: {} failed: {}", what, cudnnGetErrorString(status));
}

void check(fe::error_t status, const char* what, const SdpaShape& s) {
  CHECK(status.is_good(), "cuDNN: {} failed for batch {}, seq_len {}, {} query and {} key/value heads of {}: {}", what,
        s.batch, s.seq_len, s.num_heads, s.num_kv_heads, s.head_dim, status.get_message());
}

// Names of a graph's tensors.
enum Uid : int64_t { kQ = 1, kK, kV, kOut, kLse, kDOut, kDQ, kDK, kDV, kQueryLengths, kKeyLengths };

enum class Pass : uint8_t { kForward, kBackward, kDeterministicBackward };

// How far apart, in elements, sequences and the tokens of one lie.
struct Strides {
  int64_t sequence = 0;
  int64_t token = 0;
  auto operator<=>(const Strides&) const = default;
};

// What a graph is of. shape.seq_len counts queries; those of a piece see `keys` keys, of which the last are their own.
struct Geometry {
  SdpaShape shape;
  int64_t keys = 0;
  Strides q, kv, out;  // of the gradients as of the tensors, but for d_kv
  Strides d_kv;

  auto order() const {
    return std::tuple(shape.batch, shape.seq_len, shape.num_heads, shape.num_kv_heads, shape.head_dim, keys, q, kv, out,
                      d_kv);
  }
};

// Of the packed qkv buffer: a query sees its own sequence.
Geometry packed_geometry(const SdpaShape& s) {
  const Strides qkv{s.seq_len * s.qkv_width(), s.qkv_width()};
  return {.shape = s,
          .keys = s.seq_len,
          .q = qkv,
          .kv = qkv,
          .out = {s.seq_len * s.out_width(), s.out_width()},
          .d_kv = qkv};
}

// What a plan is for: sequences of which all are as long as the geometry says, or with padding behind them.
struct PlanKey {
  Geometry geometry;
  Pass pass;
  bool padded;

  auto order() const { return std::tuple(geometry.order(), pass, padded); }
  bool operator<(const PlanKey& other) const { return order() < other.order(); }
};

struct Plan {
  fe::graph::Graph graph;
  int64_t workspace_bytes = 0;
  bool takes_lengths = false;  // of the sequences, [batch] int32
  Buffer lengths;              // those that it takes where no sequence has padding
};

fe::graph::Graph make_graph() {
  fe::graph::Graph graph;
  graph.set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  return graph;
}

// cuDNN's dimensions are always {batch, heads, tokens, head_dim}; a row of a token holds all its heads.
std::vector<int64_t> dims(const Geometry& g, int64_t heads, int64_t tokens) {
  return {g.shape.batch, heads, tokens, g.shape.head_dim};
}
std::vector<int64_t> strides(const Geometry& g, const Strides& of) {
  return {of.sequence, g.shape.head_dim, of.token, 1};
}

fe::graph::Tensor_attributes head_tensor(Uid uid, const std::vector<int64_t>& dims,
                                         const std::vector<int64_t>& strides) {
  return fe::graph::Tensor_attributes().set_uid(uid).set_dim(dims).set_stride(strides);
}
fe::graph::Tensor_attributes query_tensor(Uid uid, const Geometry& g, const Strides& of) {
  return head_tensor(uid, dims(g, g.shape.num_heads, g.shape.seq_len), strides(g, of));
}
fe::graph::Tensor_attributes key_tensor(Uid uid, const Geometry& g) {
  return head_tensor(uid, dims(g, g.shape.num_kv_heads, g.keys), strides(g, g.kv));
}

fe::graph::Tensor_attributes lse_tensor(const SdpaShape& s) {
  return fe::graph::Tensor_attributes()
      .set_uid(kLse)
      .set_dim({s.batch, s.num_heads, s.seq_len, 1})
      .set_stride({s.num_heads * s.seq_len, s.seq_len, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}

void make_query_output(const TensorAttributes& tensor, Uid uid, const Geometry& g, const Strides& of) {
  const std::vector<int64_t> dimensions = dims(g, g.shape.num_heads, g.shape.seq_len);
  tensor->set_output(true).set_uid(uid).set_dim(dimensions).set_stride(strides(g, of));
}
void make_key_output(const TensorAttributes& tensor, Uid uid, const Geometry& g) {
  const std::vector<int64_t> dimensions = dims(g, g.shape.num_kv_heads, g.keys);
  tensor->set_output(true).set_uid(uid).set_dim(dimensions).set_stride(strides(g, g.d_kv));
}

float attention_scale(const SdpaShape& s) { return 1.0f / std::sqrt(static_cast<float>(s.head_dim)); }

// Queries that are all of the sequence begin with its first key, those of a piece end with the last one they see.
template <typename Attributes>
void mask_future(Attributes& options, const Geometry& g) {
  const bool all = g.keys == g.shape.seq_len;
  options.set_diagonal_alignment(all ? fe::DiagonalAlignment_t::TOP_LEFT : fe::DiagonalAlignment_t::BOTTOM_RIGHT)
      .set_diagonal_band_right_bound(0);
}

void finish(Plan& plan, const SdpaShape& shape, const char* what, cudnnHandle_t handle) {
  check(plan.graph.build(handle, {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}), what, shape);
  check(plan.graph.get_workspace_size(plan.workspace_bytes), what, shape);
}

// Masks what lies behind the lengths of the sequences.
template <typename Attributes>
void take_lengths(Attributes& options, Plan& plan, const SdpaShape& s) {
  const auto lengths = [&](Uid uid) {
    return plan.graph.tensor(fe::graph::Tensor_attributes()
                                 .set_uid(uid)
                                 .set_dim({s.batch, 1, 1, 1})
                                 .set_stride({1, 1, 1, 1})
                                 .set_data_type(fe::DataType_t::INT32));
  };
  options.set_padding_mask(true).set_seq_len_q(lengths(kQueryLengths)).set_seq_len_kv(lengths(kKeyLengths));
  plan.takes_lengths = true;
}

std::unique_ptr<Plan> build_forward(const Geometry& g, bool padded, cudnnHandle_t handle) {
  auto plan = std::make_unique<Plan>(Plan{.graph = make_graph(), .lengths = {}});
  const SdpaShape& s = g.shape;
  const auto q = plan->graph.tensor(query_tensor(kQ, g, g.q));
  const auto k = plan->graph.tensor(key_tensor(kK, g));
  const auto v = plan->graph.tensor(key_tensor(kV, g));
  auto options =
      fe::graph::SDPA_attributes().set_name("sdpa_forward").set_generate_stats(true).set_attn_scale(attention_scale(s));
  mask_future(options, g);
  if (padded) take_lengths(options, *plan, s);
  const auto [out, lse] = plan->graph.sdpa(q, k, v, options);
  make_query_output(out, kOut, g, g.out);
  lse->set_output(true)
      .set_uid(kLse)
      .set_dim({s.batch, s.num_heads, s.seq_len, 1})
      .set_stride({s.num_heads * s.seq_len, s.seq_len, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
  finish(*plan, s, "building the attention forward", handle);
  return plan;
}

// cuDNN's backward scores the columns past the last key of a partial tile of 128 as 0 instead of minus infinity, which
// overflows where a row's log-sum-exp is very negative (NaN in d_q). Saying how long each sequence is masks them.
constexpr int64_t kTile = 128;

Buffer upload_full_lengths(const SdpaShape& s, Stream& stream) {
  const std::vector<int32_t> values(static_cast<size_t>(s.batch), static_cast<int32_t>(s.seq_len));
  Buffer lengths = Buffer::device(Device::kCuda, s.batch * dtype_bytes(DType::kInt32));
  stream.copy(lengths.data(), values.data(), lengths.bytes());
  stream.synchronize();
  return lengths;
}

std::unique_ptr<Plan> build_backward(const Geometry& g, bool padded, cudnnHandle_t handle, Stream& stream) {
  auto plan = std::make_unique<Plan>(Plan{.graph = make_graph(), .lengths = {}});
  const SdpaShape& s = g.shape;
  const auto q = plan->graph.tensor(query_tensor(kQ, g, g.q));
  const auto k = plan->graph.tensor(key_tensor(kK, g));
  const auto v = plan->graph.tensor(key_tensor(kV, g));
  const auto out = plan->graph.tensor(query_tensor(kOut, g, g.out));
  const auto d_out = plan->graph.tensor(query_tensor(kDOut, g, g.out));
  const auto lse = plan->graph.tensor(lse_tensor(s));
  auto options = fe::graph::SDPA_backward_attributes()
                     .set_name("sdpa_backward")
                     .set_attn_scale(attention_scale(s))
                     .set_deterministic_algorithm(stream.deterministic());
  mask_future(options, g);
  if (padded || g.keys % kTile != 0) take_lengths(options, *plan, s);
  if (plan->takes_lengths && !padded) plan->lengths = upload_full_lengths(s, stream);
  const auto [d_q, d_k, d_v] = plan->graph.sdpa_backward(q, k, v, out, d_out, lse, options);
  make_query_output(d_q, kDQ, g, g.q);
  make_key_output(d_k, kDK, g);
  make_key_output(d_v, kDV, g);
  finish(*plan, s, "building the attention backward", handle);
  return plan;
}

class CudnnState {
 public:
  explicit CudnnState(Stream& stream) {
    cudnnHandle_t handle = nullptr;
    check(cudnnCreate(&handle), "cudnnCreate");
    handle_.reset(handle);
    check(cudnnSetStream(handle, static_cast<cudaStream_t>(stream.native())), "cudnnSetStream");
  }

  Plan& forward(const Geometry& geometry, bool padded) {
    auto& plan = plans_[{geometry, Pass::kForward, padded}];
    if (!plan) plan = build_forward(geometry, padded, handle_.get());
    return *plan;
  }

  Plan& backward(const Geometry& geometry, bool padded, Stream& stream) {
    const Pass pass = stream.deterministic() ? Pass::kDeterministicBackward : Pass::kBackward;
    auto& plan = plans_[{geometry, pass, padded}];
    if (!plan) plan = build_backward(geometry, padded, handle_.get(), stream);
    return *plan;
  }

  void execute(const Plan& plan, Pointers& pointers, const SdpaShape& shape, void* workspace) const {
    check(plan.graph.execute(handle_.get(), pointers, workspace), "attention", shape);
  }

 private:
  struct Destroy {
    void operator()(cudnnHandle_t handle) const { cudnnDestroy(handle); }
  };
  std::unique_ptr<std::remove_pointer_t<cudnnHandle_t>, Destroy> handle_;
  std::map<PlanKey, std::unique_ptr<Plan>> plans_;
};

// Where the first query, key and value head of a packed buffer lie.
struct Heads {
  BFloat16* q;
  BFloat16* k;
  BFloat16* v;
  Heads(const Tensor& packed, const SdpaShape& s)
      : q(packed.data<BFloat16>()), k(q + s.num_heads * s.head_dim), v(k + s.num_kv_heads * s.head_dim) {}
};

// Sequences of one length, or with `lengths` on the device of what each has before its padding.
struct Sequences {
  void* lengths = nullptr;
  int64_t workspace_begin = 0;  // bytes of the workspace that are in use
};

void* workspace_of(const Plan& plan, const Sequences& sequences, const Stream& stream) {
  if (plan.workspace_bytes == 0) return nullptr;
  return static_cast<char*>(stream.workspace(sequences.workspace_begin + plan.workspace_bytes)) +
         sequences.workspace_begin;
}

void forward(const SdpaForward& args, const Sequences& sequences, Stream& stream) {
  auto& state = stream.state<CudnnState>();
  const Plan& plan = state.forward(packed_geometry(args.shape), sequences.lengths != nullptr);
  const Heads qkv(args.qkv, args.shape);
  Pointers pointers{{kQ, qkv.q}, {kK, qkv.k}, {kV, qkv.v}, {kOut, args.out.raw()}, {kLse, args.lse.raw()}};
  if (plan.takes_lengths) {
    pointers.emplace(kQueryLengths, sequences.lengths);
    pointers.emplace(kKeyLengths, sequences.lengths);
  }
  state.execute(plan, pointers, args.shape, workspace_of(plan, sequences, stream));
}

void backward(const SdpaBackward& args, const Sequences& sequences, Stream& stream) {
  auto& state = stream.state<CudnnState>();
  const Plan& plan = state.backward(packed_geometry(args.shape), sequences.lengths != nullptr, stream);
  const Heads qkv(args.qkv, args.shape);
  const Heads d_qkv(args.d_qkv, args.shape);
  Pointers pointers{{kQ, qkv.q},
                    {kK, qkv.k},
                    {kV, qkv.v},
                    {kOut, args.out.raw()},
                    {kLse, args.lse.raw()},
                    {kDOut, args.d_out.raw()},
                    {kDQ, d_qkv.q},
                    {kDK, d_qkv.k},
                    {kDV, d_qkv.v}};
  if (plan.takes_lengths) {
    void* lengths = sequences.lengths != nullptr ? sequences.lengths : plan.lengths.data();
    pointers.emplace(kQueryLengths, lengths);
    pointers.emplace(kKeyLengths, lengths);
  }
  state.execute(plan, pointers, args.shape, workspace_of(plan, sequences, stream));
}

// Calls run(shape, tensors, documents) for each batch of documents, behind which cuDNN may use the workspace.
template <typename Run>
void for_padded_batches(const Documents& documents, const SdpaShape& shape, const Tensor& qkv, Stream& stream,
                        Run run) {
  for (int64_t first = 0; first < documents.size();) {
    const PaddedBatch batch = padded_batch(documents, first, shape);
    const int64_t bytes = PaddedTensors(batch.shape, qkv.dtype(), nullptr).bytes;
    const PaddedTensors padded(batch.shape, qkv.dtype(), stream.workspace(bytes));
    const Tensor list = documents.device.rows(first, first + batch.count);
    padded_lengths(padded.lengths, list, stream);
    pad_rows(padded.qkv, qkv, list, batch.shape.seq_len, stream);
    run(batch.shape, padded, list);
    first += batch.count;
  }
}

void forward_within_documents(const SdpaForward& args, Stream& stream) {
  for_padded_batches(args.documents, args.shape, args.qkv, stream,
                     [&](const SdpaShape& shape, const PaddedTensors& padded, const Tensor& list) {
                       forward(
                           {.shape = shape, .out = padded.out, .lse = padded.lse, .qkv = padded.qkv, .documents = {}},
                           {padded.lengths.raw(), padded.bytes}, stream);
                       unpad_rows(args.out, padded.out, list, shape.seq_len, stream);
                       unpad_lse(args.lse, padded.lse, list, stream);
                     });
}

void backward_within_documents(const SdpaBackward& args, Stream& stream) {
  for_padded_batches(args.documents, args.shape, args.qkv, stream,
                     [&](const SdpaShape& shape, const PaddedTensors& padded, const Tensor& list) {
                       pad_rows(padded.out, args.out, list, shape.seq_len, stream);
                       pad_rows(padded.d_out, args.d_out, list, shape.seq_len, stream);
                       pad_lse(padded.lse, args.lse, list, stream);
                       backward({.shape = shape,
                                 .d_qkv = padded.d_qkv,
                                 .d_out = padded.d_out,
                                 .out = padded.out,
                                 .lse = padded.lse,
                                 .qkv = padded.qkv,
                                 .documents = {}},
                                {padded.lengths.raw(), padded.bytes}, stream);
                       unpad_rows(args.d_qkv, padded.d_qkv, list, shape.seq_len, stream);
                     });
}

int64_t plans_workspace_bytes(const SdpaShape& shape, bool padded, Stream& stream) {
  auto& state = stream.state<CudnnState>();
  const int64_t forward_bytes = state.forward(packed_geometry(shape), padded).workspace_bytes;
  if (shape.seq_len == 1) return forward_bytes;  // cuDNN has no backward for a single token
  return std::max(forward_bytes, state.backward(packed_geometry(shape), padded, stream).workspace_bytes);
}

// One of a rank's pieces of each sequence.
struct Piece {
  Piece(const ContextSdpaShape& of, int64_t i) : shape(of), first_token(i * length()), index(i) {}

  int64_t length() const { return shape.queries.seq_len / shape.context.pieces(); }
  int64_t keys() const { return (shape.context.piece(index) + 1) * length(); }
  // `d_kv_tokens` a sequence in the gradient of the keys.
  Geometry geometry(int64_t d_kv_tokens) const {
    const SdpaShape& q = shape.queries;
    SdpaShape piece = q;
    piece.seq_len = length();
    return {.shape = piece,
            .keys = keys(),
            .q = {q.seq_len * q.qkv_width(), q.qkv_width()},
            .kv = {shape.whole_seq_len() * shape.kv_width(), shape.kv_width()},
            .out = {q.seq_len * q.out_width(), q.out_width()},
            .d_kv = {d_kv_tokens * shape.kv_width(), shape.kv_width()}};
  }
  BFloat16* rows(const Tensor& tensor) const { return tensor.data<BFloat16>() + first_token * tensor.dim(1); }
  float* rows_of_lse(const Tensor& lse) const {
    const SdpaShape& q = shape.queries;
    return lse.data<float>() + index * q.batch * q.num_heads * length();
  }
  BFloat16* values(BFloat16* keys) const { return keys + shape.kv_width() / 2; }

  ContextSdpaShape shape;
  int64_t first_token;  // of the rank's share of a sequence
  int64_t index;
};

void forward(const ContextSdpaForward& args, const Piece& piece, Stream& stream) {
  auto& state = stream.state<CudnnState>();
  const Geometry geometry = piece.geometry(args.shape.whole_seq_len());
  const Plan& plan = state.forward(geometry, false);
  auto* keys = args.kv.data<BFloat16>();
  Pointers pointers{{kQ, piece.rows(args.qkv)},
                    {kK, keys},
                    {kV, piece.values(keys)},
                    {kOut, piece.rows(args.out)},
                    {kLse, piece.rows_of_lse(args.lse)}};
  state.execute(plan, pointers, geometry.shape, workspace_of(plan, {}, stream));
}

// d_kv: `d_kv_tokens` of each sequence, of which those that the piece sees are written.
void backward(const ContextSdpaBackward& args, const Piece& piece, BFloat16* d_kv, int64_t d_kv_tokens,
              Stream& stream) {
  auto& state = stream.state<CudnnState>();
  const Geometry geometry = piece.geometry(d_kv_tokens);
  const Plan& plan = state.backward(geometry, false, stream);
  auto* keys = args.kv.data<BFloat16>();
  Pointers pointers{{kQ, piece.rows(args.qkv)},
                    {kK, keys},
                    {kV, piece.values(keys)},
                    {kOut, piece.rows(args.out)},
                    {kLse, piece.rows_of_lse(args.lse)},
                    {kDOut, piece.rows(args.d_out)},
                    {kDQ, piece.rows(args.d_qkv)},
                    {kDK, d_kv},
                    {kDV, piece.values(d_kv)}};
  const Sequences behind{.workspace_begin = early_d_kv_bytes(args.shape, args.qkv.dtype())};
  state.execute(plan, pointers, geometry.shape, workspace_of(plan, behind, stream));
}

int64_t piece_workspace_bytes(const Piece& piece, Stream& stream) {
  auto& state = stream.state<CudnnState>();
  const int64_t whole = piece.shape.whole_seq_len();
  const int64_t d_kv_tokens = piece.index == 0 ? whole / 2 : whole;
  return std::max(state.forward(piece.geometry(whole), false).workspace_bytes,
                  state.backward(piece.geometry(d_kv_tokens), false, stream).workspace_bytes);
}

}  // namespace

void sdpa_forward(const SdpaForward& args, Stream& stream) {
  sdpa_check_supported(args.shape.head_dim, args.qkv.dtype(), Device::kCuda);
  if (!args.documents.empty()) return forward_within_documents(args, stream);
  forward(args, {}, stream);
}

void sdpa_backward(const SdpaBackward& args, Stream& stream) {
  sdpa_check_supported(args.shape.head_dim, args.qkv.dtype(), Device::kCuda);
  if (!args.documents.empty()) return backward_within_documents(args, stream);
  backward(args, {}, stream);
}

int64_t sdpa_workspace_bytes(const SdpaShape& shape, DType dtype, Stream& stream, bool within_documents) {
  sdpa_check_supported(shape.head_dim, dtype, Device::kCuda);
  if (!within_documents) return plans_workspace_bytes(shape, false, stream);
  int64_t bytes = 0;
  for (int64_t level = 0; level < num_padded_levels(shape); ++level) {
    const SdpaShape padded = padded_shape(shape, level);
    bytes = std::max(bytes, PaddedTensors(padded, dtype, nullptr).bytes + plans_workspace_bytes(padded, true, stream));
  }
  return bytes;
}

void context_sdpa_forward(const ContextSdpaForward& args, Stream& stream) {
  sdpa_check_supported(args.shape.queries.head_dim, args.qkv.dtype(), Device::kCuda);
  for (int64_t i = 0; i < args.shape.context.pieces(); ++i) forward(args, Piece(args.shape, i), stream);
}

// The late piece sees all keys that the early one does, so it goes first and writes their gradients; those of the early
// one are added. No query of the rank sees the keys behind the late piece.
void context_sdpa_backward(const ContextSdpaBackward& args, Stream& stream) {
  sdpa_check_supported(args.shape.queries.head_dim, args.qkv.dtype(), Device::kCuda);
  const int64_t whole = args.shape.whole_seq_len();
  const Piece early(args.shape, 0);
  const Piece late(args.shape, 1);
  const SdpaShape& q = args.shape.queries;
  const auto rows_of = [&](const Tensor& d_kv, int64_t tokens, int64_t sequence, int64_t begin, int64_t end) {
    return d_kv.rows(sequence * tokens + begin, sequence * tokens + end).view({(end - begin) * args.shape.kv_width()});
  };
  backward(args, late, args.d_kv.data<BFloat16>(), whole, stream);
  const Tensor early_d_kv(stream.workspace(early_d_kv_bytes(args.shape, args.qkv.dtype())), args.qkv.dtype(),
                          {q.batch * whole / 2, args.shape.kv_width()});
  backward(args, early, early_d_kv.data<BFloat16>(), whole / 2, stream);
  for (int64_t b = 0; b < q.batch; ++b) {
    stream.zero(rows_of(args.d_kv, whole, b, late.keys(), whole));
    sum_terms({.out = rows_of(args.d_kv, whole, b, 0, early.keys()),
               .terms = rows_of(early_d_kv, whole / 2, b, 0, early.keys()),
               .accumulate = true},
              stream);
  }
}

// Queries that see all keys, rank 0's last ones, take the most: so every rank has the same size.
int64_t context_sdpa_workspace_bytes(const ContextSdpaShape& shape, DType dtype, Stream& stream) {
  sdpa_check_supported(shape.queries.head_dim, dtype, Device::kCuda);
  ContextSdpaShape first = shape;
  first.context.rank = 0;
  int64_t bytes = piece_workspace_bytes(Piece(first, 1), stream);
  for (int64_t i = 0; i < shape.context.pieces(); ++i) {
    bytes = std::max(bytes, piece_workspace_bytes(Piece(shape, i), stream));
  }
  return early_d_kv_bytes(shape, dtype) + bytes;
}

std::string cudnn_version() {
  const size_t version = cudnnGetVersion();  // of cuDNN 9 and newer: 10000 * major + 100 * minor + patch
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace octavo::cuda
