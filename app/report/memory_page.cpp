#include "app/report/memory_page.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "app/report/chart.h"
#include "app/report/html.h"
#include "app/report/page_assets.h"
#include "core/error.h"
#include "core/format.h"

namespace octavo {

namespace {

constexpr double kPictureWidth = 1310;
constexpr double kPictureHeight = 720;
constexpr double kPictureLeft = 62;
constexpr double kPictureRight = 14;
constexpr double kPictureTop = 34;
constexpr double kPictureBottom = 38;
constexpr double kSmallShare = 0.002;  // of all bytes: items below it are one band
constexpr double kLabelHeight = 12;    // of a band that can have its name

enum class Kind : uint8_t { kWeights, kGathered, kOptimizer, kGradients, kActivations, kScratch, kOther };
constexpr size_t kKinds = 7;

struct KindStyle {
  const char* name;
  size_t color;
};
constexpr KindStyle kStyles[kKinds] = {{"weights", 0},     {"gathered weights", 4}, {"optimizer", 3}, {"gradients", 1},
                                       {"activations", 2}, {"scratch", 6},          {"other", 7}};

struct Band {
  std::string name;
  Kind kind = Kind::kOther;
  int64_t bytes = 0;
  // From bottom to top, of equal height: when the contents of each are needed.
  std::vector<std::vector<TimeSpan>> rows;
};

bool contains(const std::string& name, const char* part) { return name.find(part) != std::string::npos; }

Kind kind_of(const MemoryItem& item) {
  if (item.name.starts_with("gathered")) return Kind::kGathered;
  if (contains(item.name, "gradient") && item.lifetime == Lifetime::kBlock && !contains(item.name, "full"))
    return Kind::kScratch;
  if (contains(item.name, "gradient")) return Kind::kGradients;
  if (item.name.starts_with("activations")) return Kind::kActivations;
  if (item.lifetime == Lifetime::kBlock) return Kind::kScratch;
  if (contains(item.name, "weight")) return Kind::kWeights;
  if (item.lifetime == Lifetime::kRun && (contains(item.name, "exp_avg") || contains(item.name, "momentum")))
    return Kind::kOptimizer;
  return Kind::kOther;
}

// When things are needed, of a step of some blocks.
class Needs {
 public:
  Needs(const Plan& plan, const StepTimeline& timeline) : plan_(plan), timeline_(timeline) {
    for (int64_t layer = 0; layer < plan.config.model.num_layers; ++layer) {
      layers_.push_back(layer);
      if (recompute_of(plan.memory.checkpointing, layer) == Recompute::kNothing) unrecomputed_.push_back(layer);
    }
  }

  Band band(const MemoryItem& item) const {
    Band band{.name = item.name, .kind = kind_of(item), .bytes = item.bytes, .rows = {}};
    const bool by_block = item.lifetime == Lifetime::kStep && band.kind == Kind::kActivations;
    const bool rotates = contains(item.name, "of blocks") || item.name == "gathered blocks";
    if (by_block) {
      for (const int64_t layer : layers_with(item.count)) band.rows.push_back(activations(static_cast<size_t>(layer)));
    } else if (rotates && item.count < static_cast<int64_t>(layers_.size())) {
      for (int64_t slot = 0; slot < item.count; ++slot) band.rows.push_back(in_turn(slot, item));
    } else {
      band.rows.push_back(whole(item, band.kind));
    }
    return band;
  }

  std::vector<TimeSpan> heads() const {
    std::vector<TimeSpan> spans;
    for (const MicroBatchTimes& times : timeline_.micro_batches) spans.push_back(times.head);
    return spans;
  }

 private:
  // Those whose tensors these are, as far as their number tells.
  std::vector<int64_t> layers_with(int64_t count) const {
    const auto all = static_cast<int64_t>(layers_.size());
    if (count % all == 0) return layers_;
    if (count == static_cast<int64_t>(unrecomputed_.size())) return unrecomputed_;
    std::vector<int64_t> spread;
    for (int64_t i = 0; i < count; ++i) spread.push_back(std::min(all - 1, i * all / count));
    return spread;
  }

  // From a block's forward to the end of its backward.
  std::vector<TimeSpan> activations(size_t layer) const {
    std::vector<TimeSpan> spans;
    for (const MicroBatchTimes& times : timeline_.micro_batches) {
      spans.push_back({times.forward[layer].begin_s, times.backward[layer].end_s});
    }
    return spans;
  }

