// Mapped files of gigabytes read at the rate of the disk: the page faults of one thread would wait for one small read
// after the other.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace octavo {

// Calls visit(i) once for each of `ranges`, parts of mapped files, from several threads, while others have the system
// read all of them in blocks, several at a time and in this order. Throws what a visit threw, that of the first range
// where several did.
void for_each_mapped(std::span<const std::span<const std::byte>> ranges, const std::function<void(size_t)>& visit);

}  // namespace octavo
