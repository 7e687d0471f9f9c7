// Sentences on a config that can be trained with, but is surely a mistake. A run says them once, when it starts.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "app/log/data_report.h"

namespace octavo {

// Number of epochs over a dataset beyond which a config without max_epochs is warned of: up to four epochs lower the
// loss almost as fresh tokens do (Muennighoff et al., arXiv 2305.16264, section 6).
inline constexpr double kManyEpochs = 4;

// Returns a sentence for each mistake: a warm-up that does not end, more than kManyEpochs epochs over a dataset that
// states no max_epochs, and datasets for validation that are never used. `datasets` are those of config.data.train, in
// its order.
std::vector<std::string> config_warnings(const Config& config, std::span<const DatasetUse> datasets);

}  // namespace octavo
