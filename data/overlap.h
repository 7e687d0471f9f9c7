// Finds text that a run would train on although it is held out, and files that a dataset names twice.
#pragma once

#include <vector>

#include "data/config.h"

namespace octavo {

// InputError naming both paths when
//   a file of `train` is a file of `validation`, whatever their paths are called: the same file on disk, links
//   followed, or one of the same content (sizes, last bytes and fingerprint of the file, data/tokens/fingerprint.h); a
//   dataset of either list has one file on disk twice.
// Two datasets of one list may share files. Datasets of weight 0 do not count, as they are never read. Takes a look-up
// per file, and reads files only where one of `train` is as long as one of `validation`. UnreadableFile naming a file
// that is missing.
void check_overlap(const std::vector<DatasetSource>& train, const std::vector<DatasetSource>& validation);

}  // namespace octavo
