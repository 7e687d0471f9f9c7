// Reads mapped files of gigabytes at the rate of the disk. With one thread, page faults would wait for one small read
// after the other.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace octavo {

// Calls visit(i) once for each of `ranges`, which are parts of mapped files, from several threads. Other threads make
// the system read all ranges in blocks, several at a time and in order. Throws what a visit threw, for the first range
// if there were several.
void for_each_mapped(std::span<const std::span<const std::byte>> ranges, const std::function<void(size_t)>& visit);

}  // namespace octavo
