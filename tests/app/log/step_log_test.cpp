// Tests of the numbers that are reported for a step, and of the progress line.
#include "app/log/step_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace octavo {

namespace {}  // namespace

}  // namespace octavo