  // Of slots that the blocks take in turn: from the block before, which runs while it comes.
  std::vector<TimeSpan> in_turn(int64_t slot, const MemoryItem& item) const {
    const bool weights = item.name.starts_with("gathered");
    std::vector<TimeSpan> spans;
    for (const MicroBatchTimes& times : timeline_.micro_batches) {
      for (auto layer = static_cast<size_t>(slot); layer < layers_.size(); layer += static_cast<size_t>(item.count)) {
        if (weights) spans.push_back({times.forward[layer == 0 ? 0 : layer - 1].begin_s, times.forward[layer].end_s});
        const size_t before = std::min(layer + 1, layers_.size() - 1);
        spans.push_back(
            {weights ? times.backward[before].begin_s : times.backward[layer].begin_s, times.backward[layer].end_s});
      }
    }
    return spans;
  }

  std::vector<TimeSpan> whole(const MemoryItem& item, Kind kind) const {
    if (item.lifetime == Lifetime::kRun) return {{0, timeline_.end_s}};
    // Gradients, once there are any, until the optimizer has taken them.
    if (kind == Kind::kGradients && item.lifetime == Lifetime::kStep)
      return {{timeline_.micro_batches.front().head.begin_s, timeline_.end_s}};
    const bool backward_alone = contains(item.name, "gradient") || contains(item.name, "fp8 columns");
    std::vector<TimeSpan> spans;
    for (const MicroBatchTimes& times : timeline_.micro_batches) {
      spans.push_back({backward_alone ? times.head.begin_s : times.whole.begin_s, times.whole.end_s});
    }
    return spans;
  }

  const Plan& plan_;
  const StepTimeline& timeline_;
  std::vector<int64_t> layers_, unrecomputed_;
};

// What lasts longest at the bottom, in the order of the kinds; the small ones together at the end.
std::vector<Band> bands_of(const Plan& plan, const StepTimeline& timeline) {
  const Needs needs(plan, timeline);
  std::vector<Band> bands;
  MemoryItem small{.name = "all that is smaller"};
  for (const MemoryItem& item : plan.memory.items) {
    if (static_cast<double>(item.bytes) < kSmallShare * static_cast<double>(plan.memory.arena_bytes)) {
      small.bytes += item.bytes;
      small.count += item.count;
    } else {
      bands.push_back(needs.band(item));
    }
  }
  std::stable_sort(bands.begin(), bands.end(), [](const Band& a, const Band& b) { return a.kind < b.kind; });
  if (small.bytes > 0) bands.push_back(needs.band(small));
  if (plan.memory.room.outside > 0) {
    bands.push_back({.name = "outside of the arena, an estimate: CUDA, libraries",
                     .kind = Kind::kOther,
                     .bytes = plan.memory.room.outside,
                     .rows = {{{0, timeline.end_s}}}});
  }
  return bands;
}

class Picture {
 public:
  Picture(const Plan& plan, const StepTimeline& timeline) : plan_(plan), timeline_(timeline) {
    most_bytes_ = static_cast<double>(std::max(plan.memory.total_bytes(), plan.memory.room.available));
  }

  std::string svg() {
    std::string text = fmt::format(
        "<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"memory over a step\" id=\"memory\">\n",
        kPictureWidth, kPictureHeight);
    text += axes() + phases();
    double below = 0;
    double scratch = -1;
    for (const Band& band : bands_of(plan_, timeline_)) {
      if (band.kind == Kind::kScratch && scratch < 0) scratch = below;
      text += draw(band, below);
      below += static_cast<double>(band.bytes);
    }
    if (scratch >= 0) text += of_head(scratch);
    return text + limits() + "</svg>\n";
  }

 private:
  double x(double seconds) const {
    return kPictureLeft + seconds / timeline_.end_s * (kPictureWidth - kPictureLeft - kPictureRight);
  }
  double y(double bytes) const {
    return kPictureHeight - kPictureBottom -
           bytes / (1.02 * most_bytes_) * (kPictureHeight - kPictureTop - kPictureBottom);
  }

