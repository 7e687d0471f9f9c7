// Warnings about a config that can be trained with but is probably a mistake. A run logs them once, when it starts.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/log/data_report.h"

namespace octavo {

// Number of epochs over a dataset above which a run warns unless the dataset sets max_epochs. Up to four epochs lower
// the loss almost as much as new tokens (Muennighoff et al., arXiv 2305.16264, section 6).
inline constexpr double kManyEpochs = 4;

// Returns one sentence per mistake: a warm-up of the learning rate or batch size that the run does not complete, more
// than kManyEpochs epochs over a dataset without max_epochs, and validation datasets that are never used. `datasets`
// are those of config.data.train, in its order.
std::vector<std::string> config_warnings(const Config& config, std::span<const DatasetUse> datasets);

}  // namespace octavo
