// The numbers of Muon's iteration (kernels/optimizer/muon.h), for all who compute with them.
#pragma once

namespace octavo {

inline constexpr float kNewtonSchulzA = 3.4445f;
inline constexpr float kNewtonSchulzB = -4.7750f;
inline constexpr float kNewtonSchulzC = 2.0315f;
inline constexpr int kNewtonSchulzSteps = 5;
inline constexpr float kNewtonSchulzEps = 1e-7f;  // added to the norm
inline constexpr double kMuonRms = 0.2;           // of an update, as AdamW's

}  // namespace octavo
