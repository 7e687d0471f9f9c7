// Handles reads of mapped files whose bytes are gone because the file was truncated or its disk failed. The kernel
// answers such a read with SIGBUS, which would end the process without a message.
//
// Handling the signal costs nothing as long as the files are intact. Reading with pread instead would take one system
// call per document or slice of a weight, and every rank would need a copy of the index in memory. A process cannot
// continue after such a read, because nothing can replace the bytes. It ends, like after any failure of one rank, and
// the launcher ends the others.
#pragma once

#include <cstddef>
#include <string>

namespace octavo {

// Makes a failing read in [begin, begin + bytes) print one sentence that names `path` on standard error and end the
// process with exit code 1. The first call installs a handler of SIGBUS, which passes other SIGBUS signals to the
// previous handler. Safe from any thread.
void watch_mapping(const void* begin, size_t bytes, const std::string& path);
// Must be called before the range is unmapped.
void forget_mapping(const void* begin);

}  // namespace octavo
