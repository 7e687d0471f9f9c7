// Dispatch of an op to the device of its stream. The function of an op checks its arguments, opens its OpTimer and ends
// with:
//
//   if (ran_elsewhere<cuda::rope>(args, stream)) return;
//   cpu::rope(args);
//
// The CUDA implementations of a folder are declared in its FOLDER_cuda.h. They are defined in .cu files, or in files
// named after the library that they call.
#pragma once

#include "build_config.h"
#include "core/stream.h"

namespace octavo {

// Runs kOp, the CUDA implementation of an op, if the stream is on a GPU. Returns whether the CPU has nothing to do,
// because kOp ran or because the OpTimer has recorded the op on a dry-run stream. A build without CUDA only declares
// the implementations and never calls them.
template <auto kOp, typename Args>
bool ran_elsewhere([[maybe_unused]] const Args& args, Stream& stream) {
  if (stream.is_planned()) return true;
  if constexpr (kHasCuda) {
    if (stream.is_cuda()) {
      kOp(args, stream);
      return true;
    }
  }
  return false;
}

}  // namespace octavo
