#include "core/files/parallel_read.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "core/thread.h"

namespace octavo {
namespace {

constexpr uintptr_t kReadBlockBytes = uintptr_t{8} << 20;
constexpr uintptr_t kPageBytes = 4096;
constexpr size_t kReadingThreads = 4;

struct Block {
  uintptr_t begin;
  uintptr_t end;
};

std::vector<Block> cut_into_blocks(std::span<const std::span<const std::byte>> ranges) {
  std::vector<Block> blocks;
  for (const auto& range : ranges) {
    const uintptr_t first = reinterpret_cast<uintptr_t>(range.data()) / kPageBytes * kPageBytes;
    const uintptr_t last = reinterpret_cast<uintptr_t>(range.data()) + range.size();
    for (uintptr_t begin = first; begin < last; begin += kReadBlockBytes) {
      blocks.push_back({begin, std::min(begin + kReadBlockBytes, last)});
    }
  }
  return blocks;
}

// Errors are ignored here, because the reader of the mapping meets them again.
void populate(const Block& block) {
  void* address = reinterpret_cast<void*>(block.begin);
  if (::madvise(address, block.end - block.begin, MADV_POPULATE_READ) == 0) return;
  static_cast<void>(::madvise(address, block.end - block.begin, MADV_WILLNEED));  // Used on Linux before 5.14.
}

}  // namespace

void for_each_mapped(std::span<const std::span<const std::byte>> ranges, const std::function<void(size_t)>& visit) {
  const std::vector<Block> blocks = cut_into_blocks(ranges);
  std::atomic<size_t> next_block{0}, next_range{0};
  std::mutex mutex;
  std::pair<size_t, std::exception_ptr> failure{ranges.size(), nullptr};
  const auto read_ahead = [&] {
    for (size_t i = next_block++; i < blocks.size(); i = next_block++) populate(blocks[i]);
  };
  const auto visit_all = [&] {
    for (size_t i = next_range++; i < ranges.size(); i = next_range++) {
      try {
        visit(i);
      } catch (...) {
        const std::lock_guard guard(mutex);
        if (i < failure.first) failure = {i, std::current_exception()};
      }
    }
  };
  {
    HelperThreads helpers;  // The destructor waits for the threads.
    if (blocks.size() > ranges.size() || blocks.size() > kReadingThreads) {
      for (size_t i = 0; i < kReadingThreads; ++i) helpers.start(read_ahead);
    }
    for (size_t i = 1; i < std::min(kReadingThreads, ranges.size()); ++i) helpers.start(visit_all);
    visit_all();
  }
  if (failure.second) std::rethrow_exception(failure.second);
}

}  // namespace octavo
