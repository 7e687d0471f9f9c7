#include "parallel/communicator.h"

#include "build_config.h"
#include "core/error.h"
#include "core/profiler.h"
#include "parallel/communicator_backends.h"

namespace octavo {

namespace {

// Communicator that transfers nothing: of one rank, whose collectives are copies that the base class makes, or of ranks
// that do not exist because they are those of a plan.
class IdleCommunicator final : public Communicator {
 public:
  IdleCommunicator(Watchdog& watchdog, const RankGroup& ranks)
      : Communicator(watchdog, ranks.name, ranks.rank, ranks.size) {}

 private:
  [[noreturn]] void refuse() const {
    throw Error(
        fmt::format("a collective of the {} axis needs other ranks than rank {}, and there are none", name(), rank()));
  }
  void do_all_gather(const Tensor&, const Tensor&, Stream&) override { refuse(); }
  void do_reduce_scatter_sum(const Tensor&, const Tensor&, Stream&) override { refuse(); }
  void do_all_to_all(const Tensor&, const Tensor&, int64_t, Stream&) override { refuse(); }
  void do_exchange(const Tensor&, const Tensor&, int, Stream&) override { refuse(); }
  void do_send(const Tensor&, int, Stream&) override { refuse(); }
  void do_receive(const Tensor&, int, Stream&) override { refuse(); }
  void do_all_reduce_sum(const Tensor&, Stream&) override { refuse(); }
  void do_all_reduce_max(const Tensor&, Stream&) override { refuse(); }
  std::unique_ptr<Communicator> do_split(const RankGroup&) override { refuse(); }
};

// Returns the call as messages name it: "all_gather of block 3 (shard axis)".
std::string call_name(const Communicator& communicator, const char* op, const char* what) {
  return Collective{op, what, communicator.name().c_str()}.describe();
}

void check_apart(const Communicator& communicator, const char* op, const char* what, const Tensor& out,
                 const Tensor& in) {
  const char* from = static_cast<const char*>(in.raw());
  const char* to = static_cast<const char*>(out.raw());
  CHECK(to + out.bytes() <= from || from + in.bytes() <= to, "{}: the two tensors overlap",
        call_name(communicator, op, what));
}

// Checks that `part` has the size of one of the group's slices of `whole`, and is either this rank's slice in place or
// does not overlap `whole`.
void check_slice(const Communicator& communicator, const char* op, const char* what, const Tensor& whole,
                 const Tensor& part) {
  CHECK(whole.dtype() == part.dtype() && whole.numel() == part.numel() * communicator.size(),
        "{}: {} does not consist of {} slices such as {}", call_name(communicator, op, what), whole.describe(),
        communicator.size(), part.describe());
  const char* whole_begin = static_cast<const char*>(whole.raw());
  const char* part_begin = static_cast<const char*>(part.raw());
  const bool is_slice = part_begin == whole_begin + communicator.rank() * part.bytes();
  const bool is_apart = part_begin + part.bytes() <= whole_begin || whole_begin + whole.bytes() <= part_begin;
  CHECK(is_slice || is_apart, "{}: the slice overlaps other ranks' slices of the whole tensor",
        call_name(communicator, op, what));
}

void check_sum_dtype(const Communicator& communicator, const char* op, const char* what, DType dtype) {
  CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16, "{}: the dtype is {}, expected float32 or bfloat16",
        call_name(communicator, op, what), dtype_name(dtype));
}

void copy_unless_same(const Tensor& dst, const Tensor& src, Stream& stream) {
  if (dst.raw() != src.raw()) stream.copy(dst, src);
}

}  // namespace

template <typename Work>
void Communicator::run(const char* op, const char* what, const Tensor& tensor, Stream& stream, Work work) {
  const Op collective{.name = op,
                      .bytes = static_cast<double>(tensor.bytes()),
                      .bound = OpBound::kCommunication,
                      .axis = name_.c_str()};
  const OpTimer timer(stream, collective, what);
  if (timer.planned()) return;
  const Watchdog::Scope scope(watchdog_, {op, what, name_.c_str()});
  work();
  after_queueing(scope.collective(), stream);
}

void Communicator::all_gather(const Tensor& out, const Tensor& shard, Stream& stream, const char* what) {
  check_slice(*this, "all_gather", what, out, shard);
  if (size_ == 1) return copy_unless_same(out, shard, stream);
  run("all_gather", what, out, stream, [&] { do_all_gather(out, shard, stream); });
}

