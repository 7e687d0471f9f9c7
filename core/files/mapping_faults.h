// What becomes of a program that reads a mapped file whose bytes are gone: the file was truncated meanwhile, or its
// disk fails. The kernel answers such a read with SIGBUS, which would end the process without a word.
//
// Of the ways to survive it this is the one that costs nothing: reading by pread would be a system call a document, and
// the same for every piece of a weight; a copy of the index would be made by every rank. A process cannot go on from
// such a read, as nothing could stand in for the bytes: it ends, as after any failure that only one rank sees, and the
// launcher ends the others.
#pragma once

#include <cstddef>
#include <string>

namespace octavo {

// From now on a read in [begin, begin + bytes) that the kernel cannot answer prints one sentence naming `path` on
// standard error and ends the process with exit code 1. The first call takes over SIGBUS; a SIGBUS of anything else
// goes to whoever had it before. Safe from any thread.
void watch_mapping(const void* begin, size_t bytes, const std::string& path);
// To be called before the range is unmapped.
void forget_mapping(const void* begin);

}  // namespace octavo
