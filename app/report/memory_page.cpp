#include "app/report/memory_page.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "app/report/page.h"

namespace octavo {

namespace {

using Json = nlohmann::json;

const char* contents_name(Contents contents) {
  constexpr const char* kNames[] = {"other", "weights", "gathered weights", "optimizer", "gradients", "activations"};
  return kNames[static_cast<size_t>(contents)];
}

Json items_json(const std::vector<MemoryItem>& items) {
  Json rows = Json::array();
  for (const MemoryItem& item : items) {
    rows.push_back({{"name", item.name},
                    {"count", item.count},
                    {"bytes", item.bytes},
                    {"lifetime", lifetime_name(item.lifetime)},
                    {"contents", contents_name(item.contents)},
                    {"blocks", item.blocks}});
  }
  return rows;
}

}  // namespace

Json memory_document(const Plan& plan, const StepTimeline& timeline) {
  Json ranges = Json::array();
  for (const StepClock::TimedRange& range : timeline.ranges)
    ranges.push_back({{"name", range.name}, {"begin", range.begin_s}, {"end", range.end_s}});
  const MemoryPlan& memory = plan.memory;
  return {{"name", std::filesystem::path(plan.config.source).filename().string()},
          {"ranks", plan.mesh.ranks()},
          {"layers", plan.config.model.num_layers},
          {"items", items_json(memory.items)},
          {"overlaid", items_json(memory.overlaid)},
          {"arena_bytes", memory.arena_bytes},
          {"outside_bytes", memory.budget.outside},
          {"total_bytes", memory.total_bytes()},
          {"available_bytes", memory.budget.available},
          {"fits", memory.fits()},
          {"ranges", ranges},
          {"left_out", timeline.left_out}};
}

std::string memory_page(const Plan& plan, const StepTimeline& timeline) {
  return html_page("Memory - octavo plan", {"elements", "memory"}, memory_document(plan, timeline));
}

}  // namespace octavo
