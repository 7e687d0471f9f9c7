#include "parallel/ranks/start_checks.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "core/error.h"
#include "core/files/checksum.h"

namespace octavo {

namespace {

// Returns the line of `text` that contains position `at`, or "nothing more" if `at` is the end of the text.
std::string line_at(const std::string& text, size_t at) {
  const size_t begin = at == 0 ? 0 : text.rfind('\n', at - 1) + 1;
  return at == text.size() ? "nothing more" : text.substr(begin, text.find('\n', at) - begin);
}

}  // namespace

void check_own_gpu(ProcessGroup& group, const std::string& uuid, const std::string& description) {
  const char* host = std::getenv("NCCL_HOSTID");
  const std::string gpu = fmt::format("{} {}", uuid, host != nullptr ? host : "");
  const uint64_t mine = checksum(gpu.data(), std::ssize(gpu));
  const std::vector<uint64_t> all = group.all_gather(mine);
  group.throw_on_all_ranks([&] {
    const auto first = std::find(all.begin(), all.end(), mine) - all.begin();
    CHECK_INPUT(first == group.rank(),
                "ranks {} and {} both use {}; start one rank per GPU (this machine has {} ranks), or use device: cpu",
                first, group.rank(), description, group.local_size());
  });
}

void check_same_settings(ProcessGroup& group, const std::string& lines) {
  const std::string root = group.broadcast(lines);
  group.throw_on_all_ranks([&] {
    const auto [mine, other] = std::mismatch(lines.begin(), lines.end(), root.begin(), root.end());
    if (mine == lines.end() && other == root.end()) return;
    const auto at = static_cast<size_t>(mine - lines.begin());
    throw InputError(fmt::format("rank {} has {}, but rank 0 has {}; expected the same on every rank", group.rank(),
                                 line_at(lines, at), line_at(root, at)));
  });
}

}  // namespace octavo
