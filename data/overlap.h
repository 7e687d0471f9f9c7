// Finds held-out text in the training data, and files that are trained on under two names.
#pragma once

#include <vector>

#include "data/config.h"

namespace octavo {

// Throws an InputError that names both paths if
//   - a file of `train` and a file of `validation` are the same file on disk, also through links;
//   - a file of `train` and a file of `validation` have the same content: equally many tokens with equal ids, also in
//     another format or dtype. Up to 2 million tokens are compared completely, longer files by 256 blocks of 8,192;
//   - a dataset of either list contains one file on disk twice, or two datasets of `train` share one.
// `train` has the datasets of one stage. Two datasets of `validation` may share files. Datasets with weight 0 do not
// count, because they are never read. Looks up every file, but reads tokens only if a file of `train` has as many
// tokens as a file of `validation`. Throws an UnreadableFile that names a missing file.
void check_overlap(const std::vector<DatasetSource>& train, const std::vector<DatasetSource>& validation);

}  // namespace octavo
