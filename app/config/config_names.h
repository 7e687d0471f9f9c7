// Names of the enumerations' values in a config. The tables kOptimizers, kRecipes and kLmHeads contain their own names.
#pragma once

#include <array>

#include "app/config/config.h"
#include "app/config/config_values.h"

namespace octavo::config_names {

inline constexpr auto kShuffle = std::to_array<Choice<Shuffle>>({{"lcg", Shuffle::kLcg}, {"none", Shuffle::kNone}});
inline constexpr auto kOnMaxEpochs =
    std::to_array<Choice<OnMaxEpochs>>({{"warn", OnMaxEpochs::kWarn}, {"error", OnMaxEpochs::kError}});
inline constexpr auto kOnLossSpike = std::to_array<Choice<OnLossSpike>>(
    {{"warn", OnLossSpike::kWarn}, {"skip", OnLossSpike::kSkip}, {"rollback", OnLossSpike::kRollback}});
inline constexpr auto kOnPrecisionGap =
    std::to_array<Choice<OnPrecisionGap>>({{"warn", OnPrecisionGap::kWarn}, {"bfloat16", OnPrecisionGap::kBFloat16}});
inline constexpr auto kOnCorruption = std::to_array<Choice<OnCorruption>>(
    {{"stop", OnCorruption::kStop}, {"exclude", OnCorruption::kExclude}, {"warn", OnCorruption::kWarn}});
inline constexpr auto kKeyClass = std::to_array<Choice<KeyClass>>({{"free", KeyClass::kCarriesOut},
                                                                   {"model", KeyClass::kModel},
                                                                   {"data", KeyClass::kData},
                                                                   {"training", KeyClass::kTraining},
                                                                   {"schedule", KeyClass::kSchedule},
                                                                   {"optimizer", KeyClass::kOptimizer},
                                                                   {"precision", KeyClass::kPrecision}});
// Classes of keys that checkpoint.allow_changes accepts.
inline constexpr auto kAllowedChange = std::to_array<Choice<KeyClass>>({{"data", KeyClass::kData},
                                                                        {"training", KeyClass::kTraining},
                                                                        {"schedule", KeyClass::kSchedule},
                                                                        {"optimizer", KeyClass::kOptimizer},
                                                                        {"precision", KeyClass::kPrecision}});
inline constexpr auto kSchedule = std::to_array<Choice<Schedule>>({{"cosine", Schedule::kCosine},
                                                                   {"linear", Schedule::kLinear},
                                                                   {"constant", Schedule::kConstant},
                                                                   {"wsd", Schedule::kWsd},
                                                                   {"inverse_sqrt", Schedule::kInverseSqrt}});
inline constexpr auto kDecayType = std::to_array<Choice<Decay>>({{"linear", Decay::kLinear}, {"sqrt", Decay::kSqrt}});
inline constexpr auto kFloatType =
    std::to_array<Choice<DType>>({{"float32", DType::kFloat32}, {"bfloat16", DType::kBFloat16}});
inline constexpr auto kStateType = std::to_array<Choice<DType>>(
    {{"float32", DType::kFloat32}, {"bfloat16", DType::kBFloat16}, {"float8", DType::kFloat8E4M3}});
inline constexpr auto kFloat8Type =
    std::to_array<Choice<DType>>({{"e4m3", DType::kFloat8E4M3}, {"e5m2", DType::kFloat8E5M2}});
inline constexpr auto kFastAccumulation = std::to_array<Choice<FastAccumulation>>(
    {{"forward", FastAccumulation::kForward}, {"all", FastAccumulation::kAll}, {"none", FastAccumulation::kNone}});
inline constexpr auto kMode =
    std::to_array<Choice<ActivationCheckpointing::Mode>>({{"auto", ActivationCheckpointing::Mode::kAuto},
                                                          {"none", ActivationCheckpointing::Mode::kNone},
                                                          {"selective", ActivationCheckpointing::Mode::kSelective},
                                                          {"block", ActivationCheckpointing::Mode::kBlock},
                                                          {"full", ActivationCheckpointing::Mode::kFull}});
inline constexpr auto kAutoBool = std::to_array<Choice<AutoBool>>(
    {{"auto", AutoBool::kAuto}, {"true", AutoBool::kTrue}, {"false", AutoBool::kFalse}});
inline constexpr auto kPipelineSchedule =
    std::to_array<Choice<PipelineSchedule>>({{"1f1b", PipelineSchedule::kOneForwardOneBackward},
                                             {"interleaved", PipelineSchedule::kInterleaved},
                                             {"zero_bubble", PipelineSchedule::kZeroBubble}});
inline constexpr auto kNcclMemory = std::to_array<Choice<NcclMemory>>(
    {{"auto", NcclMemory::kAuto}, {"plain", NcclMemory::kPlain}, {"registered", NcclMemory::kRegistered}});
inline constexpr auto kLogColor = std::to_array<Choice<LogColor>>(
    {{"auto", LogColor::kAuto}, {"always", LogColor::kAlways}, {"never", LogColor::kNever}});
inline constexpr auto kDevice = std::to_array<Choice<DeviceChoice>>(
    {{"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}});

// Returns the names and values of the rows of a table.
template <typename Row, size_t kRows, typename Enum>
constexpr std::array<Choice<Enum>, kRows> rows_of(const Row (&table)[kRows], Enum Row::*value) {
  std::array<Choice<Enum>, kRows> choices{};
  for (size_t i = 0; i < kRows; ++i) choices[i] = {table[i].name, table[i].*value};
  return choices;
}
inline constexpr auto kOptimizerType = rows_of(kOptimizers, &OptimizerTraits::type);
inline constexpr auto kLinear = rows_of(kRecipes, &RecipeTraits::recipe);
inline constexpr auto kLmHead = rows_of(kLmHeads, &LmHeadTraits::precision);

}  // namespace octavo::config_names
