// Writes files of gigabytes at the rate of the disk: without the page cache if the file system supports it (O_DIRECT),
// and with several blocks in flight.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <string>

namespace octavo {

// Writes the concatenation of `parts`, which may lie anywhere in memory, to the file `path`. Replaces an existing file.
// Returns after fsync, so the bytes are on the disk. Throws an Error that names the file if the system refuses. A full
// disk is detected before the first byte if the file system can reserve space. The caller removes a partial file. Uses
// 4 threads and 32 MiB. If another thread sets `stop`, throws an Error after the blocks in flight. A null pointer means
// that nobody stops the write.
void write_file_in_parallel(const std::string& path, std::span<const std::span<const std::byte>> parts,
                            const std::atomic<bool>* stop = nullptr);

}  // namespace octavo