  static std::string rect(const char* of_class, size_t color, double left, double right, double top, double bottom) {
    return fmt::format("<rect class=\"{} s{}\" x=\"{:.1f}\" y=\"{:.2f}\" width=\"{:.1f}\" height=\"{:.2f}\"/>",
                       of_class, color, left, top, std::max(right - left, 0.3), std::max(bottom - top, 0.05));
  }

  std::string draw(const Band& band, double below) const {
    const double bytes = static_cast<double>(band.bytes);
    const size_t color = kStyles[static_cast<size_t>(band.kind)].color;
    const double top = y(below + bytes);
    const double bottom = y(below);
    std::string text = fmt::format("<g class=\"band\"><title>{}: {:.3f} GiB</title>{}", html_escape(band.name),
                                   gib(bytes), rect("area reserved", color, x(0), x(timeline_.end_s), top, bottom));
    const double height = (bottom - top) / static_cast<double>(band.rows.size());
    for (size_t row = 0; row < band.rows.size(); ++row) {
      const double base = bottom - static_cast<double>(row) * height;
      for (const TimeSpan& span : band.rows[row])
        text += rect("area used", color, x(span.begin_s), x(span.end_s), base - height, base);
    }
    if (bottom - top >= kLabelHeight) {
      text += fmt::format("<text class=\"label\" x=\"{:.0f}\" y=\"{:.1f}\">{}  {:.1f} GiB</text>", kPictureLeft + 6,
                          (top + bottom) / 2 + 3.7, html_escape(band.name), gib(bytes));
    }
    return text + fmt::format("<line class=\"edge\" x1=\"{:.0f}\" x2=\"{:.0f}\" y1=\"{:.2f}\" y2=\"{:.2f}\"/></g>\n",
                              kPictureLeft, kPictureWidth - kPictureRight, top, top);
  }

  // What lies in the blocks' scratch while the head runs.
  std::string of_head(double below) const {
    double bytes = 0;
    std::string names;
    for (const MemoryItem& item : plan_.memory.overlaid) {
      bytes += static_cast<double>(item.bytes);
      names += fmt::format("{}{} {:.3f} GiB", names.empty() ? "" : ", ", item.name, gib(item.bytes));
    }
    std::string text =
        fmt::format("<g class=\"band\"><title>in memory of others, at other times: {}</title>", html_escape(names));
    for (const TimeSpan& head : Needs(plan_, timeline_).heads()) {
      text += rect("area used over", kStyles[static_cast<size_t>(Kind::kOther)].color, x(head.begin_s), x(head.end_s),
                   y(below + bytes), y(below));
    }
    return text + "</g>\n";
  }

  std::string axes() const {
    std::string text;
    const std::vector<double> sizes = nice_ticks(0, gib(most_bytes_), 8);
    for (const double size : sizes) {
      const double at = y(size * static_cast<double>(kGiB));
      text += fmt::format(
          "<line class=\"grid\" x1=\"{:.0f}\" x2=\"{:.0f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/><text class=\"tick\" "
          "text-anchor=\"end\" x=\"{:.0f}\" y=\"{:.1f}\">{}</text>\n",
          kPictureLeft, kPictureWidth - kPictureRight, at, at, kPictureLeft - 7, at + 3.5,
          tick_label(size, sizes.back()));
    }
    const double bottom = kPictureHeight - kPictureBottom;
    const std::vector<double> times = nice_ticks(0, 1e3 * timeline_.end_s, 12);
    for (const double time : times) {
      text += fmt::format(
          "<line class=\"base\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.0f}\" y2=\"{:.0f}\"/><text class=\"tick\" "
          "text-anchor=\"middle\" x=\"{:.1f}\" y=\"{:.0f}\">{}</text>\n",
          x(time / 1e3), x(time / 1e3), bottom, bottom + 4, x(time / 1e3), bottom + 16, tick_label(time, times.back()));
    }
    return text +
           fmt::format(
               "<text class=\"axis\" text-anchor=\"middle\" x=\"{:.0f}\" y=\"{:.0f}\">ms of the step, predicted</text>"
               "<text class=\"axis\" text-anchor=\"middle\" transform=\"translate(13 {:.0f}) "
               "rotate(-90)\">GiB</text>\n",
               kPictureWidth / 2, kPictureHeight - 4, kPictureHeight / 2);
  }

