#include "app/run/metric_table.h"

#include <nlohmann/json.hpp>

namespace octavo {

std::string metric_table_json() {
  nlohmann::ordered_json table;
  for (const MetricSpec& spec : kMetrics) {
    table.push_back({{"key", spec.key}, {"tag", spec.tag}, {"title", spec.title}, {"unit", spec.unit}});
  }
  return table.dump(1) + "\n";
}

}  // namespace octavo
