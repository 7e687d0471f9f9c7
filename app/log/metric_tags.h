// Metrics in the groups that TensorBoard and Weights & Biases show them in (scripts/wandb_sync.py has the same).
#pragma once

#include <string>
#include <string_view>

namespace octavo {

// Of a key of metrics.jsonl: "loss" is "train/loss". Of numbers by dataset, what stands before "/NAME". A key that has
// no group keeps its name.
std::string metric_tag(std::string_view key);

}  // namespace octavo