  // Above the bands: what runs.
  std::string phases() const {
    std::string text;
    const auto add = [&](const char* name, double begin_s, double end_s) {
      const double left = x(begin_s);
      const double right = x(end_s);
      text += fmt::format(
          "<line class=\"phase\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.0f}\" y2=\"{:.0f}\"><title>{}</title></line>",
          left + 1, right - 1, kPictureTop - 8, kPictureTop - 8, name);
      if (right - left > 46)
        text += fmt::format("<text class=\"tick\" text-anchor=\"middle\" x=\"{:.1f}\" y=\"{:.0f}\">{}</text>\n",
                            (left + right) / 2, kPictureTop - 14, name);
    };
    for (const MicroBatchTimes& times : timeline_.micro_batches) {
      add("forward", times.whole.begin_s, times.head.begin_s);
      add("head", times.head.begin_s, times.head.end_s);
      add("backward", times.head.end_s, times.whole.end_s);
    }
    add("optimizer", timeline_.micro_batches.back().whole.end_s, timeline_.end_s);
    return text;
  }

  std::string limits() const {
    const auto line = [&](double bytes, const std::string& what) {
      return fmt::format(
          "<line class=\"limit\" x1=\"{:.0f}\" x2=\"{:.0f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/><text class=\"tick\" "
          "text-anchor=\"end\" x=\"{:.0f}\" y=\"{:.1f}\">{}</text>\n",
          kPictureLeft, kPictureWidth - kPictureRight, y(bytes), y(bytes), kPictureWidth - kPictureRight - 4,
          y(bytes) + 13, what);
    };
    if (plan_.memory.room.available == 0) return "";
    return line(static_cast<double>(plan_.memory.room.available),
                fmt::format("the device's {:.1f} GiB", gib(plan_.memory.room.available)));
  }

  const Plan& plan_;
  const StepTimeline& timeline_;
  double most_bytes_ = 1;
};

std::string legend() {
  std::string html = "<div class=\"legend\">";
  for (const KindStyle& style : kStyles)
    html += fmt::format("<span class=\"key\"><i class=\"swatch box s{}\"></i>{}</span>", style.color, style.name);
  return html + "</div>\n";
}

std::string items_table(const MemoryPlan& memory) {
  std::string html =
      "<h2>Items</h2>\n<div class=\"scroll\"><table id=\"items\">\n<tr><th>memory, one rank</th><th "
      "class=\"n\">count</th><th class=\"n\">GiB</th><th class=\"n\">share</th><th>needed for</th></tr>\n";
  const auto row = [&](const MemoryItem& item, const std::string& needed) {
    html += fmt::format(
        "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{:.3f}</td><td "
        "class=\"n\">{:.1f}%</td><td>{}</td></tr>\n",
        html_escape(item.name), item.count, gib(item.bytes),
        100 * static_cast<double>(item.bytes) / static_cast<double>(memory.total_bytes()), needed);
  };
  for (const MemoryItem& item : memory.items) row(item, lifetime_name(item.lifetime));
  for (const MemoryItem& item : memory.overlaid) row(item, "in memory of the above, at other times");
  return html + "</table></div>\n";
}

}  // namespace

std::string memory_page(const Plan& plan, const StepTimeline& timeline) {
  const std::string name = std::filesystem::path(plan.config.source).filename().string();
  const MemoryPlan& memory = plan.memory;
  std::string body = fmt::format(
      "<h1>Memory of {}</h1>\n<p class=\"soft\">One rank of {}: {:.2f} GiB, {}. {} Pale: reserved for the whole run; "
      "full: its contents are needed, by the predicted times of the blocks.</p>\n",
      html_escape(name), plan.mesh.ranks(), gib(memory.total_bytes()),
      memory.room.available == 0 ? "of a device whose memory is not known"
      : memory.fits()            ? fmt::format("fits into {:.1f} GiB", gib(memory.room.available))
                                 : fmt::format("does not fit into {:.1f} GiB", gib(memory.room.available)),
      timeline.left_out > 0 ? fmt::format("{} micro-batches like the second are left out.", timeline.left_out) : "");
  body += "<figure class=\"chart wide\">\n" + legend() + Picture(plan, timeline).svg() + "</figure>\n" +
          items_table(memory);
  return html_page(name + " - octavo plan", body, "");
}

}  // namespace octavo
