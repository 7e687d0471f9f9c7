// The dispatch of an op on its stream's device. The function of an op checks its arguments, opens its OpTimer and ends
// with
//
//   if (ran_on_cuda<cuda::rope>(args, stream)) return;
//   cpu::rope(args);
//
// The CUDA implementations of a folder are declared in its FOLDER_cuda.h and defined in .cu files, or in the files that
// are named after the library they call.
#pragma once

#include "build_config.h"
#include "core/stream.h"

namespace octavo {

// Runs kOp, the CUDA implementation of an op, if the stream is on a GPU. Returns whether it did. A build without CUDA
// has declarations of the implementations alone, and never calls them.
template <auto kOp, typename Args>
bool ran_on_cuda([[maybe_unused]] const Args& args, [[maybe_unused]] Stream& stream) {
  if constexpr (kHasCuda) {
    if (stream.is_cuda()) {
      kOp(args, stream);
      return true;
    }
  }
  return false;
}

}  // namespace octavo
