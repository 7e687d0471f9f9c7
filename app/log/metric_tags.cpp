#include "app/log/metric_tags.h"

#include <algorithm>
#include <array>
#include <utility>

namespace octavo {

namespace {

using Tag = std::pair<std::string_view, std::string_view>;

constexpr std::array kTags = {Tag{"loss", "train/loss"},
                              Tag{"loss_by_dataset", "train/loss_by_dataset"},
                              Tag{"z_loss", "train/z_loss"},
                              Tag{"stage", "train/stage"},
                              Tag{"tokens", "train/tokens"},
                              Tag{"validation_loss", "validation/loss"},
                              Tag{"validation_loss_by_dataset", "validation"},
                              Tag{"grad_norm", "optimizer/grad_norm"},
                              Tag{"lr", "optimizer/lr"},
                              Tag{"wps", "throughput/wps"},
                              Tag{"mfu", "throughput/mfu"},
                              Tag{"tflops", "throughput/tflops"},
                              Tag{"step_ms", "throughput/step_ms"},
                              Tag{"goodput", "throughput/goodput"},
                              Tag{"memory_gib", "memory/memory_gib"},
                              Tag{"data_ms", "data/data_ms"},
                              Tag{"epochs", "data/epochs"},
                              Tag{"precision_gap", "fp8/precision_gap"},
                              Tag{"skipped_steps", "events/skipped_steps"},
                              Tag{"loss_z", "events/loss_z"},
                              Tag{"grad_norm_z", "events/grad_norm_z"},
                              Tag{"slowdown", "events/slowdown"}};

}  // namespace

std::string metric_tag(std::string_view key) {
  const auto found = std::find_if(kTags.begin(), kTags.end(), [&](const Tag& tag) { return tag.first == key; });
  return std::string(found != kTags.end() ? found->second : key);
}

}  // namespace octavo
