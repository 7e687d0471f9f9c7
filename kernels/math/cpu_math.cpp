#include "kernels/math/cpu_math.h"

namespace octavo::cpu {

const float kExpLowest = -87.3f;
const float kExpHighest = 88.3f;

}  // namespace octavo::cpu
