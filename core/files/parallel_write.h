// Files of gigabytes written at the rate of the disk: past the page cache where the file system can (O_DIRECT), several
// blocks in flight at once.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace octavo {

// Writes the file `path`, replacing one that is there: all `parts`, one after the other, from anywhere in memory.
// Returns when it is on the device. Error naming the file when the system refuses (a full disk, said before the first
// byte where the file system can set the room aside); what was written stays for the caller to remove. Takes 4 threads
// and 32 MiB meanwhile.
void write_file_in_parallel(const std::string& path, std::span<const std::span<const std::byte>> parts);

}  // namespace octavo
