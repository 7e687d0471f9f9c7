// Identifies the version of a file, to compare what several ranks or several runs see under one name. All functions
// throw an InputError that names the file if it cannot be read. The functions do not block on files that are not
// regular.
#pragma once

#include <cstdint>
#include <string>

#include "core/files/checksum.h"
#include "core/files/input_file.h"

namespace octavo {

// Returns "PATH of 234 bytes, xxh3 0123456789abcdef", with the checksum of all bytes.
std::string file_identity(const std::string& path);

// Returns the text of file_identity(), but with the checksum of samples: 64 blocks of 4 KiB, spread evenly from the
// first to the last, or all bytes of a smaller file.
std::string sampled_file_identity(const std::string& path);

// Adds the bytes [begin, end) of a file to `checksum`.
void add_file_bytes(Checksum& checksum, const InputFile& file, int64_t begin, int64_t end);

// Returns the offset of block `i` of `count` blocks of `block_bytes`, spread evenly over `bytes` from the beginning to
// the end.
// Requires: count >= 2 and bytes >= block_bytes.
int64_t spread_block_begin(int64_t bytes, int64_t block_bytes, int64_t count, int64_t i);

}  // namespace octavo
