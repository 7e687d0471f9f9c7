#include "kernels/cuda/flat.cuh"
#include "kernels/math/cast.h"

namespace octavo::cuda {

namespace {

template <typename Out, typename In>
struct CastOp {
  Out* out;
  const In* x;

  template <int M>
  __device__ void operator()(int64_t i) const {
    float values[M];
    load_floats(x + i, values);
    store_floats(out + i, values);
  }
};

}  // namespace

void cast(const Cast& args, Stream& stream) {
  with_element(args.out.dtype(), [&]<typename Out>() {
    with_element(args.x.dtype(), [&]<typename In>() {
      const CastOp<Out, In> op{pointer<Out>(args.out), pointer<const In>(args.x)};
      launch_flat<8>("cast", op, args.x.numel(), stream, op.out, op.x);
    });
  });
}

}  // namespace octavo::cuda
