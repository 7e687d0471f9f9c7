// Series of values over steps, and their reduction for charts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace octavo {

struct Point {
  double x = 0;
  double y = 0;
};
// Points sorted by x. All values are finite.
using Series = std::vector<Point>;

// Returns at most `points` points: the minimum and the maximum in each of points / 2 equal intervals of x, so that no
// spike is lost. The result includes the first and the last point.
// Requires: `points` is even.
Series decimate(const Series& series, size_t points);

// Returns an exponentially weighted mean over about `window` points on both sides, which therefore has no lag:
// sum(d^|i-j| y_j) / sum(d^|i-j|) with d = 1 - 1 / window.
Series smooth(const Series& series, double window);

// Returns the smoothing window for a number of points: 1/50 of them, at least 1 and at most 50. A window of 1 changes
// nothing.
inline double smoothing_window(size_t points) { return std::clamp(static_cast<double>(points) / 50, 1.0, 50.0); }

// Returns (y - base) / base for the points of `series` within the range of `base`, which is interpolated linearly.
Series relative_gap(const Series& series, const Series& base);

double median_of(Series series);

// Returns the number of points in the last tenth of a series, at least 1 and at most 20.
inline size_t tail_points(const Series& series) { return std::clamp<size_t>(series.size() / 10, 1, 20); }
// Returns the mean of the last tail_points() values. 0 if the series is empty.
double tail_mean(const Series& series);

}  // namespace octavo
