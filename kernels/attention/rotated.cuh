// The rotation of a pair of elements (kernels/attention/rope.h) on the device.
#pragma once

namespace octavo::cuda {

// Returns an element of a pair after the rotation: x * cosine + other * sine. `other` is the other element of the pair,
// with its sign turned for the first element. The operations are spelled out, so that every kernel rounds alike.
__device__ inline float rotated(float x, float other, float cosine, float sine) {
  return __fmaf_rn(other, sine, __fmul_rn(x, cosine));
}

}  // namespace octavo::cuda
