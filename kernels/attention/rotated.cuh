// The rotation of a pair of elements (kernels/attention/rope.h) on the device.
#pragma once

namespace octavo::cuda {

// Returns an element of a pair after the rotation: x * cosine + other * sine. `other` is the other element of the pair,
// negated for the first element of the pair. The operations are spelled out, so that every kernel rounds in the same
// way.
__device__ inline float rotated(float x, float other, float cosine, float sine) {
  return __fmaf_rn(other, sine, __fmul_rn(x, cosine));
}

}  // namespace octavo::cuda
