// Memory is planned, then allocated once. A component's constructor takes its buffers from an Arena by name; a run lays
// everything out twice: first on a planning Arena, which only counts, then on one that holds a single allocation of
// that size. So the plan that is printed is the plan that runs.
//
//   Arena plan(device);               Model(config, plan);       // counts
//   Arena arena(device, plan.used()); Model model(config, arena); // real addresses
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"

namespace octavo {

// One owned allocation on a device or in pinned host memory, zeroed but for what adopt() takes. Move-only.
class Buffer {
 public:
  Buffer() = default;
  static Buffer device(Device device, int64_t bytes);
  // Page-locked when `device` is a GPU, so that copies are asynchronous.
  static Buffer host(Device device, int64_t bytes);
  // Takes over memory as it is; `release` may do nothing, for memory that somebody else owns.
  static Buffer adopt(void* data, int64_t bytes, void (*release)(void*)) { return Buffer(data, bytes, release); }

  void* data() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  Buffer(void* data, int64_t bytes, void (*release)(void*)) : data_(data, release), bytes_(bytes) {}
  std::unique_ptr<void, void (*)(void*)> data_{nullptr, [](void*) {}};
  int64_t bytes_ = 0;
};

// How long the contents of a tensor are needed.
enum class Lifetime : uint8_t { kRun, kStep, kBlock };

// What a tensor holds, for those who read the plan.
enum class Contents : uint8_t { kOther, kWeights, kGatheredWeights, kOptimizer, kGradients, kActivations };

class Arena {
 public:
  struct Item {
    std::string name;
    int64_t bytes;
    Lifetime lifetime;
    Contents contents;
    int64_t block;  // number of the block that has the tensor, or of the slot that blocks take in turn; -1 for none
    bool overlaid = false;  // lies in memory that other items are counted for
  };

  // States what the tensors hold that are allocated while it exists, and which block has them.
  class Tag {
   public:
    Tag(Arena& arena, Contents contents, int64_t block = -1)
        : arena_(arena),
          contents_(std::exchange(arena.contents_, contents)),
          block_(std::exchange(arena.block_, block)) {}
    ~Tag() {
      arena_.contents_ = contents_;
      arena_.block_ = block_;
    }
    Tag(const Tag&) = delete;
    Tag& operator=(const Tag&) = delete;

   private:
    Arena& arena_;
    Contents contents_;  // before
    int64_t block_;
  };

  // A planning arena: allocate() returns tensors whose addresses must not be used, and used() says what they need.
  explicit Arena(Device device) : device_(device) {}
  // An arena of `capacity` bytes, allocated and zeroed now.
  Arena(Device device, int64_t capacity);
  // An arena in memory of the device.
  Arena(Device device, Buffer buffer) : device_(device), buffer_(std::move(buffer)) {}

  Arena(Arena&&) = default;
  Arena& operator=(Arena&&) = default;

  // The next tensor, aligned to 256 bytes. `lifetime` is for those who read the plan: what is needed for less than the
  // run has its place all the same. Throws when a real arena is full.
  Tensor allocate(const std::string& name, DType dtype, std::initializer_list<int64_t> shape,
                  Lifetime lifetime = Lifetime::kRun);

  // One stretch of memory for tensors of several parts that are never needed at the same time: each part, called twice,
  // allocates its own from the arena it is given, the same both times. The last call's tensors are those to use.
  using Part = std::function<void(Arena&)>;
  void overlay(std::initializer_list<Part> parts);

  bool planning() const { return buffer_.data() == nullptr; }
  Device device() const { return device_; }
  const Buffer& buffer() const { return buffer_; }
  int64_t used() const { return used_; }
  const std::vector<Item>& items() const { return items_; }

 private:
  bool has_room(int64_t bytes) const;
  void* reserve(int64_t bytes);

  Device device_;
  Buffer buffer_;
  int64_t origin_ = 0;  // of a planning arena in the one that it is a part of
  int64_t used_ = 0;
  Contents contents_ = Contents::kOther;  // of the next tensor
  int64_t block_ = -1;
  std::vector<Item> items_;
};

}  // namespace octavo
