#include "core/arena.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "build_config.h"
#include "core/cuda_backend.h"
#include "core/error.h"
#include "core/format.h"

namespace octavo {

namespace {

constexpr int64_t kAlignment = 256;

int64_t round_up(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void* allocate_host(int64_t bytes) {
  void* data = std::aligned_alloc(kAlignment, static_cast<size_t>(round_up(bytes)));
  CHECK(data != nullptr, "out of memory: {:.2f} GiB could not be allocated", gib(bytes));
  std::memset(data, 0, static_cast<size_t>(bytes));
  return data;
}

}  // namespace

Buffer Buffer::device(Device device, int64_t bytes) {
  if (bytes == 0) bytes = kAlignment;
  if constexpr (kHasCuda) {
    if (device == Device::kCuda) return Buffer(cuda::allocate_device(bytes), bytes, cuda::free_device);
  }
  return Buffer(allocate_host(bytes), bytes, std::free);
}

Buffer Buffer::host(Device device, int64_t bytes) {
  if (bytes == 0) bytes = kAlignment;
  if constexpr (kHasCuda) {
    if (device == Device::kCuda) return Buffer(cuda::allocate_pinned(bytes), bytes, cuda::free_pinned);
  }
  return Buffer(allocate_host(bytes), bytes, std::free);
}

Arena::Arena(Device device, int64_t capacity) : device_(device), buffer_(Buffer::device(device, capacity)) {}

bool Arena::fits(int64_t bytes) const { return planning() || used_ + bytes <= buffer_.bytes(); }

void* Arena::reserve(int64_t bytes) {
  // A planning arena returns a fake base address, so that pointer arithmetic on its tensors stays valid.
  char* base = planning() ? reinterpret_cast<char*>(kAlignment) : static_cast<char*>(buffer_.data());
  char* data = base + origin_ + used_;
  used_ += round_up(bytes);
  return data;
}

Tensor Arena::allocate(const std::string& name, DType dtype, std::initializer_list<int64_t> shape, Lifetime lifetime) {
  const Tensor wanted(nullptr, dtype, shape);
  CHECK(fits(wanted.bytes()), "the arena of {} bytes is too small for {} ({} at byte {})", buffer_.bytes(), name,
        wanted.describe(), used_);
  items_.push_back({name, wanted.bytes(), lifetime, contents_, block_});
  return Tensor(reserve(wanted.bytes()), dtype, shape);
}

void Arena::overlay(std::initializer_list<Part> parts) {
  std::vector<Arena> plans;
  for (const Part& part : parts) {
    Arena& plan = plans.emplace_back(device_);
    plan.origin_ = origin_ + used_;
    part(plan);
  }
  const auto largest = std::ranges::max_element(plans, {}, &Arena::used);
  for (auto plan = plans.begin(); plan != plans.end(); ++plan) {
    for (Item item : plan->items()) {
      item.overlaid = item.overlaid || plan != largest;
      items_.push_back(std::move(item));
    }
  }
  CHECK(fits(largest->used()), "the arena of {} bytes is too small for overlaid parts of {} bytes at byte {}",
        buffer_.bytes(), largest->used(), used_);
  void* memory = reserve(largest->used());
  if (planning()) return;
  for (const Part& part : parts) {
    Arena within(device_, Buffer::adopt(memory, largest->used(), [](void*) {}));
    part(within);
  }
}

}  // namespace octavo
