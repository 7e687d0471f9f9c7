#include "build_config.h"
#include "kernels/attention/attend.h"
#include "kernels/attention/sdpa_plans_cudnn.h"
#include "kernels/flash_attention/flash_attention.h"

namespace octavo::cuda {

namespace {

bool is_flash(const SdpaGeometry& geometry, SdpaLengths lengths) {
  return lengths == SdpaLengths::kFull && flash_attends(geometry.shape);
}

void execute(const SdpaPlan& plan, const SdpaGeometry& geometry, SdpaPointers& pointers, int64_t begin,
             Stream& stream) {
  if (plan.lengths.bytes() > 0) {
    pointers.insert({{kQueryLengths, plan.lengths.data()}, {kKeyLengths, plan.lengths.data()}});
  }
  stream.state<SdpaPlans>().execute(plan, pointers, geometry.shape, plan.workspace(begin, stream));
}

}  // namespace

void attend_forward(const SdpaGeometry& geometry, SdpaLengths lengths, SdpaPointers pointers, int64_t begin,
                    Stream& stream) {
  if constexpr (kHasFlashAttention) {
    if (is_flash(geometry, lengths)) return flash_forward(geometry, pointers, begin, stream);
  }
  execute(stream.state<SdpaPlans>().forward(geometry, lengths), geometry, pointers, begin, stream);
}

void attend_backward(const SdpaGeometry& geometry, SdpaLengths lengths, SdpaPointers pointers, int64_t begin,
                     Stream& stream) {
  if constexpr (kHasFlashAttention) {
    if (is_flash(geometry, lengths)) return flash_backward(geometry, pointers, begin, stream);
  }
  execute(stream.state<SdpaPlans>().backward(geometry, lengths, stream), geometry, pointers, begin, stream);
}

int64_t attend_forward_workspace_bytes(const SdpaGeometry& geometry, SdpaLengths lengths, Stream& stream) {
  if (is_flash(geometry, lengths)) return FlashForwardTensors(nullptr).bytes;
  return stream.state<SdpaPlans>().forward(geometry, lengths).workspace_bytes;
}

int64_t attend_backward_workspace_bytes(const SdpaGeometry& geometry, SdpaLengths lengths, Stream& stream) {
  if (is_flash(geometry, lengths)) {
    return FlashBackwardTensors(geometry.shape, flash_backward_size(geometry.shape, geometry.keys), nullptr).bytes;
  }
  if (geometry.shape.seq_len == 1) return 0;  // cuDNN has no backward for a single token.
  return stream.state<SdpaPlans>().backward(geometry, lengths, stream).workspace_bytes;
}

}  // namespace octavo::cuda
