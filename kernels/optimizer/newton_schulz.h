// The constants of Muon (kernels/optimizer/muon.h), which the CPU, CUDA kernels and model/optimizer/ share.
#pragma once

namespace octavo {

inline constexpr float kNewtonSchulzA = 3.4445f;
inline constexpr float kNewtonSchulzB = -4.7750f;
inline constexpr float kNewtonSchulzC = 2.0315f;
inline constexpr int kNewtonSchulzSteps = 5;
inline constexpr float kNewtonSchulzEps = 1e-7f;  // added to the norm
inline constexpr double kMuonRms = 0.2;  // root mean square of the elements of an update, about that of AdamW's updates

}  // namespace octavo
