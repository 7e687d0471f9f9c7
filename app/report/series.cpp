#include "app/report/series.h"

#include <cmath>
#include <numeric>

namespace octavo {

Series decimate(const Series& series, size_t points) {
  if (series.size() <= points) return series;
  const size_t buckets = points / 2 - 1;
  const double begin = series.front().x;
  const double width = (series.back().x - begin) / static_cast<double>(buckets);
  Series kept{series.front()};
  for (size_t i = 1; i + 1 < series.size();) {
    const auto bucket_of = [&](const Point& point) { return std::floor((point.x - begin) / width); };
    const double bucket = bucket_of(series[i]);
    size_t least = i;
    size_t most = i;
    for (; i + 1 < series.size() && bucket_of(series[i]) == bucket; ++i) {
      if (series[i].y < series[least].y) least = i;
      if (series[i].y > series[most].y) most = i;
    }
    kept.push_back(series[std::min(least, most)]);
    if (least != most) kept.push_back(series[std::max(least, most)]);
  }
  kept.push_back(series.back());
  return kept;
}

Series smooth(const Series& series, double window) {
  const double decay = 1 - 1 / std::max(window, 1.0);
  // Weighted sums of each point and the points before it. The points after it are added below.
  std::vector<double> sums(series.size());
  std::vector<double> weights(series.size());
  double sum = 0;
  double weight = 0;
  for (size_t i = 0; i < series.size(); ++i) {
    sums[i] = sum = decay * sum + series[i].y;
    weights[i] = weight = decay * weight + 1;
  }
  Series smoothed = series;
  sum = weight = 0;
  for (size_t i = series.size(); i-- > 0;) {
    smoothed[i].y = (sums[i] + sum) / (weights[i] + weight);
    sum = decay * (sum + series[i].y);
    weight = decay * (weight + 1);
  }
  return smoothed;
}

Series relative_gap(const Series& series, const Series& base) {
  Series gap;
  auto next = base.begin();
  for (const Point& point : series) {
    next = std::find_if(next, base.end(), [&](const Point& other) { return other.x >= point.x; });
    if (next == base.end()) break;
    double reference = next->y;
    if (next->x > point.x) {
      if (next == base.begin()) continue;
      const Point& before = *(next - 1);
      reference = before.y + (next->y - before.y) * (point.x - before.x) / (next->x - before.x);
    }
    if (reference != 0) gap.push_back({point.x, (point.y - reference) / reference});
  }
  return gap;
}

double median_of(Series series) {
  if (series.empty()) return 0;
  const auto middle = series.begin() + static_cast<std::ptrdiff_t>(series.size() / 2);
  std::nth_element(series.begin(), middle, series.end(), [](const Point& a, const Point& b) { return a.y < b.y; });
  return middle->y;
}

double tail_mean(const Series& series) {
  if (series.empty()) return 0;
  const size_t points = tail_points(series);
  const double sum = std::accumulate(series.end() - static_cast<std::ptrdiff_t>(points), series.end(), 0.0,
                                     [](double total, const Point& point) { return total + point.y; });
  return sum / static_cast<double>(points);
}

}  // namespace octavo
