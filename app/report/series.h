// Series of numbers over steps, and their reduction for charts.
#pragma once

#include <cstddef>
#include <vector>

namespace octavo {

struct Point {
  double x = 0;
  double y = 0;
};
// Sorted by x, all finite.
using Series = std::vector<Point>;

// Returns at most `points` (an even number) points: the minimum and maximum of each of points / 2 equal intervals of x,
// so that no spike is lost, and always the first and the last point.
Series decimate(const Series& series, size_t points);

// Returns the mean over about `window` points to both sides, which neither lags nor leads: sum(d^|i-j| y_j) /
// sum(d^|i-j|), d = 1 - 1 / window.
Series smooth(const Series& series, double window);

// Returns the window for a series of this many points: 1/200 of them, at most 50. A short series has window 1, which
// changes nothing.
double smoothing_window(size_t points);

// Returns (y - base) / base at the points of `series` within the range of `base`, which is interpolated linearly.
Series relative_gap(const Series& series, const Series& base);

double median_of(Series series);

}  // namespace octavo
