// Fingerprint of a corpus. It distinguishes corpora with equal numbers of documents and tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace octavo {

// Maximum number of bytes of indexes, and of tokens, that are read completely. Longer data is sampled.
inline constexpr int64_t kFingerprintBytes = int64_t{8} << 20;
inline constexpr int64_t kFingerprintBlocks = 256;  // Number of samples of 32 KiB.

// Returns the XXH3 (16 hex digits) of the token files at `paths` (each as TokenFile takes it) in order: of their sizes,
// their indexes, which hold the documents' lengths, and their tokens. Paths do not count, so files may be moved and
// renamed as long as their order stays. The result does not depend on ranks, nor on which files are open.
//
// Every rank computes this at every start, so the work is bounded. Of indexes, and of tokens, that are longer than
// kFingerprintBytes in total it reads kFingerprintBlocks blocks, spread evenly over all files from the first byte to
// the last. That is at most 16 MiB in 512 files, which takes milliseconds from memory and a few seconds if each block
// is a seek. It also looks up the sizes of all files.
//
// It detects every change of up to 16 MiB of data, of a file's size, and of the first and last tokens. A corpus with
// other text is detected, because all blocks differ. In the middle of a large corpus, a change that keeps all sizes is
// detected if it touches a block: certainly if it is longer than 1/255 of the corpus, otherwise with about the
// probability of the share that is read. Throws an InputError that names a file that cannot be read.
std::string fingerprint_of(const std::vector<std::string>& paths);

// A token file of which fingerprint_of() reads samples only.
struct SampledFile {
  std::string path;         // Path of the file with the tokens.
  int64_t modified_ns = 0;  // When its tokens or its index were last modified, in nanoseconds since 1970.
};
// Returns the token files at `paths` if they are so long that fingerprint_of() only samples them, else nothing.
std::vector<SampledFile> sampled_files(const std::vector<std::string>& paths);

}  // namespace octavo
