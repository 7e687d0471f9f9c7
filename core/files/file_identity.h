// What tells one version of a file from another: for comparing what several ranks see under one name, or one run and
// the next. All functions throw InputError naming the file when it cannot be read, and never wait for one that is no
// ordinary file.
#pragma once

#include <cstdint>
#include <string>

#include "core/files/checksum.h"
#include "core/files/input_file.h"

namespace octavo {

// "PATH of 234 bytes, xxh3 0123456789abcdef": of all its bytes.
std::string file_identity(const std::string& path);

// The same of samples: 64 blocks of 4 KiB spread evenly, the first and the last among them; all of a smaller file.
std::string sampled_file_identity(const std::string& path);

// Adds the bytes [begin, end) of a file to `checksum`.
void add_file_bytes(Checksum& checksum, const InputFile& file, int64_t begin, int64_t end);

// Where block `i` of `count`, at least 2, begins, when blocks of `block_bytes` are spread evenly over `bytes`, which
// are no fewer: the first at the beginning, the last at the end.
int64_t spread_block_begin(int64_t bytes, int64_t block_bytes, int64_t count, int64_t i);

}  // namespace octavo
