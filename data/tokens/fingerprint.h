// What tells a corpus from another one that has as many documents and tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace octavo {

// Of each, the indexes and the tokens: read whole up to here, samples of them beyond.
inline constexpr int64_t kFingerprintBytes = int64_t{8} << 20;
inline constexpr int64_t kFingerprintBlocks = 256;  // samples, of 32 KiB

// XXH3 (16 hex digits) of the token files at `paths` (each as TokenFile takes it), one behind the other: of the sizes
// of all, of their indexes, which hold the documents' lengths, and of their tokens. Paths do not count, so files may be
// moved and renamed as long as their order stays. A function of the files alone: not of ranks, nor of which of them are
// open.
//
// Every rank does this at every start, so the work is bounded: of indexes, and of tokens, that are longer than
// kFingerprintBytes in all it reads kFingerprintBlocks blocks, spread evenly over all files, the first at the
// beginning and the last at the end: 16 MiB in 512 files at the most, which take milliseconds from memory and a few
// seconds where each block is a seek. What remains is looking up the sizes of all files.
//
// Limits: every change of up to 16 MiB is seen, and every change of a file's size, of the first and of the last tokens;
// another text is seen, as all of its blocks differ. A change in the middle of a large corpus that keeps all sizes is
// seen where it touches a block: for certain where it is longer than 1/255 of all, else in about the share
// of bytes that is read. InputError naming a file that cannot be read.
std::string fingerprint_of(const std::vector<std::string>& paths);

}  // namespace octavo