void Communicator::reduce_scatter_sum(const Tensor& out, const Tensor& in, Stream& stream, const char* what) {
  check_slice(*this, "reduce_scatter", what, in, out);
  check_sum_dtype(*this, "reduce_scatter", what, in.dtype());
  if (size_ == 1) return copy_unless_same(out, in, stream);
  run("reduce_scatter", what, in, stream, [&] { do_reduce_scatter_sum(out, in, stream); });
}

void Communicator::all_to_all(const Tensor& out, const Tensor& in, int64_t begin, Stream& stream, const char* what) {
  const int64_t count = out.numel() / size_;
  const int64_t slice = in.numel() / size_;
  CHECK(out.dtype() == in.dtype() && out.numel() == count * size_ && in.numel() == slice * size_ && begin >= 0 &&
            begin + count <= slice,
        "{}: the output is {}, expected elements from {} of the {} slices of {}", call_name(*this, "all_to_all", what),
        out.describe(), begin, size_, in.describe());
  check_apart(*this, "all_to_all", what, out, in);
  if (size_ == 1) return stream.copy(out, in.rows(begin, begin + count));
  run("all_to_all", what, out, stream, [&] { do_all_to_all(out, in, begin, stream); });
}

void Communicator::exchange(const Tensor& out, const Tensor& in, int peer, Stream& stream, const char* what) {
  check_peer("exchange", what, peer);
  CHECK(out.dtype() == in.dtype() && out.numel() == in.numel(), "{}: the output {} and the input {} do not match",
        call_name(*this, "exchange", what), out.describe(), in.describe());
  check_apart(*this, "exchange", what, out, in);
  run("exchange", what, out, stream, [&] { do_exchange(out, in, peer, stream); });
}

void Communicator::check_peer(const char* op, const char* what, int peer) const {
  CHECK(peer >= 0 && peer < size_ && peer != rank_, "{}: the peer of rank {} is rank {} in a group of {} ranks",
        call_name(*this, op, what), rank_, peer, size_);
}

void Communicator::send(const Tensor& tensor, int to, Stream& stream, const char* what) {
  check_peer("send", what, to);
  run("send", what, tensor, stream, [&] { do_send(tensor, to, stream); });
}

void Communicator::receive(const Tensor& tensor, int from, Stream& stream, const char* what) {
  check_peer("receive", what, from);
  run("receive", what, tensor, stream, [&] { do_receive(tensor, from, stream); });
}

void Communicator::finish_transfer(const char* what) {
  if (!has_transfer()) return;
  const Watchdog::Scope scope(watchdog_, {"transfer", what, name_.c_str()});
  do_finish_transfer();
}

void Communicator::all_reduce_sum(const Tensor& tensor, Stream& stream, const char* what) {
  check_sum_dtype(*this, "all_reduce", what, tensor.dtype());
  if (size_ == 1) return;
  run("all_reduce", what, tensor, stream, [&] { do_all_reduce_sum(tensor, stream); });
}

void Communicator::all_reduce_max(const Tensor& tensor, Stream& stream, const char* what) {
  CHECK(tensor.dtype() == DType::kFloat32, "{}: the dtype is {}, expected float32",
        call_name(*this, "all_reduce_max", what), dtype_name(tensor.dtype()));
  if (size_ == 1) return;
  run("all_reduce", what, tensor, stream, [&] { do_all_reduce_max(tensor, stream); });
}

std::unique_ptr<Communicator> Communicator::split(const RankGroup& ranks) {
  if (ranks.size == 1) return std::make_unique<IdleCommunicator>(watchdog_, ranks);
  return do_split(ranks);
}

std::unique_ptr<Communicator> make_communicator(ProcessGroup& group, Stream& stream) {
  if (group.size() == 1)
    return std::make_unique<IdleCommunicator>(group.watchdog(),
                                              RankGroup{.name = kWorld, .color = 0, .rank = 0, .size = 1});
  if constexpr (kHasCuda) {
    if (stream.is_cuda()) return make_nccl_communicator(group);
  }
  return make_mpi_communicator(group);
}

std::unique_ptr<Communicator> make_planned_communicator(Watchdog& watchdog, const RankGroup& ranks) {
  return std::make_unique<IdleCommunicator>(watchdog, ranks);
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
