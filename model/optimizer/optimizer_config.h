// The optimizer section of the config: the optimizer (model/optimizer/optimizer.h), its learning rate
// (model/optimizer/schedule.h) and the moving average of the weights; and the table of optimizers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "model/optimizer/adamw.h"
#include "model/optimizer/muon.h"

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
  int64_t decay_steps = 0;  // 0 means a tenth of the steps
  Decay decay_type = Decay::kLinear;
  double momentum = 0.95;  // Muon only
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double grad_clip = 1.0;               // 0 disables clipping
  DType state_dtype = DType::kFloat32;  // dtype of the states; see OptimizerStateTraits for float8_e4m3
  double ema_decay = 0;                 // 0 disables the average of the weights
};

// A state that an optimizer keeps for each parameter that it updates.
struct OptimizerStateTraits {
  const char* name;  // in plans, and in checkpoints before the parameter's name
  // Name of another state. With state_dtype float8_e4m3, this state is stored as float8 codes relative to the other
  // state (kernels/optimizer/adamw_float8.h), or in bfloat16 if the name is null.
  const char* codes_relative_to;
};
inline constexpr OptimizerStateTraits kAdamwStates[] = {{"exp_avg", "exp_avg_sq"}, {"exp_avg_sq", nullptr}};
inline constexpr OptimizerStateTraits kMuonStates[] = {{"momentum", nullptr}};
// Name of the state that every optimizer may keep, the moving average of the weights.
inline constexpr const char* kEmaState = "ema";

struct OptimizerTraits {
  OptimizerType type;
  const char* name;  // in configs
  std::span<const OptimizerStateTraits> states;
  bool takes_momentum;  // whether it reads OptimizerConfig::momentum instead of beta1 and beta2
  bool matrices_alone;  // whether it updates only the matrices of the blocks, each as a whole, and AdamW the rest
  std::unique_ptr<ParameterUpdate> (*make_update)(const UpdateOptions& options);
  int64_t (*workspace_bytes)(const ParameterLayout& layout, DType compute, const Stream& stream);  // null means 0
};

inline constexpr OptimizerTraits kOptimizers[] = {
    {OptimizerType::kAdamw, "adamw", kAdamwStates, false, false, make_adamw_update, nullptr},
    {OptimizerType::kMuon, "muon", kMuonStates, true, true, make_muon_update, muon_workspace_bytes},
};

constexpr const OptimizerTraits& traits(OptimizerType type) { return kOptimizers[static_cast<size_t>(type)]; }

}  // namespace octavo
