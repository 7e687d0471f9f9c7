#include "app/measure/reach_check.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "app/process/runtime.h"
#include "core/arena.h"
#include "core/error.h"
#include "parallel/communicator.h"

namespace octavo {

void check_reach(std::span<const RankFacts> ranks, ProcessGroup& group) {
  if (group.size() == 1) return;
  constexpr int64_t kElements = 1024;
  std::optional<Stream> stream;
  std::optional<Arena> arena;
  Tensor sum;
  std::vector<float> host(kElements, static_cast<float>(group.rank() + 1));
  group.agree([&] {
    const bool on_gpu = all_have_gpus(ranks) && !any_share_a_gpu(ranks);
    stream.emplace(on_gpu ? Stream::cuda(choose_gpu(group)) : Stream::cpu());
    arena.emplace(stream->device(), kElements * dtype_bytes(DType::kFloat32));
    sum = arena->allocate("sum", DType::kFloat32, {kElements});
    stream->copy(sum.raw(), host.data(), sum.bytes());
    stream->synchronize();
  });
  const std::unique_ptr<Communicator> world = make_communicator(group, *stream);
  world->all_reduce_sum(sum, *stream, "the check of the ranks' reach");
  stream->synchronize();
  group.agree([&] {
    stream->copy(host.data(), sum.raw(), sum.bytes());
    stream->synchronize();
    const auto expected = static_cast<float>(group.size()) * static_cast<float>(group.size() + 1) / 2;
    const auto wrong = std::find_if(host.begin(), host.end(), [&](float value) { return value != expected; });
    CHECK(wrong == host.end(), "{}: a sum over all ranks is {}, expected {}", host_name(), *wrong, expected);
  });
}

}  // namespace octavo
