// What tells one version of a file from another: for comparing what several ranks see under one name. All functions
// throw InputError naming the file when it cannot be read, and never wait for one that is no ordinary file.
#pragma once

#include <string>

namespace octavo {

// "PATH of 234 bytes, xxh3 0123456789abcdef": of all its bytes.
std::string file_identity(const std::string& path);

// The same of samples: 64 blocks of 4 KiB spread evenly, the first and the last among them; all of a smaller file.
std::string sampled_file_identity(const std::string& path);

}  // namespace octavo
