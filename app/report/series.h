// Series of numbers over steps, and what charts show of them.
#pragma once

#include <cstddef>
#include <vector>

namespace octavo {

struct Point {
  double x = 0;
  double y = 0;
};
// In rising order of x, all finite.
using Series = std::vector<Point>;

// At most `points` (an even number) of them: of each of points / 2 equal stretches of x the least and the largest, so
// that no spike is lost; and always the first and the last.
Series decimate(const Series& series, size_t points);

// Mean over about `window` points to both sides, so that it neither lags nor leads: sum(d^|i-j| y_j) / sum(d^|i-j|),
// d = 1 - 1 / window.
Series smooth(const Series& series, double window);

// The window for a series of so many points: a two-hundredth, 50 at most; 1, which changes nothing, of a short one.
double smoothing_window(size_t points);

// (y - base) / base where both have values: at the points of `series` within those of `base`, which is taken to be
// straight between its points.
Series relative_gap(const Series& series, const Series& base);

double median_of(Series series);

}  // namespace octavo
