#include "kernels/attention/sdpa_plans_cudnn.h"

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <cmath>
#include <vector>

#include "core/cuda_check.h"
#include "core/error.h"
#include "kernels/attention/sdpa.h"

namespace octavo::cuda {

struct SdpaPlan::Graph : cudnn_frontend::graph::Graph {};

SdpaPlan::SdpaPlan() : graph(std::make_unique<Graph>()) {}
SdpaPlan::~SdpaPlan() = default;

void* SdpaPlan::workspace(int64_t begin, const Stream& stream) const {
  if (workspace_bytes == 0) return nullptr;
  return static_cast<char*>(stream.workspace(begin + workspace_bytes)) + begin;
}

namespace {

namespace fe = cudnn_frontend;
using TensorAttributes = std::shared_ptr<fe::graph::Tensor_attributes>;

void check(cudnnStatus_t status, const char* what) {
  CHECK(status == CUDNN_STATUS_SUCCESS, "cuDNN: {} failed: {}", what, cudnnGetErrorString(status));
}

void check(fe::error_t status, const char* what, const SdpaShape& s) {
  CHECK(status.is_good(), "cuDNN: {} failed for batch {}, seq_len {}, {} query and {} key/value heads of {}: {}", what,
        s.batch, s.seq_len, s.num_heads, s.num_kv_heads, s.head_dim, status.get_message());
}

std::unique_ptr<SdpaPlan> make_plan() {
  auto plan = std::make_unique<SdpaPlan>();
  plan->graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  return plan;
}

// cuDNN's dimensions are {batch, heads, tokens, head_dim}. In memory, all heads of a token are adjacent.
std::vector<int64_t> dims(const SdpaGeometry& g, int64_t heads, int64_t tokens) {
  return {g.shape.batch, heads, tokens, g.shape.head_dim};
}
std::vector<int64_t> strides(const SdpaGeometry& g, const Strides& of) {
  return {of.sequence, g.shape.head_dim, of.token, 1};
}

fe::graph::Tensor_attributes head_tensor(SdpaTensor uid, const std::vector<int64_t>& dims,
                                         const std::vector<int64_t>& strides) {
  return fe::graph::Tensor_attributes().set_uid(uid).set_dim(dims).set_stride(strides);
}
fe::graph::Tensor_attributes query_tensor(SdpaTensor uid, const SdpaGeometry& g, const Strides& of) {
  return head_tensor(uid, dims(g, g.shape.num_heads, g.shape.seq_len), strides(g, of));
}
fe::graph::Tensor_attributes key_tensor(SdpaTensor uid, const SdpaGeometry& g) {
  return head_tensor(uid, dims(g, g.shape.num_kv_heads, g.keys), strides(g, g.kv));
}

void describe_lse(fe::graph::Tensor_attributes& lse, const SdpaShape& s) {
  lse.set_uid(kLse)
      .set_dim({s.batch, s.num_heads, s.seq_len, 1})
      .set_stride({s.num_heads * s.seq_len, s.seq_len, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}
fe::graph::Tensor_attributes lse_tensor(const SdpaShape& s) {
  fe::graph::Tensor_attributes lse;
  describe_lse(lse, s);
  return lse;
}

void make_query_output(const TensorAttributes& tensor, SdpaTensor uid, const SdpaGeometry& g, const Strides& of) {
  const std::vector<int64_t> dimensions = dims(g, g.shape.num_heads, g.shape.seq_len);
  tensor->set_output(true).set_uid(uid).set_dim(dimensions).set_stride(strides(g, of));
}
void make_key_output(const TensorAttributes& tensor, SdpaTensor uid, const SdpaGeometry& g) {
  const std::vector<int64_t> dimensions = dims(g, g.shape.num_kv_heads, g.keys);
  tensor->set_output(true).set_uid(uid).set_dim(dimensions).set_stride(strides(g, g.d_kv));
}

float attention_scale(const SdpaShape& s) { return 1.0f / std::sqrt(static_cast<float>(s.head_dim)); }

// Sets the causal mask. If the queries are the whole sequence, the mask is aligned at the first key. For a chunk the
// mask is aligned at the last key that its queries attend to.
template <typename Attributes>
void mask_future(Attributes& options, const SdpaGeometry& g) {
  const bool all = g.keys == g.shape.seq_len;
  options.set_diagonal_alignment(all ? fe::DiagonalAlignment_t::TOP_LEFT : fe::DiagonalAlignment_t::BOTTOM_RIGHT)
      .set_diagonal_band_right_bound(0);
}

// Returns why cuDNN has no plan for the graph. Empty if the plan was built. Throws if a call of CUDA failed.
std::string finish(SdpaPlan& plan, const SdpaShape& shape, const char* what, cudnnHandle_t handle) {
  fe::error_t built = plan.graph->build(handle, {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
  if (built.get_code() == fe::error_code_t::CUDA_API_FAILED) check(built, what, shape);
  if (built.is_bad()) return built.get_message();
  check(plan.graph->get_workspace_size(plan.workspace_bytes), what, shape);
  return {};
}

// Masks the tokens beyond the lengths of the sequences.
template <typename Attributes>
void take_lengths(Attributes& options, SdpaPlan& plan, const SdpaShape& s) {
  const auto lengths = [&](SdpaTensor uid) {
    return plan.graph->tensor(fe::graph::Tensor_attributes()
                                  .set_uid(uid)
                                  .set_dim({s.batch, 1, 1, 1})
                                  .set_stride({1, 1, 1, 1})
                                  .set_data_type(fe::DataType_t::INT32));
  };
  options.set_padding_mask(true).set_seq_len_q(lengths(kQueryLengths)).set_seq_len_kv(lengths(kKeyLengths));
}

std::unique_ptr<SdpaPlan> build_forward(const SdpaGeometry& g, cudnnHandle_t handle) {
  auto plan = make_plan();
  const SdpaShape& s = g.shape;
  const auto q = plan->graph->tensor(query_tensor(kQ, g, g.q));
  const auto k = plan->graph->tensor(key_tensor(kK, g));
  const auto v = plan->graph->tensor(key_tensor(kV, g));
  auto options =
      fe::graph::SDPA_attributes().set_name("sdpa_forward").set_generate_stats(true).set_attn_scale(attention_scale(s));
  mask_future(options, g);
  const auto [out, lse] = plan->graph->sdpa(q, k, v, options);
  make_query_output(out, kOut, g, g.out);
  describe_lse(lse->set_output(true), s);
  const std::string reason = finish(*plan, s, "building the attention forward", handle);
  CHECK_INPUT(reason.empty(), "{}", sdpa_error_without_plan(s.head_dim, "attention forward", reason, false));
  return plan;
}

// In a partial tile of 128 keys, cuDNN's backward scores the columns past the last key as 0 instead of minus infinity.
// The exponential of such a score overflows where a row's log-sum-exp is very negative, and d_q becomes NaN. Giving the
// length of each sequence masks those columns.
constexpr int64_t kTile = 128;

Buffer upload_full_lengths(const SdpaShape& s, Stream& stream) {
  const std::vector<int32_t> values(static_cast<size_t>(s.batch), static_cast<int32_t>(s.seq_len));
  Buffer lengths = Buffer::device(Device::kCuda, s.batch * dtype_bytes(DType::kInt32));
  stream.copy(lengths.data(), values.data(), lengths.bytes());
  stream.synchronize();
  return lengths;
}

// A plan, or why cuDNN has none.
struct Built {
  std::unique_ptr<SdpaPlan> plan;
  std::string reason;
};

Built try_backward(const SdpaGeometry& g, cudnnHandle_t handle, Stream& stream, bool deterministic) {
  auto plan = make_plan();
  const SdpaShape& s = g.shape;
  const auto q = plan->graph->tensor(query_tensor(kQ, g, g.q));
  const auto k = plan->graph->tensor(key_tensor(kK, g));
  const auto v = plan->graph->tensor(key_tensor(kV, g));
  const auto out = plan->graph->tensor(query_tensor(kOut, g, g.out));
  const auto d_out = plan->graph->tensor(query_tensor(kDOut, g, g.out));
  const auto lse = plan->graph->tensor(lse_tensor(s));
  auto options = fe::graph::SDPA_backward_attributes()
                     .set_name("sdpa_backward")
                     .set_attn_scale(attention_scale(s))
                     .set_deterministic_algorithm(deterministic);
  mask_future(options, g);
  if (g.keys % kTile != 0) {
    take_lengths(options, *plan, s);
    plan->lengths = upload_full_lengths(s, stream);
  }
  const auto [d_q, d_k, d_v] = plan->graph->sdpa_backward(q, k, v, out, d_out, lse, options);
  make_query_output(d_q, kDQ, g, g.q);
  make_key_output(d_k, kDK, g);
  make_key_output(d_v, kDV, g);
  std::string reason = finish(*plan, s, "building the attention backward", handle);
  return {std::move(plan), std::move(reason)};
}

std::unique_ptr<SdpaPlan> build_backward(const SdpaGeometry& g, cudnnHandle_t handle, Stream& stream) {
  const bool deterministic = stream.deterministic();
  Built built = try_backward(g, handle, stream, deterministic);
  if (built.reason.empty()) return std::move(built.plan);
  const bool other_order = deterministic && try_backward(g, handle, stream, false).reason.empty();
  throw InputError(sdpa_error_without_plan(g.shape.head_dim,
                                           deterministic ? "deterministic attention backward" : "attention backward",
                                           built.reason, other_order));
}

}  // namespace

SdpaPlans::SdpaPlans(Stream& stream) {
  cudnnHandle_t handle = nullptr;
  check(cudnnCreate(&handle), "cudnnCreate");
  handle_.reset(handle);
  check(cudnnSetStream(handle, static_cast<cudaStream_t>(stream.native())), "cudnnSetStream");
}

void SdpaPlans::Destroy::operator()(cudnnContext* handle) const { cudnnDestroy(handle); }

const SdpaPlan& SdpaPlans::forward(const SdpaGeometry& geometry) {
  auto& plan = plans_[{geometry, Pass::kForward}];
  if (!plan) plan = build_forward(geometry, handle_.get());
  return *plan;
}

const SdpaPlan& SdpaPlans::backward(const SdpaGeometry& geometry, Stream& stream) {
  const Pass pass = stream.deterministic() ? Pass::kDeterministicBackward : Pass::kBackward;
  auto& plan = plans_[{geometry, pass}];
  if (!plan) plan = build_backward(geometry, handle_.get(), stream);
  return *plan;
}

void SdpaPlans::execute(const SdpaPlan& plan, SdpaPointers& pointers, const SdpaShape& shape, void* workspace) const {
  if (plan.lengths.bytes() > 0) {
    pointers.insert({{kQueryLengths, plan.lengths.data()}, {kKeyLengths, plan.lengths.data()}});
  }
  check(plan.graph->execute(handle_.get(), pointers, workspace), "attention", shape);
}

std::string cudnn_version() {
  // cuDNN 9 and newer return 10000 * major + 100 * minor + patch.
  const size_t version = cudnnGetVersion();
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace octavo::cuda
