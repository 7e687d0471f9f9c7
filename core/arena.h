// Plans memory first and allocates it once. The constructor of a component takes its buffers from an Arena by name. A
// run lays everything out twice: first in a planning Arena, which only counts, and then in one with a single allocation
// of that size. So the printed plan is what the run allocates.
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

// One owned allocation on a device or in pinned host memory. It is zeroed, except memory from adopt(). Move-only.
class Buffer {
 public:
  Buffer() = default;
  static Buffer device(Device device, int64_t bytes);
  // Returns host memory, page-locked if `device` is a GPU, so that copies are asynchronous.
  static Buffer host(Device device, int64_t bytes);
  // Takes over existing memory. `release` may do nothing if another object owns the memory.
  static Buffer adopt(void* data, int64_t bytes, void (*release)(void*)) { return Buffer(data, bytes, release); }

  void* data() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  Buffer(void* data, int64_t bytes, void (*release)(void*)) : data_(data, release), bytes_(bytes) {}
  std::unique_ptr<void, void (*)(void*)> data_{nullptr, [](void*) {}};
  int64_t bytes_ = 0;
};

// Time for which the contents of a tensor are needed: the whole run, one step, or one block.
enum class Lifetime : uint8_t { kRun, kStep, kBlock };

// Kind of a tensor's contents, shown to readers of the plan.
enum class Contents : uint8_t { kOther, kWeights, kGatheredWeights, kOptimizer, kGradients, kActivations };

class Arena {
 public:
  struct Item {
    std::string name;
    int64_t bytes;
    Lifetime lifetime;
    Contents contents;
    // Index of the block that owns the tensor, or of the buffer that several blocks use in turn. -1 if neither.
    int64_t block;
    bool overlaid = false;  // Whether the tensor shares memory that is counted for other items.
  };

  // Labels the tensors that are allocated while this object exists with their contents and block.
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
    Contents contents_;  // Label to restore at the end of the scope.
    int64_t block_;
  };

  // Makes a planning arena. used() returns the bytes that its tensors need.
  // Requires: the addresses of its tensors are not used.
  explicit Arena(Device device) : device_(device) {}
  // Allocates and zeroes an arena of `capacity` bytes.
  Arena(Device device, int64_t capacity);
  // Makes an arena in the given memory of the device.
  Arena(Device device, Buffer buffer) : device_(device), buffer_(std::move(buffer)) {}

  Arena(Arena&&) = default;
  Arena& operator=(Arena&&) = default;

  // Returns the next tensor, aligned to 256 bytes. `lifetime` is only shown in the plan; the memory is reserved
  // for the whole run. Throws if the arena has memory and it is full.
  Tensor allocate(const std::string& name, DType dtype, std::initializer_list<int64_t> shape,
                  Lifetime lifetime = Lifetime::kRun);

  // Lets several parts share memory, because their tensors are never needed at the same time. Each part is called
  // twice. The tensors of the second call are the ones to use. Requires: a part allocates the same tensors both times.
  using Part = std::function<void(Arena&)>;
  void overlay(std::initializer_list<Part> parts);

  bool planning() const { return buffer_.data() == nullptr; }
  Device device() const { return device_; }
  const Buffer& buffer() const { return buffer_; }
  int64_t used() const { return used_; }
  const std::vector<Item>& items() const { return items_; }

 private:
  bool fits(int64_t bytes) const;
  void* reserve(int64_t bytes);

  Device device_;
  Buffer buffer_;
  int64_t origin_ = 0;  // Offset of a planning arena inside the arena that it is a part of.
  int64_t used_ = 0;
  Contents contents_ = Contents::kOther;  // Contents of the next tensor.
  int64_t block_ = -1;
  std::vector<Item> items_;
};

}  // namespace octavo
