// The optimizer section of the config: AdamW or Muon (model/optimizer/optimizer.h) and its learning rate
// (model/optimizer/schedule.h), and the average of the weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"

namespace octavo {

enum class Schedule : uint8_t { kCosine, kLinear, kConstant, kWsd, kInverseSqrt };
enum class Decay : uint8_t { kLinear, kSqrt };

enum class OptimizerType : uint8_t { kAdamw, kMuon };

struct OptimizerConfig {
  OptimizerType type = OptimizerType::kAdamw;
  double lr = 3e-4;
  double min_lr_ratio = 0.1;
  int64_t warmup_steps = 200;
  Schedule schedule = Schedule::kCosine;
  int64_t decay_steps = 0;  // 0: a tenth of the steps
  Decay decay = Decay::kLinear;
  double momentum = 0.95;  // of Muon
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double grad_clip = 1.0;  // 0: no clipping
  DType state_dtype =
      DType::kFloat32;   // float8_e4m3: codes (kernels/optimizer/adamw_float8.h); Muon's momentum is bfloat16 then
  double ema_decay = 0;  // 0: no average of the weights
};

// Names of states, in plans, and in checkpoints before the parameter's.
inline constexpr const char* kFirstMomentState = "exp_avg";
inline constexpr const char* kSecondMomentState = "exp_avg_sq";
inline constexpr const char* kMomentumState = "momentum";
inline constexpr const char* kEmaState = "ema";  // of any optimizer: the average of the weights

// A state that an optimizer keeps of a parameter it updates.
struct OptimizerStateTraits {
  const char* name;
  bool may_be_codes;  // with state_dtype float8_e4m3 it is codes, else bfloat16 (kernels/optimizer/adamw_float8.h)
};
inline constexpr OptimizerStateTraits kAdamwStates[] = {{kFirstMomentState, true}, {kSecondMomentState, false}};
inline constexpr OptimizerStateTraits kMuonStates[] = {{kMomentumState, false}};

struct OptimizerTraits {
  OptimizerType type;
  const char* name;  // in configs
  std::span<const OptimizerStateTraits> states;
  bool takes_momentum;  // OptimizerConfig::momentum, else beta1 and beta2
  bool matrices_alone;  // updates the blocks' matrices as whole matrices; the other parameters are AdamW's
};

inline constexpr OptimizerTraits kOptimizers[] = {
    {OptimizerType::kAdamw, "adamw", kAdamwStates, false, false},
    {OptimizerType::kMuon, "muon", kMuonStates, true, true},
};

constexpr const OptimizerTraits& traits(OptimizerType type) { return kOptimizers[static_cast<size_t>(type)]; }

}  // namespace octavo
