#include "parallel/communicator.h"

#include "build_config.h"
#include "core/error.h"
#include "core/profiler.h"
#include "parallel/communicator_backends.h"

namespace octavo {

namespace {

void check_apart(const Collective& call, const Tensor& out, const Tensor& in) {
  const char* from = static_cast<const char*>(in.raw());
  const char* to = static_cast<const char*>(out.raw());
  CHECK(to + out.bytes() <= from || from + in.bytes() <= to, "{}: the two tensors overlap", call.describe());
}

void check_sum_dtype(const Collective& call, DType dtype) {
  CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16, "{}: the dtype is {}, expected float32 or bfloat16",
        call.describe(), dtype_name(dtype));
}

void copy_unless_same(const Tensor& dst, const Tensor& src, Stream& stream) {
  if (dst.raw() != src.raw()) stream.copy(dst, src);
}

}  // namespace

void Communicator::refuse() const {
  throw Error(
      fmt::format("a collective of the {} axis needs other ranks than rank {}, and there are none", name_, rank_));
}

void Communicator::check_slice(const Collective& call, const Tensor& whole, const Tensor& part) const {
  CHECK(whole.dtype() == part.dtype() && whole.numel() == part.numel() * size_,
        "{}: {} does not consist of {} slices such as {}", call.describe(), whole.describe(), size_, part.describe());
  const char* whole_begin = static_cast<const char*>(whole.raw());
  const char* part_begin = static_cast<const char*>(part.raw());
  const bool is_slice = part_begin == whole_begin + rank_ * part.bytes();
  const bool is_apart = part_begin + part.bytes() <= whole_begin || whole_begin + whole.bytes() <= part_begin;
  CHECK(is_slice || is_apart, "{}: the slice overlaps other ranks' slices of the whole tensor", call.describe());
}

void Communicator::check_peer(const Collective& call, int peer) const {
  CHECK(peer >= 0 && peer < size_ && peer != rank_, "{}: the peer of rank {} is rank {} in a group of {} ranks",
        call.describe(), rank_, peer, size_);
}

template <typename Work>
void Communicator::run(const Collective& call, const Tensor& tensor, Stream& stream, Work work) {
  const Op op{.name = call.op,
              .bytes = static_cast<double>(tensor.bytes()),
              .bound = OpBound::kCommunication,
              .axis = call.axis};
  const OpTimer timer(stream, op, call.what);
  if (timer.planned()) return;
  const Watchdog::Scope scope(watchdog_, call);
  work();
  after_queueing(scope.collective(), stream);
}

void Communicator::all_gather(const Tensor& out, const Tensor& shard, Stream& stream, const char* what) {
  const Collective call = collective("all_gather", what);
  check_slice(call, out, shard);
  if (size_ == 1) return copy_unless_same(out, shard, stream);
  run(call, out, stream, [&] { do_all_gather(out, shard, stream); });
}

void Communicator::reduce_scatter_sum(const Tensor& out, const Tensor& in, Stream& stream, const char* what) {
  const Collective call = collective("reduce_scatter", what);
  check_slice(call, in, out);
  check_sum_dtype(call, in.dtype());
  if (size_ == 1) return copy_unless_same(out, in, stream);
  run(call, in, stream, [&] { do_reduce_scatter_sum(out, in, stream); });
}

void Communicator::all_to_all(const Tensor& out, const Tensor& in, int64_t begin, Stream& stream, const char* what) {
  const Collective call = collective("all_to_all", what);
  const int64_t count = out.numel() / size_;
  const int64_t slice = in.numel() / size_;
  CHECK(out.dtype() == in.dtype() && out.numel() == count * size_ && in.numel() == slice * size_ && begin >= 0 &&
            begin + count <= slice,
        "{}: the output is {}, expected elements from {} of the {} slices of {}", call.describe(), out.describe(),
        begin, size_, in.describe());
  check_apart(call, out, in);
  if (size_ == 1) return stream.copy(out, in.rows(begin, begin + count));
  run(call, out, stream, [&] { do_all_to_all(out, in, begin, stream); });
}

void Communicator::exchange(const Tensor& out, const Tensor& in, int peer, Stream& stream, const char* what) {
  const Collective call = collective("exchange", what);
  check_peer(call, peer);
  CHECK(out.dtype() == in.dtype() && out.numel() == in.numel(), "{}: the output {} and the input {} do not match",
        call.describe(), out.describe(), in.describe());
  check_apart(call, out, in);
  run(call, out, stream, [&] { do_exchange(out, in, peer, stream); });
}

void Communicator::send(const Tensor& tensor, int to, Stream& stream, const char* what) {
  const Collective call = collective("send", what);
  check_peer(call, to);
  run(call, tensor, stream, [&] { do_send(tensor, to, stream); });
}

void Communicator::receive(const Tensor& tensor, int from, Stream& stream, const char* what) {
  const Collective call = collective("receive", what);
  check_peer(call, from);
  run(call, tensor, stream, [&] { do_receive(tensor, from, stream); });
}

void Communicator::finish_transfer(const char* what) {
  if (!has_transfer()) return;
  const Watchdog::Scope scope(watchdog_, collective("transfer", what));
  do_finish_transfer();
}

void Communicator::all_reduce_sum(const Tensor& tensor, Stream& stream, const char* what) {
  const Collective call = collective("all_reduce", what);
  check_sum_dtype(call, tensor.dtype());
  if (size_ > 1) run(call, tensor, stream, [&] { do_all_reduce_sum(tensor, stream); });
}

void Communicator::all_reduce_max(const Tensor& tensor, Stream& stream, const char* what) {
  CHECK(tensor.dtype() == DType::kFloat32, "{}: the dtype is {}, expected float32",
        collective("all_reduce_max", what).describe(), dtype_name(tensor.dtype()));
  if (size_ > 1) run(collective("all_reduce", what), tensor, stream, [&] { do_all_reduce_max(tensor, stream); });
}

std::unique_ptr<Communicator> Communicator::split(const RankGroup& ranks) {
  if (ranks.size > 1) return do_split(ranks);
  return std::make_unique<Communicator>(watchdog_, ranks.name, ranks.rank, ranks.size);
}

std::unique_ptr<Communicator> make_communicator(ProcessGroup& group, Stream& stream) {
  if (group.size() == 1) return std::make_unique<Communicator>(group.watchdog(), kWorld, 0, 1);
  if constexpr (kHasCuda) {
    if (stream.is_cuda()) return make_nccl_communicator(group);
  }
  return make_mpi_communicator(group);
}

Buffer allocate_for_collectives(int64_t bytes) {
  if constexpr (kHasCuda) return allocate_nccl_memory(bytes);
  throw Error(fmt::format("cannot allocate {} bytes for NCCL, because this build has no CUDA", bytes));
}

std::string nccl_version() {
  if constexpr (kHasCuda) return loaded_nccl_version();
  return "";
}

}  // namespace octavo
